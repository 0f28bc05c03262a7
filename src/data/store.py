"""A graph on disk, made piece by piece and opened by memory maps, so that it need not fit into memory.

A store is a folder of plain .npy files:

    row_starts.npy  int64    (N + 1)  \
    columns.npy     int32    (E)       } A^ = D^-1/2 (A + I) D^-1/2 in compressed rows, columns sorted within a row
    values.npy      float32  (E)      /
    features.npy    float32 or float16  (N, D)
    classes.npy     int16    (N)      -1 where it is not known
    train.npy  validation.npy  test.npy     int64, sorted
    store.json      facts given by the maker, dtype and shape of each array; written last
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from src.ops.checks import check_choice, check_disk, check_range
from src.ops.progress import watched

log = logging.getLogger(__name__)

FEATURE_DTYPES = ("float32", "float16")

PARTS = ("train", "validation", "test")

ARRAYS = ("row_starts", "columns", "values", "features", "classes", *PARTS)

BLOCK = 2**21
"""Most edges dealt at a time: enough for buckets to be written in long runs."""


@dataclass(frozen=True)
class Source:
    """What a large graph is made from, read in pieces.

    Attributes:
        num_nodes, num_edges, num_features: N; the edges that ``edges`` yields, before duplicates are merged; D.
        edges: Yields pieces of the edges, integers, shape (2, any). Either direction of an edge stands for both;
            duplicates and loops do no harm.
        features: Yields pieces of the features in the order of the nodes, floating point, shape (any, D).
        classes: Class of each node, -1 where it is not known, shape (N,).
        split: Nodes of ``train``, ``validation`` and ``test``.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    edges: Callable[[], Iterator[np.ndarray]]
    features: Callable[[], Iterator[np.ndarray]]
    classes: np.ndarray
    split: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Store:
    """An opened store: read-only memory maps, of which nothing is in memory before it is used.

    Attributes:
        row_starts, columns, values: A^ in compressed rows, see ``src.ops.sparse.SparseMatrix``.
        features: float32 or float16, shape (N, D).
        classes: int16, -1 where it is not known, shape (N,).
        train, validation, test: Disjoint sets of nodes with a class, int64, sorted.
        facts: What ``build_store`` was given.
    """

    row_starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    features: np.ndarray
    classes: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    facts: dict[str, Any]


def open_store(folder: Path) -> Store:
    """Open a store that ``build_store`` made.

    Raises:
        ValueError: If the store is incomplete or damaged.
    """
    try:
        description = json.loads((folder / "store.json").read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        for name, array in arrays.items():
            if describe(array) != description["arrays"][name]:
                raise ValueError(f"{name} is {describe(array)} instead of {description['arrays'][name]}")
        return Store(**arrays, facts=description["facts"])
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{folder} is incomplete or damaged ({error}): move it away, and the next run makes it anew"
        ) from error


def describe(array: np.ndarray) -> list[Any]:
    """Return dtype and shape as they stand in store.json."""
    return [str(array.dtype), *array.shape]


def build_store(source: Source, folder: Path, feature_dtype: str, facts: dict[str, Any], memory_mb: int) -> None:
    """Make a store, unless it is there or another process makes it meanwhile.

    It is made in a folder beside and moved into place when it is whole.

    Args:
        source: What it is made from; its edges and its features are read once.
        folder: Where the store is to be.
        feature_dtype: ``float32``, or ``float16``: half the disk, with three digits.
        facts: Kept in store.json, for whoever opens the store; what JSON can hold.
        memory_mb: Memory to use, in 10^6 bytes, about, beside 16 bytes a node and the source's own pieces. A graph
            whose edges crowd in an eighth of its node numbers takes more.

    Raises:
        ValueError: If the source is no graph: edges or split name nodes that are not there, features are not finite, or
            sizes do not fit. Or if the store is there, but incomplete.
        OSError: If the disk is too small; then nothing is written.
    """
    check_choice("dataset.feature_dtype", feature_dtype, FEATURE_DTYPES)
    check_range("dataset.memory_mb", memory_mb, 1)
    check_nodes(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if folder.exists():
            open_store(folder)
            return
        started, memory = time.perf_counter(), memory_mb * 10**6
        kept, peak = store_bytes(source.num_nodes, source.num_edges, source.num_features, feature_dtype)
        free = check_disk(folder, peak)
        log.info(
            "%s: takes up to %.3g GB (%.3g GB while it is made), and %.3g GB are free",
            *(folder, kept / 1e9, peak / 1e9, free / 1e9),
        )
        for remains in sorted(folder.parent.glob(f"{folder.name}.partial-*")):
            log.warning("%s is left of a process that was killed, and can be deleted", remains)
        partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}-{time.time_ns():x}")
        partial.mkdir()
        try:
            write_adjacency(source, partial, *plan(source, memory))
            write_features(source, partial, feature_dtype, max(1, memory // (16 * source.num_features)))
            np.save(partial / "classes.npy", source.classes.astype(np.int16))
            for part in PARTS:
                np.save(partial / f"{part}.npy", np.sort(source.split[part]).astype(np.int64))
            arrays = {name: describe(np.load(partial / f"{name}.npy", mmap_mode="r")) for name in ARRAYS}
            (partial / "store.json").write_text(json.dumps({"facts": facts, "arrays": arrays}, indent=2) + "\n")
            partial.rename(folder)
        except BaseException:  # Ctrl-C as well
            shutil.rmtree(partial)
            raise
    log.info(
        "%s: %s nodes, %s undirected edges, made in %.3g s, %.3g GB",
        folder,
        f"{source.num_nodes:,}",
        f"{(arrays['columns'][1] - source.num_nodes) // 2:,}",
        time.perf_counter() - started,
        sum(path.stat().st_size for path in folder.iterdir()) / 1e9,
    )


def check_nodes(source: Source) -> None:
    """Raise ValueError unless sizes, classes and split are those of one graph, and each node of the split has a class.

    Edges and features are checked when they are read.
    """
    limit = 2**31  # columns take 32 bits
    if not (0 < source.num_nodes < limit and source.num_features > 0):
        raise ValueError(
            f"the graph has {source.num_nodes:,} nodes and {source.num_features:,} features; it must have at least one "
            f"of each, and fewer than {limit:,} nodes"
        )
    if source.classes.shape != (source.num_nodes,):
        raise ValueError(f"classes have shape {source.classes.shape}, and must have ({source.num_nodes},)")
    low, high = int(source.classes.min()), int(source.classes.max())
    if low < -1 or high > np.iinfo(np.int16).max:
        raise ValueError(
            f"classes go from {low} to {high}; they must lie in -1 (not known) .. {np.iinfo(np.int16).max}"
        )
    nodes = np.sort(np.concatenate([source.split[part] for part in PARTS]))
    if len(nodes) == 0:
        return
    low, high = int(nodes[0]), int(nodes[-1])
    if low < 0 or high >= source.num_nodes:
        raise ValueError(f"the split names nodes {low}..{high}, but the graph has nodes 0..{source.num_nodes - 1}")
    repeated = int((np.diff(nodes) == 0).sum())
    if repeated:
        raise ValueError(f"{repeated:,} nodes are in the split twice; its sets must be disjoint, without repetition")
    unknown = int((source.classes[nodes] < 0).sum())
    if unknown:
        raise ValueError(f"{unknown:,} nodes of the split have no class: leave them out of it")


def store_bytes(num_nodes: int, num_edges: int, num_features: int, feature_dtype: str) -> tuple[int, int]:
    """Return the bytes on disk that a store takes at most, and those that it takes while it is made.

    Args:
        num_nodes, num_edges, num_features: As ``Source`` has them.
        feature_dtype: ``float32`` or ``float16``.
    """
    entries = 2 * num_edges + num_nodes
    row = 8 + num_features * np.dtype(feature_dtype).itemsize + 2 + 8  # row start, features, class, place in the split
    kept = 8 * entries + row * num_nodes + 2**14  # the last: headers and store.json
    return kept, max(kept, 16 * num_edges)  # buckets hold both directions in 8 bytes each, and go as columns come


def plan(source: Source, memory: int) -> tuple[int, int]:
    """Return ``bucket_rows`` and ``block`` of ``write_adjacency`` for some bytes of memory."""
    # An average bucket takes an eighth of the memory, at 40 bytes an entry or less, since some are above average.
    entries = memory // (8 * 40)
    rows = source.num_nodes * entries // (2 * source.num_edges + source.num_nodes)
    return max(1, rows), min(BLOCK, memory // 128)


def write_adjacency(source: Source, folder: Path, bucket_rows: int, block: int) -> None:
    """Write row_starts.npy, columns.npy and values.npy.

    Edges are dealt to files of buckets by row; each bucket is sorted; when all degrees are known, entries get values.

    Args:
        source: Of the edges.
        folder: Where to.
        bucket_rows: Rows of a bucket.
        block: Edges dealt at a time, and entries that get values at a time, or a whole row.

    Raises:
        ValueError: If an edge names a node outside [0, N), or edges are not as many as the source says.
    """
    firsts = np.arange(0, source.num_nodes, bucket_rows)
    deal_edges(source, folder, firsts, block)
    row_starts = np.zeros(source.num_nodes + 1, np.int64)
    with growing_array(folder / "columns.npy", np.int32) as append:
        for first in watched(firsts, len(firsts), "sorting edges", lambda _: 1):
            rows = range(first, min(first + bucket_rows, source.num_nodes))
            keys = sort_bucket(folder / f"bucket-{first}", np.arange(rows.start, rows.stop))
            row_starts[rows.start + 1 : rows.stop + 1] = np.bincount((keys >> 32) - first)
            append(keys.astype(np.int32))  # the lower half
    scale = (1 / np.sqrt(row_starts[1:], dtype=np.float32)).astype(np.float32)
    np.cumsum(row_starts, out=row_starts)
    np.save(folder / "row_starts.npy", row_starts)
    with growing_array(folder / "values.npy", np.float32) as append:
        for rows in watched(row_blocks(row_starts, block), source.num_nodes, "weighing edges", len):
            starts = row_starts[rows.start : rows.stop + 1]
            columns = np.load(folder / "columns.npy", mmap_mode="r")[starts[0] : starts[-1]]  # of a map that is let go
            append(np.repeat(scale[rows.start : rows.stop], np.diff(starts)) * scale[columns])  # symmetric to the bit


def deal_edges(source: Source, folder: Path, firsts: np.ndarray, block: int) -> None:
    """Append each edge in both directions to the files of its rows' buckets, as row * 2^32 + column.

    Args:
        source: Of the edges.
        folder: Of the files.
        firsts: First row of each bucket, int64.
        block: Edges at a time.
    """
    count = 0
    blocks = (piece[:, i : i + block] for piece in source.edges() for i in range(0, piece.shape[1], block))
    for edges in watched(blocks, source.num_edges, "reading edges", lambda edges: edges.shape[1]):
        if len(edges) != 2:
            raise ValueError(f"a piece of the edges has shape {edges.shape}; it must be (2, any)")
        low, high = int(edges.min()), int(edges.max())
        if low < 0 or high >= source.num_nodes:
            raise ValueError(f"the edges name nodes {low}..{high}, but the graph has nodes 0..{source.num_nodes - 1}")
        count += edges.shape[1]
        rows, columns = edges.astype(np.int64, casting="safe", copy=False)
        keys = np.concatenate([rows << 32 | columns, columns << 32 | rows])
        keys.sort()
        bounds = [*np.searchsorted(keys, firsts << 32), len(keys)]
        for first, (start, end) in zip(firsts, itertools.pairwise(bounds), strict=True):
            if start < end:
                with (folder / f"bucket-{first}").open("ab") as file:
                    file.write(keys[start:end].data)
    if count != source.num_edges:
        raise ValueError(f"the source yields {count:,} edges, and says that they are {source.num_edges:,}")


def sort_bucket(path: Path, rows: np.ndarray) -> np.ndarray:
    """Return row * 2^32 + column of each entry of a bucket, sorted, with self-loops, and delete the bucket's file.

    Args:
        path: Of the file; there is none where no row has edges.
        rows: All rows of the bucket, int64.
    """
    dealt = np.fromfile(path, np.int64) if path.exists() else np.empty(0, np.int64)
    path.unlink(missing_ok=True)
    keys = np.concatenate([dealt, rows << 32 | rows])
    keys.sort()
    return keys[np.diff(keys, prepend=-1) != 0]


def row_blocks(row_starts: np.ndarray, entries: int) -> Iterator[range]:
    """Divide the rows into blocks of up to so many entries each, or of one row that has more."""
    first, num_rows = 0, len(row_starts) - 1
    while first < num_rows:
        last = int(np.searchsorted(row_starts, row_starts[first] + entries, side="right")) - 1
        yield range(first, max(first + 1, last))
        first = max(first + 1, last)


def write_features(source: Source, folder: Path, dtype: str, block: int) -> None:
    """Write features.npy, ``block`` rows at a time.

    Raises:
        ValueError: If features are not of shape (N, D), or not finite.
    """
    rows, shape = 0, (source.num_nodes, source.num_features)
    blocks = (piece[i : i + block] for piece in source.features() for i in range(0, len(piece), block))
    with growing_array(folder / "features.npy", dtype, shape[1:]) as append:
        for given in watched(blocks, source.num_nodes, "writing features", len):
            if given.shape[1:] != shape[1:] or rows + len(given) > shape[0]:
                raise ValueError(f"a piece of the features has shape {given.shape} after {rows:,} rows of {shape}")
            with np.errstate(over="ignore"):
                features = given.astype(dtype, copy=False)
            if not np.isfinite(features).all():
                row, column = np.argwhere(~np.isfinite(features))[0]
                raise ValueError(
                    f"the features hold {given[row, column]} at node {rows + row}, column {column}, which is no finite "
                    f"number in {dtype}: replace it, or set dataset.feature_dtype=float32 if float16 has no room for it"
                )
            append(features)
            rows += len(features)
    if rows != shape[0]:
        raise ValueError(f"the features have {rows:,} rows, and the graph has {shape[0]:,} nodes")


@contextmanager
def growing_array(path: Path, dtype: Any, row_shape: tuple[int, ...] = ()) -> Iterator[Callable[[np.ndarray], None]]:
    """Open a .npy file for an array of so far no rows, and yield what appends rows to it."""
    count, descr = 0, np.lib.format.dtype_to_descr(np.dtype(dtype))

    def write_header() -> None:  # as long for any count: the format leaves room for the first size to grow
        header = {"descr": descr, "fortran_order": False, "shape": (count, *row_shape)}
        np.lib.format.write_array_header_1_0(file, header)

    def append(rows: np.ndarray) -> None:
        nonlocal count
        file.write(np.ascontiguousarray(rows, dtype).data)
        count += len(rows)

    with path.open("wb") as file:
        write_header()
        yield append
        file.seek(0)
        write_header()
