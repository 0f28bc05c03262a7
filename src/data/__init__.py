"""Datasets: one LightningDataModule per family."""

from src.data.amazon import AmazonDataModule
from src.data.coauthor import CoauthorDataModule
from src.data.custom import CustomDataModule
from src.data.datamodule import GraphDataModule, InMemoryDataModule
from src.data.mapped import MappedDataModule
from src.data.ogb import OGBDataModule
from src.data.planetoid import PlanetoidDataModule
from src.data.synthetic import SyntheticDataModule
from src.data.twins import TwinDataModule

__all__ = [
    "AmazonDataModule",
    "CoauthorDataModule",
    "CustomDataModule",
    "GraphDataModule",
    "InMemoryDataModule",
    "MappedDataModule",
    "OGBDataModule",
    "PlanetoidDataModule",
    "SyntheticDataModule",
    "TwinDataModule",
]
