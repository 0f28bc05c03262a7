"""Edges and nodes from files that people have: tables of text, and arrays of NumPy and SciPy."""

from __future__ import annotations

import contextlib
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from pandas.api.types import is_numeric_dtype, union_categoricals
from torch import Tensor

from src.ops.checks import check_choice

log = logging.getLogger(__name__)

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": r"\s+"}
"""Endings of the names of tables, and what stands between their columns; ``.gz`` may follow."""

PIECE = 1_000_000
"""Edges that are held as words at a time."""


def is_table(path: Path) -> bool:
    """Whether a file is a table, by the ending of its name, and not an array.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If files of its kind can't be read.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}")
    check_choice(f"the ending of {path}", _ending(path), [*SEPARATORS, ".npy", ".npz"])
    return _ending(path) in SEPARATORS


def read_edges(path: Path) -> tuple[np.ndarray, pd.Index]:
    """Read edges from a table, whose first two columns are their ends, or an array.

    Args:
        path: Of a table, in which ``#`` starts a comment, and a line of headings may come first: one of which no word
            occurs again. Or of an ``.npy``, integers, shape (2, E) or (E, 2), or of SciPy's ``.npz``, an adjacency.

    Returns:
        The ends as positions in the second, int64, shape (2, E); and what the file calls the nodes, words, shape (n,).
    """
    if is_table(path):
        return _edges_of_table(path)
    array = _load(path)
    if isinstance(array, np.ndarray):
        if array.ndim != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
            raise ValueError(
                f"{path} is of shape {array.shape} and {array.dtype}; edges are integers of shape (2, E) or (E, 2)"
            )
        ends = array if len(array) == 2 else array.T
    else:
        if array.shape[0] != array.shape[1]:
            raise ValueError(f"{path} is of shape {array.shape}; an adjacency has as many rows as columns")
        ends = np.stack(array.nonzero())
    nodes, positions = np.unique(ends, return_inverse=True)
    return positions.reshape(2, -1), pd.Index(nodes.astype(str))


def _edges_of_table(path: Path) -> tuple[np.ndarray, pd.Index]:
    options = {"header": None, "usecols": [0, 1], "dtype": str, "comment": "#"}
    with _naming(path), _read_table(path, **options, chunksize=PIECE) as pieces:
        columns = [piece.astype("category") for piece in pieces]  # each word only once
    words = union_categoricals([piece[column] for column in (0, 1) for piece in columns])
    ends = words.codes.astype(np.int64).reshape(2, -1)
    halves = np.flatnonzero((ends < 0).any(axis=0))
    if len(halves):
        raise ValueError(f"{path} names one end only of {len(halves):,} edges, the first number {halves[0] + 1:,}")
    first = words.categories[ends[:, 0]]
    if not np.isin(ends[:, 0], ends[:, 1:]).any() and not first.str.isdigit().any():
        log.info("%s: the first line is taken for headings: %s", path, ", ".join(first))
        ends = ends[:, 1:]
    used, positions = np.unique(ends, return_inverse=True)
    return positions.reshape(2, -1), words.categories[used]


def read_nodes(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read a table of nodes, with headings in its first line, and a line for each node.

    Args:
        path: Of the table.
        columns: Those whose entries are words, NaN for none.

    Raises:
        ValueError: If there is no such column.
    """
    with _naming(path):
        table = _read_table(path, dtype=dict.fromkeys(columns, str))
    for column in columns:
        check_choice(f"a column of {path}", column, table.columns)
    return table


def as_features(table: pd.DataFrame, path: Path) -> Tensor:
    """Return a table's columns as features, float32, shape (N, D).

    Raises:
        ValueError: If one holds words.
    """
    words = [str(column) for column in table if not is_numeric_dtype(table[column])]
    if words:
        raise ValueError(
            f"{path} holds words in {', '.join(map(repr, words))}, and features are numbers: encode them, or leave "
            f"them out by 'dataset.ignored_columns=[{','.join(words)}]'"
        )
    return torch.from_numpy(table.to_numpy(np.float32, copy=True))


def read_matrix(path: Path) -> Tensor:
    """Read a matrix, shape (N, D): dense from an ``.npy``, sparse (COO) from SciPy's ``.npz``; float32."""
    array = _load(path)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise ValueError(f"{path} is of shape {array.shape} and {array.dtype}; features are numbers of shape (N, D)")
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array.astype(np.float32))
    entries = array.tocoo()
    indices = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    return torch.sparse_coo_tensor(indices, torch.from_numpy(entries.data.astype(np.float32)), array.shape).coalesce()


def read_integers(path: Path) -> np.ndarray:
    """Read an ``.npy`` of integers, shape (N,)."""
    array = _load(path)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{path} is of shape {array.shape} and {array.dtype}; classes are integers of shape (N,)")
    return array


def _read_table(path: Path, **options: Any) -> Any:
    return pd.read_csv(
        path, sep=SEPARATORS[_ending(path)], skipinitialspace=True, keep_default_na=False, na_values=[""], **options
    )


def _load(path: Path) -> Any:
    """Load an array, or a sparse matrix, that holds no Python objects."""
    with _naming(path):
        return np.load(path, allow_pickle=False) if _ending(path) == ".npy" else sp.load_npz(path)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in what NumPy, SciPy or pandas say of it."""
    try:
        yield
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} can't be read: {error}") from error


def _ending(path: Path) -> str:
    """Return the ending of a file's name, without that of a compression."""
    return Path(path.name.removesuffix(".gz")).suffix
