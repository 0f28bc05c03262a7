"""Sampled neighbourhoods: edges of the graph, as many as wanted, and the same in every process."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.typing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput, SamplerOutput

from src.data.sampler import NeighborSampler, PygNeighborSampler, make_sampler
from src.ops.propagation import normalised_adjacency

PYG_SAMPLES = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE
NEEDS_PYG = pytest.mark.skipif(not PYG_SAMPLES, reason="neither pyg-lib nor torch-sparse is installed")
KINDS = ["builtin", pytest.param("pyg", marks=NEEDS_PYG)]

Rows = tuple[np.ndarray, np.ndarray]


def random_rows(num_nodes: int, num_edges: int, seed: int) -> Rows:
    """Row starts and columns of a random graph with a few hubs, and with the loop of each node."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.rand(2, num_edges, generator=generator).pow(2).mul(num_nodes).long()
    adjacency = normalised_adjacency(edges, num_nodes)
    return adjacency.row_starts.numpy(), adjacency.columns.int().numpy()


@pytest.fixture
def rows() -> Rows:
    return random_rows(500, 4000, seed=0)


def sample(sampler: NeighborSampler, nodes: list[int]) -> SamplerOutput:
    return sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor(nodes, dtype=torch.int64)))


def same(one: SamplerOutput, other: SamplerOutput) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("node", "row", "col", "edge"))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_a_sample_is_what_was_asked_for(kind: str, data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 30))
    row_starts, columns = random_rows(num_nodes, data.draw(st.integers(0, 100)), data.draw(st.integers(0, 99)))
    nodes = data.draw(st.permutations(range(num_nodes)))[: data.draw(st.integers(1, num_nodes))]
    num_neighbors = data.draw(st.lists(st.sampled_from([-1, 1, 2, 3, 8]), min_size=1, max_size=4))
    output = sample(make_sampler(kind, row_starts, columns, num_neighbors, 0), nodes)
    node, row, col, edge = (getattr(output, name).numpy() for name in ("node", "row", "col", "edge"))

    assert node[: len(nodes)].tolist() == nodes
    assert len(set(node.tolist())) == len(node)
    met = np.concatenate([np.arange(len(nodes)), row])
    assert np.diff(np.maximum.accumulate(met)).max(initial=0) <= 1  # new nodes take the next number
    assert met.max() == len(node) - 1

    assert len(set(edge.tolist())) == len(edge)
    np.testing.assert_array_equal(columns[edge], node[row])
    np.testing.assert_array_equal(np.searchsorted(row_starts, edge, side="right") - 1, node[col])
    assert (row != col).all()
    assert (np.diff(col) >= 0).all()

    assert sum(output.num_sampled_nodes) == len(node)
    assert sum(output.num_sampled_edges) == len(edge)
    hop = np.repeat(np.arange(len(num_neighbors) + 1), output.num_sampled_nodes)
    np.testing.assert_array_equal(np.bincount(hop[col], minlength=len(num_neighbors)), output.num_sampled_edges)
    assert (hop[row] <= hop[col] + 1).all()
    for i, count in enumerate(np.bincount(col, minlength=len(node))):
        degree = row_starts[node[i] + 1] - row_starts[node[i]] - 1
        wanted = [*num_neighbors, 0][hop[i]]
        assert count == (degree if wanted == -1 else min(degree, wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [-1, 1000])
def test_enough_neighbours_give_the_whole_neighbourhood(kind: str, number: int) -> None:
    row_starts, columns = random_rows(300, 300, seed=0)
    dense = np.zeros((300, 300), dtype=bool)
    dense[np.repeat(np.arange(300), np.diff(row_starts)), columns] = True
    within_one = dense[[5, 250]].any(axis=0)
    within_two = dense[within_one].any(axis=0)
    assert within_two.sum() < 200
    output = sample(make_sampler(kind, row_starts, columns, [number, number], 0), [5, 250])
    assert sorted(output.node.tolist()) == np.flatnonzero(within_two).tolist()
    assert len(output.edge) == dense[within_one].sum() - within_one.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_follows_from_the_seed_and_the_batch(rows: Rows, kind: str) -> None:
    sampler = make_sampler(kind, *rows, [4, 4], 0)
    state = torch.get_rng_state()
    first = sample(sampler, [3, 1, 4])
    assert torch.equal(torch.get_rng_state(), state)
    sample(sampler, [9])
    assert same(sample(sampler, [3, 1, 4]), first)
    assert same(sample(pickle.loads(pickle.dumps(sampler)), [3, 1, 4]), first)
    assert not same(sample(make_sampler(kind, *rows, [4, 4], 1), [3, 1, 4]), first)
    drawn_for_three = {tuple(sample(sampler, [3, other]).edge[:4].tolist()) for other in range(5, 10)}
    assert len(drawn_for_three) > 1


def test_integers_of_either_width_give_the_same(rows: Rows) -> None:
    narrow = NeighborSampler(rows[0].astype(np.int32), rows[1], [4, 4], 0)
    assert same(sample(narrow, [3, 1, 4]), sample(NeighborSampler(*rows, [4, 4], 0), [3, 1, 4]))


def test_the_number_of_threads_changes_nothing(rows: Rows) -> None:
    sampler, threads = NeighborSampler(*rows, [5, 5, 5], 0), torch.get_num_threads()
    outputs = []
    for number in (1, 2):
        torch.set_num_threads(number)
        outputs.append(sample(sampler, list(range(50))))
    torch.set_num_threads(threads)
    assert same(*outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_of_a_loader_give_the_same_batches(rows: Rows, kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "columns.npy", rows[1])
    np.save(tmp_path / "features.npy", np.random.default_rng(0).random((500, 3), dtype=np.float32))
    columns = np.load(tmp_path / "columns.npy", mmap_mode="r")
    features = np.load(tmp_path / "features.npy", mmap_mode="r+")  # which PyTorch takes without a warning
    data = Data(x=torch.from_numpy(features), edge_index=torch.empty(2, 0, dtype=torch.int64))

    def batches(num_workers: int) -> list[Data]:
        sampler = make_sampler(kind, rows[0], columns, [4, 4], 0)
        return list(NodeLoader(data, sampler, torch.arange(500), batch_size=100, num_workers=num_workers))

    for alone, in_worker in zip(batches(0), batches(2), strict=True):
        assert torch.equal(alone.n_id, in_worker.n_id)
        assert torch.equal(alone.e_id, in_worker.e_id)
        assert torch.equal(alone.edge_index, in_worker.edge_index)
        assert torch.equal(alone.x, in_worker.x)
        assert torch.equal(alone.x, data.x[alone.n_id])
        assert alone.batch_size == in_worker.batch_size == 100
        assert alone.num_sampled_nodes == in_worker.num_sampled_nodes


@pytest.mark.parametrize(
    ("nodes", "message"),
    [([3, 500], r"nodes 3\.\.500, but the graph has nodes 0\.\.499"), ([-1], r"-1"), ([3, 4, 3], "node 3 2 times")],
)
def test_nodes_that_cannot_be_sampled_are_named(rows: Rows, nodes: list[int], message: str) -> None:
    sampler = NeighborSampler(*rows, [2], 0)
    with pytest.raises(ValueError, match=message):
        sample(sampler, nodes)


@pytest.mark.parametrize(
    ("num_neighbors", "setting"), [([], "num_hops is 0"), ([0], "num_neighbors is 0"), ([5, -2], "num_neighbors is -2")]
)
def test_numbers_of_neighbours_are_checked(rows: Rows, num_neighbors: list[int], setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        NeighborSampler(*rows, num_neighbors, 0)


def test_edges_are_not_sampled_from(rows: Rows) -> None:
    nodes = torch.tensor([0])
    with pytest.raises(NotImplementedError, match="sample_from_nodes"):
        NeighborSampler(*rows, [2], 0).sample_from_edges(EdgeSamplerInput(None, nodes, nodes))


def test_the_kind_is_chosen_by_what_is_installed(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_sampler("builtin", *rows, [2], 0)) is NeighborSampler
    assert type(make_sampler("auto", *rows, [2], 0)) is (
        PygNeighborSampler if torch_geometric.typing.WITH_PYG_LIB else NeighborSampler
    )
    monkeypatch.setattr(torch_geometric.typing, "WITH_PYG_LIB", False)
    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", False)
    with pytest.raises(ValueError, match="neither is installed; install one of them, or choose 'builtin'"):
        make_sampler("pyg", *rows, [2], 0)
    with pytest.raises(ValueError, match="'auto', 'builtin', 'pyg'"):
        make_sampler("other", *rows, [2], 0)
