"""Citation networks with public splits, Yang et al. (2016)."""

from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import Planetoid

from src.data.files import FileDataModule


class PlanetoidDataModule(FileDataModule):
    """Cora, CiteSeer, PubMed."""

    def read(self, root: str, name: str) -> InMemoryDataset:
        return Planetoid(root, name)
