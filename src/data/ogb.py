"""Large graphs of the Open Graph Benchmark, Hu et al. (NeurIPS 2020), read in pieces from the files that it publishes.

OGB's own ``NodePropPredDataset`` asks questions on the terminal, deletes folders, unpickles what it finds, and loads a
graph as a whole. Of its package, only its table of datasets and its evaluator are used.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import ArrayLike

from src.data.datamodule import compare_counts
from src.data.mapped import MappedDataModule
from src.data.ogb_files import ARCHIVE_GB, OGBFiles, gigabytes, silent_ogb
from src.data.ogb_format import read_csv, read_npz
from src.data.raw import mirror_folder
from src.data.store import Source, store_bytes
from src.ops.checks import check_choice, check_disk

log = logging.getLogger(__name__)

NODE_BYTES = 24
"""Memory per node that preparing a graph takes besides ``memory_mb``: start of the row, degree, class, split."""


class OGBDataModule(MappedDataModule):
    """ogbn-arxiv, ogbn-products, ogbn-papers100M, with their official splits.

    Args:
        name: The dataset's name in OGB.
        counts: Published numbers of nodes, edges in the file, features and classes, which ``source`` checks.
        download: Whether files that are nowhere on this machine may be downloaded.
        **shared: The arguments of ``MappedDataModule``.

    The environment variable ``GGD_DATA_MIRROR`` names a read-only folder that is searched after ``data_dir``.
    """

    def __init__(self, name: str, counts: Mapping[str, int], download: bool, **shared: Any) -> None:
        check_choice("dataset.name", name, ARCHIVE_GB)
        super().__init__(name=name, **shared)
        self.counts = dict(counts)
        self.files = OGBFiles(name, self.data_dir, mirror_folder(), download)

    @property
    def folder(self) -> Path:
        return self.data_dir / self.dataset / f"store-{self.feature_dtype}"

    def prepare(self) -> None:
        super().prepare()
        self.labels = dataclasses.replace(self.labels, score=functools.partial(official_accuracy, self.dataset))

    def check_resources(self) -> None:
        nodes, edges, features = (self.counts[key] for key in ("nodes", "edges", "features"))
        _, prepared = store_bytes(nodes, edges, features, self.feature_dtype)
        remaining = unpacked = 0
        if self.files.find() is None:
            remaining = self.files.remaining_bytes
            # Of an archive of .csv.gz, compressed already, the files are as large. The other holds int64 and float32.
            unpacked = 16 * edges + (4 * features + 12) * nodes if self.files.binary else self.files.archive_bytes
        disk = unpacked + max(remaining, prepared)  # the archive is gone when the graph is prepared
        memory, available = self.memory_mb * 1e6 + NODE_BYTES * nodes, psutil.virtual_memory().available
        twin = f"dataset=synthetic/{self.dataset.removeprefix('ogbn-').lower()} dataset.scale=0.01"
        sizes = {"to download": remaining, "unpacked": unpacked, "prepared": prepared}
        amounts = ", ".join(f"{gigabytes(size)} {what}" for what, size in sizes.items() if size)
        try:
            free = check_disk(self.files.data_dir, disk)
        except OSError as error:
            raise OSError(
                f"{self.dataset}: about {amounts}. {error}. dataset.feature_dtype=float16 takes less, and {twin} makes "
                "a small graph of its kind"
            ) from error
        if memory > available:
            raise OSError(
                f"{self.dataset}: preparing it takes about {gigabytes(memory)} of memory, and {gigabytes(available)} "
                f"are free: lower dataset.memory_mb, which is {self.memory_mb:,}, or take {twin}, a small graph of "
                "its kind"
            )
        log.info(
            "%s: about %s; %s are free in %s. Preparing takes about %s of memory, and %s are free",
            self.dataset,
            amounts,
            gigabytes(free),
            self.files.data_dir,
            gigabytes(memory),
            gigabytes(available),
        )

    def source(self) -> Source:
        """Return the graph as it is published, to be read in pieces; download it first if need be.

        Raises:
            ValueError: If it is not what was published, or a file can't be read.
            FileNotFoundError: If files are missing, and can't or may not be downloaded.
        """
        folder = self.files.obtain()
        if not (folder / self.files.release).exists():
            log.warning("%s has no %s, and may hold another version of %s", folder, self.files.release, self.dataset)
        split = self.files.published["split"]
        source = read_npz(folder, split) if self.files.binary else read_csv(folder, split)
        check_counts(source, self.counts, self.dataset)
        log.info("%s: %s edges in the files of %s", self.dataset, f"{source.num_edges:,}", folder)
        return source


def check_counts(source: Source, expected: Mapping[str, int], name: str) -> None:
    """Raise ValueError unless a graph has the numbers of nodes, edges in the file, features and classes published."""
    found = {
        "nodes": source.num_nodes,
        "edges": source.num_edges,
        "features": source.num_features,
        "classes": int(source.classes.max()) + 1,
    }
    compare_counts(found, expected, name)


def official_accuracy(name: str, predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the share of nodes whose class is predicted, by OGB's own evaluator.

    Args:
        name: The dataset's name in OGB.
        predicted, true: Classes, integers, shape (n,).
    """
    check_choice("dataset.name", name, ARCHIVE_GB)
    with silent_ogb():
        from ogb.nodeproppred import Evaluator
    columns = {"y_pred": np.asarray(predicted)[:, None], "y_true": np.asarray(true)[:, None]}
    return Evaluator(name).eval(columns)["acc"]
