"""Datasets that come as raw files read by a dataset class of PyTorch Geometric."""

from __future__ import annotations

import contextlib
import io
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_geometric.data import Data, InMemoryDataset

from src.data.datamodule import InMemoryDataModule
from src.data.raw import RawFiles, mirror_folder


class FileDataModule(InMemoryDataModule):
    """A dataset of raw files.

    Args:
        folder: Name of the dataset's folder in ``data_dir``, and of the dataset in PyTorch Geometric.
        url: Where the files can be downloaded.
        sha256: File name to SHA-256, or to None where no sum is published.
        data_dir: Where downloads are kept.
        download: Whether files that are nowhere on this machine may be downloaded.
        **shared: The arguments of ``InMemoryDataModule``.

    The environment variable ``GGD_DATA_MIRROR`` names a read-only folder that is searched after ``data_dir``.
    """

    def __init__(
        self, folder: str, url: str, sha256: Mapping[str, str | None], data_dir: str, download: bool, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.files = RawFiles(folder, dict(sha256), url, Path(data_dir), mirror_folder(), download)

    @abstractmethod
    def read(self, root: str, name: str) -> InMemoryDataset:
        """Parse the raw files below ``root`` with PyTorch Geometric's own class."""

    def load(self) -> Data:
        with self.files.collected() as root, contextlib.redirect_stderr(io.StringIO()):  # its "Processing..." lines
            return self.read(str(root), self.files.folder)[0]
