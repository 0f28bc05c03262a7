"""The file formats of the Open Graph Benchmark: CSV or NumPy archives, and splits; nothing in a file is executed."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike

from src.data.npz import npz_pieces, npz_shape
from src.data.store import Source

PARTS = {"train": "train", "validation": "valid", "test": "test"}
"""Names of the parts of a split here and in OGB's files."""

PIECE_BYTES = 2**25


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
