"""Co-authorship graphs, Shchur et al. (2018)."""

from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import Coauthor

from src.data.files import FileDataModule


class CoauthorDataModule(FileDataModule):
    """CS, Physics."""

    def read(self, root: str, name: str) -> InMemoryDataset:
        return Coauthor(root, name)
