"""The encoder's shortcuts against two plain passes over dense matrices, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from src.graph import Graph
from src.models.encoders import GCN
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix


def plain_pass(encoder: GCN, x: Tensor, adjacency: Tensor) -> Tensor:
    """Encode step by step with dense matrices."""
    for layer in encoder.layers:
        x = torch.nn.functional.prelu(adjacency @ x @ layer.weight + layer.bias, layer.activation.weight)
    return x


@pytest.fixture(params=["dense", "sparse"])
def graph(request: pytest.FixtureRequest) -> Graph:
    """30 nodes, 10 features, float64."""
    x = torch.randn(30, 10, dtype=torch.float64) * (torch.rand(30, 10) < 0.5)
    adjacency = normalised_adjacency(torch.randint(30, (2, 60)), 30).to(torch.float64)
    return Graph(SparseMatrix.from_dense(x) if request.param == "sparse" else x, adjacency)


def dense_features(graph: Graph) -> Tensor:
    return graph.features.to_dense() if isinstance(graph.features, SparseMatrix) else graph.features


@pytest.mark.parametrize(("num_layers", "targets"), [(1, None), (1, [3, 29, 0, 11]), (3, None)])
def test_both_groups_equal_two_plain_passes(graph: Graph, num_layers: int, targets: list[int] | None) -> None:
    encoder = GCN(10, 8, num_layers, "prelu").double()
    kept, permutation = (torch.rand(10) < 0.7).double(), torch.randperm(30)
    x, adjacency = dense_features(graph) * kept, graph.adjacency.to_dense()
    nodes = slice(None) if targets is None else torch.tensor(targets)
    plain = plain_pass(encoder, x, adjacency)[nodes], plain_pass(encoder, x[permutation], adjacency)[nodes]
    fast = encoder.both_groups(
        graph.features, graph.adjacency, permutation, kept, None if targets is None else torch.tensor(targets)
    )
    weights = torch.randn_like(plain[0]), torch.randn_like(plain[1])
    parameters = list(encoder.parameters())
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(one, other)
    expected = torch.autograd.grad(sum((p * w).sum() for p, w in zip(plain, weights, strict=True)), parameters)
    gradients = torch.autograd.grad(sum((p * w).sum() for p, w in zip(fast, weights, strict=True)), parameters)
    for one, other in zip(expected, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_forward_equals_a_plain_pass(graph: Graph) -> None:
    encoder = GCN(10, 8, 2, "prelu").double()
    torch.testing.assert_close(
        encoder(graph.features, graph.adjacency), plain_pass(encoder, dense_features(graph), graph.adjacency.to_dense())
    )


def test_batches_of_nodes_are_refused_beyond_one_layer(small_graph: Graph) -> None:
    encoder = GCN(24, 8, 2, "prelu")
    with pytest.raises(ValueError, match=r"one layer only, and this is GCN of 2: set model\.encoder=gcn"):
        encoder.both_groups(
            small_graph.features, small_graph.adjacency, torch.randperm(60), targets=torch.tensor([1, 2])
        )
