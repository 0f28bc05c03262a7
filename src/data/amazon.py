"""Co-purchase graphs, Shchur et al. (2018)."""

from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import Amazon

from src.data.files import FileDataModule


class AmazonDataModule(FileDataModule):
    """Computers, Photo."""

    def read(self, root: str, name: str) -> InMemoryDataset:
        return Amazon(root, name)
