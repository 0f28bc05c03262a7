"""Datasets: one LightningDataModule per family."""

from src.data.amazon import AmazonDataModule
from src.data.coauthor import CoauthorDataModule
from src.data.datamodule import GraphDataModule
from src.data.planetoid import PlanetoidDataModule
from src.data.synthetic import SyntheticDataModule

__all__ = [
    "AmazonDataModule",
    "CoauthorDataModule",
    "GraphDataModule",
    "PlanetoidDataModule",
    "SyntheticDataModule",
]
