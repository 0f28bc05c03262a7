"""Graphs on disk, of which memory holds what is in use."""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.data.datamodule import GraphDataModule
from src.data.store import FEATURE_DTYPES, PARTS, Source, build_store, open_store
from src.graph import Graph, Labels
from src.ops.blocks import MappedMatrix
from src.ops.checks import check_choice, check_range

log = logging.getLogger(__name__)


class MappedDataModule(GraphDataModule):
    """A graph that is prepared once, onto disk, and opened by memory maps, which processes share.

    Args:
        data_dir: Where it is kept.
        feature_dtype: ``float32``, or ``float16``: half the disk, with three digits; for ``loader=neighbor`` only.
        memory_mb: What preparing it, and embedding it in blocks, may take, about, in MB (10^6 bytes).
        **shared: The arguments of ``GraphDataModule``.
    """

    labels: Labels
    options = ("loader", "batch_size", "feature_dtype")

    def __init__(self, data_dir: str, feature_dtype: str, memory_mb: int, **shared: Any) -> None:
        super().__init__(**shared)
        check_choice("dataset.feature_dtype", feature_dtype, FEATURE_DTYPES)
        check_range("dataset.memory_mb", memory_mb, 1)
        if feature_dtype != "float32" and self.loader != "neighbor":
            raise ValueError(
                f"dataset.feature_dtype={feature_dtype} works with dataset.loader=neighbor, and this is {self.loader}: "
                "set dataset.feature_dtype=float32, or dataset.loader=neighbor"
            )
        self.data_dir = Path(data_dir)
        self.feature_dtype = feature_dtype
        self.memory_mb = memory_mb

    def check_resources(self) -> None:
        """Log what making the graph takes, before it begins.

        Raises:
            OSError: If disk or memory will not do.
            FileNotFoundError: If files are missing, and can't or may not be downloaded.
        """

    @abstractmethod
    def source(self) -> Source:
        """Return what the graph is made from. Called once, when it is not on disk yet."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where the prepared graph is kept."""

    def prepare(self) -> None:
        if not self.folder.exists():
            self.check_resources()
            build_store(self.source(), self.folder, self.feature_dtype, {"name": self.title}, self.memory_mb)
        store = open_store(self.folder)
        num_nodes = len(store.features)
        self.graph = Graph(
            tensor(store.features),
            MappedMatrix(
                tensor(store.row_starts),
                tensor(store.columns),
                tensor(store.values),
                (num_nodes, num_nodes),
                self.folder.parent,
                self.memory_mb,
            ),
        )
        train, validation, test = (tensor(getattr(store, part)) for part in PARTS)
        self.labels = Labels(tensor(store.classes.astype(np.int64)), train, validation, test)

    def describe_split(self) -> dict[str, Any]:
        return {"name": "official", "seed": None} | self.labels.describe()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps out: another process opens them itself, instead of getting copies."""
        return {key: value for key, value in self.__dict__.items() if key not in ("graph", "labels")} | {
            "_ready": False
        }


def tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over a read-only map, which nobody writes to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
