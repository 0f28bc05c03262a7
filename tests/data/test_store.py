"""A graph made on disk equals the same graph made in memory; what is no graph is refused, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from src import measure
from src.data import store
from src.data.store import (
    Source,
    build_store,
    growing_array,
    open_store,
    plan,
    store_bytes,
    write_adjacency,
)
from src.ops import progress
from src.ops.checks import check_disk
from src.ops.propagation import normalised_adjacency


def make_source(edges: np.ndarray, num_nodes: int, piece: int = 4, **changes: Any) -> Source:
    """A source with three features a node and three nodes in the split, which comes in small pieces."""
    features = np.arange(3 * num_nodes, dtype=np.float32).reshape(num_nodes, 3)
    defaults = {
        "num_nodes": num_nodes,
        "num_edges": edges.shape[1],
        "num_features": 3,
        "edges": lambda: (edges[:, i : i + piece] for i in range(0, edges.shape[1], piece)),
        "features": lambda: (features[i : i + piece] for i in range(0, num_nodes, piece)),
        "classes": np.arange(num_nodes) % 2,
        "split": {"train": np.array([2, 0]), "validation": np.array([1]), "test": np.array([], np.int64)},
    }
    return Source(**(defaults | changes))


@pytest.fixture
def source(edges: torch.Tensor) -> Source:
    return make_source(edges.numpy(), 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "small"


def build(source: Source, folder: Path, feature_dtype: str = "float32") -> None:
    build_store(source, folder, feature_dtype, {"made": "by a test"}, memory_mb=1)


@given(st.integers(1, 40), st.integers(0, 120), st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**31))
@settings(deadline=None)
def test_the_adjacency_equals_that_made_in_memory(
    num_nodes: int, num_edges: int, bucket_rows: int, block: int, seed: int
) -> None:
    # Loops, duplicates, both directions, nodes without edges; up to 40 buckets
    edges = np.random.default_rng(seed).integers(num_nodes, size=(2, num_edges))
    expected = normalised_adjacency(torch.from_numpy(edges), num_nodes)
    with tempfile.TemporaryDirectory() as folder:
        write_adjacency(make_source(edges, num_nodes, piece=31), Path(folder), bucket_rows, block)
        found = [torch.from_numpy(np.load(Path(folder) / f"{name}.npy")) for name in store.ARRAYS[:3]]
        assert not list(Path(folder).glob("bucket*"))
    row_starts, columns, values = found
    assert torch.equal(row_starts, expected.row_starts)
    assert torch.equal(columns.long(), expected.columns)
    torch.testing.assert_close(values, expected.values, rtol=3e-7, atol=0)  # an inverse root rounded once or twice
    dense = torch.sparse_csr_tensor(row_starts, columns.long(), values, (num_nodes, num_nodes)).to_dense()
    assert torch.equal(dense, dense.T)


def test_a_store_holds_what_its_source_has(source: Source, folder: Path) -> None:
    build(source, folder)
    opened = open_store(folder)
    assert opened.facts == {"made": "by a test"}
    assert opened.features.tolist() == np.concatenate(list(source.features())).tolist()
    assert opened.classes.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert [part.tolist() for part in (opened.train, opened.validation, opened.test)] == [[0, 2], [1], []]
    dtypes = {name: str(getattr(opened, name).dtype) for name in store.ARRAYS}
    assert dtypes == {
        **dict.fromkeys(("row_starts", *store.PARTS), "int64"),
        **dict.fromkeys(("values", "features"), "float32"),
        "columns": "int32",
        "classes": "int16",
    }
    assert sorted(path.name for path in folder.parent.iterdir()) == ["small", "small.lock"]


def test_little_memory_makes_many_buckets_and_the_same_graph(folder: Path) -> None:
    edges = np.random.default_rng(0).integers(3000, size=(2, 40_000))
    source = make_source(edges, 3000, piece=30_000)
    bucket_rows, block = plan(source, 10**6)
    assert 3000 / bucket_rows > 10
    assert block < 30_000
    build(source, folder)
    opened, expected = open_store(folder), normalised_adjacency(torch.from_numpy(edges), 3000)
    assert np.array_equal(opened.row_starts, expected.row_starts)
    assert np.array_equal(opened.columns, expected.columns)
    np.testing.assert_allclose(opened.values, expected.values, rtol=3e-7)


def test_half_precision(source: Source, folder: Path) -> None:
    build(source, folder, "float16")
    opened = open_store(folder)
    assert opened.features.dtype == np.float16
    assert opened.features.tolist() == np.concatenate(list(source.features())).tolist()  # 0..20 fit exactly


def test_nothing_is_made_twice(source: Source, folder: Path) -> None:
    started = []

    def edges() -> Iterator[np.ndarray]:
        started.append(1)
        time.sleep(0.2)  # long enough for the other to begin
        yield from source.edges()

    slow = dataclasses.replace(source, edges=edges)
    others = [threading.Thread(target=build, args=(slow, folder)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    build(slow, folder)
    assert len(started) == 1
    assert len(open_store(folder).row_starts) == 8


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
@pytest.mark.parametrize("what", ["edges", "features"])
def test_a_build_that_fails_leaves_nothing(source: Source, folder: Path, what: str, error: BaseException) -> None:
    seen = []

    def broken() -> Iterator[np.ndarray]:
        pieces = getattr(source, what)()
        yield next(pieces)
        seen.extend(folder.parent.glob("small.partial-*/*"))
        raise error

    with pytest.raises(type(error)):
        build(dataclasses.replace(source, **{what: broken}), folder)
    assert seen  # something was written
    assert [path.name for path in folder.parent.iterdir()] == ["small.lock"]
    build(source, folder)


def test_what_a_killed_process_left_is_named_and_kept(
    source: Source, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remains = folder.with_name("small.partial-7-a")
    remains.mkdir(parents=True)
    (remains / "columns.npy").touch()
    build(source, folder)
    assert f"{remains} is left of a process that was killed" in caplog.text
    assert (remains / "columns.npy").exists()


BAD = np.array([[0, 1], [1, 7]])
SPLIT = {"train": np.array([0]), "validation": np.array([1]), "test": np.array([2])}


def pieces(*arrays: np.ndarray) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: iter(arrays)


def with_value(value: float) -> np.ndarray:
    features = np.zeros((7, 3), np.float32)
    features[5, 2] = value
    return features


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": pieces(BAD)}, r"the edges name nodes 0\.\.7, but the graph has nodes 0\.\.6"),
        ({"edges": pieces(-BAD)}, r"the edges name nodes -7\.\.0, but the graph has nodes 0\.\.6"),
        ({"edges": pieces(BAD.repeat(2, axis=0))}, r"a piece of the edges has shape \(4, 2\); it must be \(2, any\)"),
        ({"num_edges": 5}, "the source yields 6 edges, and says that they are 5"),
        ({"features": pieces(np.zeros((7, 2)))}, r"features has shape \(7, 2\) after 0 rows of \(7, 3\)"),
        ({"features": pieces(np.zeros((4, 3)), np.zeros((4, 3)))}, r"shape \(4, 3\) after 4 rows of \(7, 3\)"),
        ({"features": pieces(np.zeros((6, 3)))}, "the features have 6 rows, and the graph has 7 nodes"),
        ({"features": pieces(with_value(np.nan)[:4], with_value(np.nan)[4:])}, "hold nan at node 5, column 2"),
        ({"features": pieces(with_value(-np.inf))}, "hold -inf at node 5, column 2"),
        (
            {"features": pieces(with_value(1e5))},
            "hold 100000.0 at node 5, column 2, which is no finite number in float16",
        ),
        ({"classes": np.zeros(6, int)}, r"classes have shape \(6,\), and must have \(7,\)"),
        ({"classes": np.full(7, 2**15)}, "classes go from 32768 to 32768"),
        ({"classes": np.full(7, -1)}, "3 nodes of the split have no class"),
        ({"split": SPLIT | {"test": np.array([7])}}, r"the split names nodes 0\.\.7, but the graph has nodes 0\.\.6"),
        ({"split": SPLIT | {"test": np.array([-1])}}, r"the split names nodes -1\.\.1, but"),
        ({"split": SPLIT | {"test": np.array([0, 2])}}, "1 nodes are in the split twice"),
        ({"num_nodes": 0, "classes": np.zeros(0, int)}, "the graph has 0 nodes and 3 features"),
    ],
)
def test_what_is_no_graph_is_refused(source: Source, folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(dataclasses.replace(source, **changes), folder, "float16")
    assert not list(folder.parent.glob("small*/"))


def test_settings_out_of_range(source: Source, folder: Path) -> None:
    with pytest.raises(ValueError, match="'float64'; it can be 'float32', 'float16'"):
        build(source, folder, "float64")
    with pytest.raises(ValueError, match=r"dataset\.memory_mb is 0; it must be at least 1"):
        build_store(source, folder, "float32", {}, memory_mb=0)


def cut_columns(folder: Path) -> None:
    with (folder / "columns.npy").open("r+b") as file:
        file.truncate(140)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "store.json").unlink(), "No such file"),
        (lambda folder: (folder / "store.json").write_text("{"), "Expecting"),
        (lambda folder: (folder / "test.npy").unlink(), "No such file"),
        (cut_columns, "mmap length is greater than file size"),
        (lambda folder: np.save(folder / "values.npy", np.zeros(3, np.float32)), r"values is \['float32', 3\] instead"),
    ],
)
def test_a_damaged_store_is_named_and_not_overwritten(
    source: Source, folder: Path, damage: Callable[[Path], Any], message: str
) -> None:
    build(source, folder)
    damage(folder)
    before = sorted(folder.iterdir())
    for attempt in (lambda: open_store(folder), lambda: build(source, folder)):
        with pytest.raises(ValueError, match=f"small is incomplete or damaged .*{message}.*: move it away"):
            attempt()
    assert sorted(folder.iterdir()) == before


def test_the_disk_that_is_needed(folder: Path) -> None:
    used = []
    edges = np.random.default_rng(0).integers(3000, size=(2, 40_000))

    def watch() -> Iterator[np.ndarray]:
        yield from np.split(edges, 4, axis=1)
        used.append(sum(path.stat().st_size for path in folder.parent.glob("small.partial-*/*")))

    source = dataclasses.replace(make_source(edges, 3000), edges=watch)
    kept, peak = store_bytes(3000, 40_000, 3, "float32")
    build(source, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert 0.9 * kept < size <= kept  # few of the edges are duplicates, and few nodes are in the split
    assert 0.9 * 16 * 40_000 < used[0] <= peak


def test_a_disk_too_small_is_refused_before_anything_is_written(source: Source, folder: Path) -> None:
    huge = dataclasses.replace(source, num_features=10**15)
    with pytest.raises(OSError, match=r"small needs 2\.8e\+07 GB of disk, and .* GB are free: make room"):
        build(huge, folder)
    assert not list(folder.parent.glob("small*/"))
    assert check_disk(folder / "not" / "there", 1) > 1


def test_memory_is_bounded(folder: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be reset on Linux only")
    num_nodes, num_edges, width = 50_000, 4_000_000, 500

    def edges() -> Iterator[np.ndarray]:
        random = np.random.default_rng(0)
        for _ in range(num_edges // 50_000):
            yield random.integers(num_nodes, size=(2, 50_000))

    def features() -> Iterator[np.ndarray]:
        for _ in range(num_nodes // 1000):
            yield np.ones((1000, width), np.float32)

    source = dataclasses.replace(
        make_source(np.empty((2, 0)), num_nodes),
        num_edges=num_edges,
        num_features=width,
        edges=edges,
        features=features,
    )
    measure.reset_peak()
    before = measure.peak_rss_mb()
    build_store(source, folder, "float32", {}, memory_mb=20)
    # The memory allowed, 16 bytes a node, a piece of the source, and 20 for the allocator. Of the store's 164
    # MB, the columns alone would take 32, the entries in buckets 64 and the features 100.
    assert measure.peak_rss_mb() - before < 20 + 0.8 + 2 + 20


def test_a_line_says_how_far_it_is(
    source: Source, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0)
    with caplog.at_level("INFO"):
        build(source, folder)
    assert "reading edges: 67 %" in caplog.text  # four of six
    assert "writing features: 100 %" in caplog.text
    assert "7 nodes, 6 undirected edges, made in" in caplog.text


def test_an_array_that_grows_is_a_plain_one(tmp_path: Path) -> None:
    with growing_array(tmp_path / "x.npy", "float16", (2,)) as append:
        for rows in (3, 0, 123_456):
            append(np.full((rows, 2), min(rows, 5)))
    grown = np.load(tmp_path / "x.npy")
    assert grown.dtype == np.float16
    assert grown.shape == (123_459, 2)
    assert grown[:4, 0].tolist() == [3, 3, 3, 5]
