"""Large graphs of the Open Graph Benchmark, Hu et al. (NeurIPS 2020), read in pieces from the files that it publishes.

OGB's own ``NodePropPredDataset`` asks questions on the terminal, deletes folders, unpickles what it finds, and loads a
graph as a whole. Of its package, only its table of datasets and its evaluator are used.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import gzip
import logging
import pickle
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import psutil
import requests
from filelock import FileLock
from numpy.typing import ArrayLike, DTypeLike

from src.data.datamodule import compare_counts
from src.data.download import download, remote_size
from src.data.mapped import MappedDataModule
from src.data.npz import npz_pieces, npz_shape
from src.data.raw import mirror_folder
from src.data.store import Source, check_disk, store_bytes
from src.ops.checks import check_choice

log = logging.getLogger(__name__)

ARCHIVE_GB = {"ogbn-arxiv": 0.09, "ogbn-products": 1.5, "ogbn-papers100M": 60.3}
"""The datasets, and the size of the download where the server does not say, about. A GB is 10^9 bytes."""

PARTS = {"train": "train", "validation": "valid", "test": "test"}
"""Names of the parts of a split here and in OGB's files."""

PIECE_BYTES = 2**25

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


@dataclass(frozen=True)
class OGBFiles:
    """The files of one dataset, laid out as OGB does: ``ogbn_arxiv/raw/``, ``ogbn_arxiv/split/``, ...

    Nothing in the user's folder is deleted or overwritten. OGB publishes no sums, so that trust goes as far as the zip
    archive's own sums, which show damage but no forgery; hence nothing in the archive is run, see ``read_split``.

    Attributes:
        name: The dataset's name in OGB.
        data_dir: The user's data folder, where downloads are kept.
        mirror: A read-only folder of the same layout, or None.
        download: Whether files that are in neither may be downloaded.
    """

    name: str
    data_dir: Path
    mirror: Path | None
    download: bool

    @functools.cached_property
    def published(self) -> dict[str, str]:
        """What OGB's table says of the dataset."""
        with silent_ogb():
            import ogb.nodeproppred
        table = Path(ogb.nodeproppred.__file__).with_name("master.csv")
        return pd.read_csv(table, index_col=0, keep_default_na=False)[self.name].to_dict()

    @property
    def binary(self) -> bool:
        return self.published["binary"] == "True"

    @property
    def release(self) -> str:
        return f"RELEASE_v{self.published['version']}.txt"

    @property
    def folder(self) -> Path:
        return self.data_dir / self.name.replace("-", "_")

    @property
    def archive(self) -> Path:
        """Of the user, who may have fetched it by other means."""
        return self.data_dir / f"{self.published['download_name']}.zip"

    @property
    def partial(self) -> Path:
        """Our own download of the archive, until it is unpacked."""
        return self.archive.with_name(f"{self.archive.name}.partial")

    @functools.cached_property
    def archive_bytes(self) -> int:
        """Size of the archive, as the server says; else about."""
        if self.archive.is_file():
            return self.archive.stat().st_size
        return remote_size(self.published["url"]) or int(ARCHIVE_GB[self.name] * 1e9)

    @property
    def remaining_bytes(self) -> int:
        """What of the archive is not on the disk yet."""
        there = next((path.stat().st_size for path in (self.archive, self.partial) if path.exists()), 0)
        return max(0, self.archive_bytes - there)

    def missing(self, folder: Path) -> list[str]:
        """Return the files that a folder lacks."""
        csv = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
        raw = ["data.npz", "node-label.npz"] if self.binary else [f"{name}.csv.gz" for name in csv]
        split = f"split/{self.published['split']}"
        parts = [f"{split}/{part}.csv.gz" for part in PARTS.values()]
        if (folder / split / "split_dict.pt").is_file():
            parts = []
        return [name for name in [f"raw/{name}" for name in raw] + parts if not (folder / name).is_file()]

    def find(self) -> Path | None:
        """Return the folder that holds all files; None if it can be made by a download.

        Raises:
            FileNotFoundError: If it can't or may not be.
        """
        for folder in (self.folder, self.mirror and self.mirror / self.folder.name):
            if folder and not self.missing(folder):
                return folder
        if self.folder.exists():
            raise self._not_found(f"{self.folder} is there, but not whole: complete it, or move it away")
        if not self.download and not self.archive.is_file():
            raise self._not_found("dataset.download=false")
        return None

    def obtain(self) -> Path:
        """Return the folder that holds all files; download and unpack them if need be, one process at a time.

        Raises:
            FileNotFoundError: If files are missing, and can't or may not be downloaded.
            OSError: If they do not fit on the disk.
        """
        found = self.find()
        if found:
            return found
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(self.data_dir / f".{self.folder.name}.lock"):
            return self.find() or self._fetch()

    def _fetch(self) -> Path:
        url, ours = self.published["url"], not self.archive.is_file()
        archive = self.partial if ours else self.archive
        try:
            if ours:
                log.info("Downloading %s (%s) to %s", url, gigabytes(self.archive_bytes), archive)
                download(url, archive, self.archive_bytes)
            self._unpack(archive)
        except requests.RequestException as error:
            raise self._not_found(f"{url}: {error}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            with archive.open("rb") as file:
                fault = f"{archive} ({archive.stat().st_size:,} bytes, beginning {file.read(16)!r}): {error}"
            if ours:
                archive.unlink()  # or the next run would go on after it
            raise self._not_found(fault) from error
        if ours:
            archive.unlink()
        return self.folder

    def _unpack(self, archive: Path) -> None:
        """Unpack beside, which checks all sums, and rename, so that the folder is there as a whole or not at all."""
        with (
            zipfile.ZipFile(archive) as members,
            tempfile.TemporaryDirectory(dir=self.data_dir, prefix=f"{self.folder.name}.partial-") as scratch,
        ):
            size = sum(member.file_size for member in members.infolist())
            check_disk(self.data_dir, size)
            log.info("Unpacking %s, %s", archive, gigabytes(size))
            members.extractall(scratch)
            unpacked = Path(scratch) / self.published["download_name"]
            missing = self.missing(unpacked)
            if missing:
                raise zipfile.BadZipFile(f"it lacks {', '.join(missing)} in {unpacked.name}/")
            unpacked.rename(self.folder)

    def _not_found(self, reason: str) -> FileNotFoundError:
        lacking = ", ".join(self.missing(self.folder))
        return FileNotFoundError(
            f"The files of {self.name} are not to be had: {reason}.\n{self.folder} lacks {lacking}. Unpack "
            f"{self.published['url']} to there by hand, or set GGD_DATA_MIRROR to a folder with {self.folder.name}/."
        )


def read_csv(folder: Path, split: str) -> Source:
    """Return a graph published as ``raw/*.csv.gz``; ``split`` names the folder of its split.

    Raises:
        ValueError: If a file can't be read.
    """
    raw = folder / "raw"
    features = raw / "node-feat.csv.gz"
    return Source(
        num_nodes=int(csv_array(raw / "num-node-list.csv.gz", np.int64).sum()),
        num_edges=int(csv_array(raw / "num-edge-list.csv.gz", np.int64).sum()),
        num_features=csv_width(features),
        edges=lambda: (rows.T for rows in csv_pieces(raw / "edge.csv.gz", np.int64)),
        features=lambda: csv_pieces(features, np.float32),
        classes=known_classes(csv_pieces(raw / "node-label.csv.gz", np.float64)),
        split=read_split(folder / "split" / split),
    )


def read_npz(folder: Path, split: str) -> Source:
    """Return a graph published as ``raw/data.npz`` and ``raw/node-label.npz``; see ``read_csv``."""
    graph, labels = folder / "raw" / "data.npz", folder / "raw" / "node-label.npz"

    def pieces(path: Path, name: str, axis: int = 0) -> Iterator[np.ndarray]:
        with readable(path):
            yield from npz_pieces(path, name, axis, PIECE_BYTES)

    with readable(graph):
        num_nodes, num_features = npz_shape(graph, "node_feat")
        _, num_edges = npz_shape(graph, "edge_index")
    return Source(
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_features=num_features,
        edges=lambda: pieces(graph, "edge_index", axis=1),
        features=lambda: pieces(graph, "node_feat"),
        classes=known_classes(pieces(labels, "node_label")),
        split=read_split(folder / "split" / split),
    )


def read_split(folder: Path) -> dict[str, np.ndarray]:
    """Return the nodes of each part, ascending, from ``train.csv.gz`` and so on, or else from ``split_dict.pt``.

    Raises:
        ValueError: If a file can't be read, or holds anything but arrays of nodes.
    """
    if not all((folder / f"{part}.csv.gz").is_file() for part in PARTS.values()):
        with readable(folder / "split_dict.pt"):
            return read_split_dict(folder / "split_dict.pt")
    return {name: np.sort(csv_array(folder / f"{part}.csv.gz", np.int64)) for name, part in PARTS.items()}


class ArraysOnly(pickle.Unpickler):
    """Rebuild NumPy arrays, and nothing else.

    ``torch.load(weights_only=True)`` would be as strict, but reads no pickles of protocol 4, in which OGB saves.
    """

    RECONSTRUCT = np.empty(0).__reduce__()[0]
    ALLOWED: ClassVar = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, and only NumPy arrays are let in")
        return self.ALLOWED[module, name]


def read_split_dict(path: Path) -> dict[str, np.ndarray]:
    """Return the split that ``torch.save`` has written as a dictionary of arrays, without running what it says."""
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                content = ArraysOnly(archive.open(inner)).load()
        else:  # as PyTorch saved before 1.6: three pickles about the file, then the content
            file.seek(0)
            *_, content = [ArraysOnly(file).load() for _ in range(4)]
    found = [content.get(part) for part in PARTS.values()] if isinstance(content, dict) else []
    parts = [nodes for nodes in found if isinstance(nodes, np.ndarray) and nodes.dtype.kind in "iu"]
    if len(parts) < len(PARTS):
        raise pickle.UnpicklingError(f"it has no arrays of nodes named {', '.join(PARTS.values())}")
    return {name: np.sort(nodes, axis=None).astype(np.int64) for name, nodes in zip(PARTS, parts, strict=True)}


def known_classes(pieces: Iterator[np.ndarray]) -> np.ndarray:
    """Return the class of each node, int16, shape (N,), -1 where a label is NaN."""
    return np.concatenate([np.where(np.isnan(piece), -1, piece).astype(np.int16).ravel() for piece in pieces])


def csv_width(path: Path) -> int:
    """Return the number of columns of a file without a header."""
    with readable(path):
        return pd.read_csv(path, header=None, nrows=1).shape[1]


def csv_pieces(path: Path, dtype: DTypeLike) -> Iterator[np.ndarray]:
    """Yield the rows of a file without a header, in pieces of shape (any, columns)."""
    step = max(1, PIECE_BYTES // (csv_width(path) * np.dtype(dtype).itemsize))
    with readable(path), pd.read_csv(path, header=None, dtype=dtype, chunksize=step) as chunks:
        for chunk in chunks:
            yield chunk.to_numpy()


def csv_array(path: Path, dtype: DTypeLike) -> np.ndarray:
    """Return the one column of a file without a header, shape (rows,)."""
    return np.concatenate(list(csv_pieces(path, dtype)))[:, 0]


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Name the file that can't be read, and the next step."""
    try:
        yield
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{path} can't be read: {error}. Put the published file there, or move its folder away"
        ) from error


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


@contextlib.contextmanager
def silent_ogb() -> Iterator[None]:
    """Import ``ogb`` without its search for a newer version on the network, which needs the package ``outdated``."""
    before = sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["outdated"]
        if before:
            sys.modules["outdated"] = before


def gigabytes(size: float) -> str:
    """Return a number of bytes in GB (10^9 bytes)."""
    return f"{size / 1e9:,.3g} GB"
