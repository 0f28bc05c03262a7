"""The normalised adjacency and its products against dense formulas."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from src.ops.propagation import graph_power, normalised_adjacency, propagate_rows
from src.ops.sparse import SparseMatrix


def dense_adjacency(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """D^-1/2 (A + I) D^-1/2, step by step."""
    a = torch.zeros(num_nodes, num_nodes)
    a[edge_index[0], edge_index[1]] = 1
    a = torch.maximum(a, a.T)
    a.fill_diagonal_(1)
    scale = a.sum(dim=1).rsqrt()
    return scale[:, None] * a * scale[None, :]


@given(st.integers(1, 12), st.integers(0, 30), st.integers(0, 2**31))
@settings(deadline=None)
def test_adjacency_equals_the_dense_formula(num_nodes: int, num_edges: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)  # loops and duplicates among them
    adjacency = normalised_adjacency(edges, num_nodes)
    torch.testing.assert_close(adjacency.to_dense(), dense_adjacency(edges, num_nodes))


def test_a_node_without_edges_keeps_its_loop(edges: torch.Tensor) -> None:
    adjacency = normalised_adjacency(edges, 7).to_dense()
    assert adjacency[6].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert torch.isfinite(adjacency).all()


@pytest.mark.parametrize("bad", [7, -1])
def test_an_edge_to_a_node_that_is_not_there(edges: torch.Tensor, bad: int) -> None:
    edges[0, 2] = bad
    with pytest.raises(ValueError, match=r"edge_index names nodes -?\d+\.\.\d+, but the graph has nodes 0\.\.6"):
        normalised_adjacency(edges, 7)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("density", [0.05, 0.6])
@pytest.mark.parametrize("dropped", [False, True])
def test_rows_equal_those_of_the_whole_products(
    edges: torch.Tensor, sparse: bool, density: float, dropped: bool
) -> None:
    adjacency = normalised_adjacency(edges, 7)
    x = torch.rand(7, 50) * (torch.rand(7, 50) < density)
    kept = (torch.rand(50) < 0.7).float() if dropped else None
    permutation, targets = torch.randperm(7), torch.tensor([5, 0, 6])
    rows = propagate_rows(adjacency, SparseMatrix.from_dense(x) if sparse else x, targets, permutation, kept)
    assert isinstance(rows, SparseMatrix) == (sparse and density < 0.5)
    a = adjacency.to_dense()
    whole = torch.cat([(a @ x)[targets], (a @ x[permutation])[targets]])
    torch.testing.assert_close(rows @ torch.eye(50), whole if kept is None else whole * kept)


def test_graph_power(edges: torch.Tensor) -> None:
    adjacency = normalised_adjacency(edges, 7)
    x = torch.rand(7, 3)
    assert graph_power(adjacency, x, 0) is x
    torch.testing.assert_close(graph_power(adjacency, x, 3), torch.linalg.matrix_power(adjacency.to_dense(), 3) @ x)
    with pytest.raises(ValueError, match="hops is -1; it must be at least 0"):
        graph_power(adjacency, x, -1)
