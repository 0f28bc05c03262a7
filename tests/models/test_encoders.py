"""The encoder's shortcuts against two plain passes over dense matrices, gradients too."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from src.graph import Graph
from src.models import GGD
from src.models.discriminator import GroupDiscriminator
from src.models.encoders import ACTIVATIONS, ENCODERS, GCN, Encoder
from src.ops.aggregation import AGGREGATIONS
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix, to_dense


def plain_pass(encoder: GCN, x: Tensor, adjacency: Tensor) -> Tensor:
    """Encode step by step with dense matrices."""
    for layer in encoder.layers:
        x = torch.nn.functional.prelu(adjacency @ x @ layer.weight + layer.bias, layer.activation.weight)
    return x


def two_plain_passes(
    encoder: Encoder,
    features: Tensor | SparseMatrix,
    adjacency: SparseMatrix,
    permutation: Tensor,
    kept_columns: Tensor | None = None,
    targets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What ``both_groups`` must equal."""
    x = to_dense(features) if kept_columns is None else to_dense(features) * kept_columns
    nodes = slice(None) if targets is None else targets
    return encoder(x, adjacency)[nodes], encoder(x[permutation], adjacency)[nodes]


@pytest.fixture(params=["dense", "sparse"])
def graph(request: pytest.FixtureRequest) -> Graph:
    """30 nodes, 10 features, float64."""
    x = torch.randn(30, 10, dtype=torch.float64) * (torch.rand(30, 10) < 0.5)
    adjacency = normalised_adjacency(torch.randint(30, (2, 60)), 30).to(torch.float64)
    return Graph(SparseMatrix.from_dense(x) if request.param == "sparse" else x, adjacency)


def dense_features(graph: Graph) -> Tensor:
    return graph.features.to_dense() if isinstance(graph.features, SparseMatrix) else graph.features


@st.composite
def steps(draw: st.DrawFn) -> tuple[GGD, Graph, Tensor | None]:
    """A method, a graph of 25 nodes in float64, and the nodes that enter the loss."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(25, 10, dtype=torch.float64) * (torch.rand(25, 10) < 0.5)
    edges = torch.randint(25, (2, draw(st.sampled_from([0, 20, 150]))))
    features = draw(st.sampled_from([x, x.T.contiguous().T, SparseMatrix.from_dense(x)]))  # by row, by column, sparse
    graph = Graph(features, normalised_adjacency(edges, 25).to(torch.float64))
    num_layers = draw(st.sampled_from([1, 1, 2, 3]))
    targets = torch.randperm(25)[: draw(st.integers(1, 25))] if draw(st.booleans()) else None
    model = GGD(
        num_features=10,
        encoder=draw(st.sampled_from(["gcn", "gcn", "sgc", "sage"])),
        hidden_dim=draw(st.sampled_from([7, 12])),  # fewer and more than features
        num_layers=num_layers,
        activation=draw(st.sampled_from(list(ACTIVATIONS))),
        projector_layers=draw(st.integers(0, 2)),
        projector_activation=draw(st.sampled_from(["none", "prelu"])),
        aggregation=draw(st.sampled_from([*AGGREGATIONS, "linear"])),
        feature_drop=draw(st.sampled_from([0.0, 0.3])),
        edge_drop=draw(st.sampled_from([0.0, 0.3])),
        hops=2,
        optimizer="adam",
        learning_rate=1e-3,
        weight_decay=0.0,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model, graph, targets


@given(steps())
@settings(deadline=None, max_examples=150)
def test_loss_and_gradients_equal_those_of_two_plain_passes(step: tuple[GGD, Graph, Tensor | None]) -> None:
    model, graph, targets = step

    def loss_and_gradients() -> tuple[Tensor, ...]:
        torch.manual_seed(0)  # the same columns, edges and permutation
        loss = model.loss(graph, targets)
        return loss, *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)

    fast = loss_and_gradients()
    with (
        patch.object(type(model.encoder), "both_groups", two_plain_passes),
        patch.object(GroupDiscriminator, "forward", lambda self, *groups: [self.plain(group) for group in groups]),
    ):
        plain = loss_and_gradients()
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_forward_equals_a_plain_pass(graph: Graph) -> None:
    encoder = GCN(10, 8, 2, "prelu").double()
    torch.testing.assert_close(
        encoder(graph.features, graph.adjacency), plain_pass(encoder, dense_features(graph), graph.adjacency.to_dense())
    )


@pytest.mark.parametrize("name", ["gat", "sage", "gin"])
@pytest.mark.parametrize("bf16", [False, True])
def test_convolutions_take_edges_as_a_matrix_or_as_a_list(name: str, bf16: bool) -> None:
    """Of a graph with directed edges, loops, a repeated edge, one of value 0, and a node without any."""
    rows = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3])
    columns = torch.tensor([0, 1, 1, 2, 0, 3, 2, 4])
    values = torch.tensor([1.0, 2.0, 2.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    row_starts = torch.tensor([0, 3, 4, 6, 8, 8])
    adjacency = SparseMatrix(row_starts, columns, values, (5, 5))
    kept = (rows != columns) & (values != 0)
    x = torch.randn(5, 7)
    encoder = ENCODERS[name](7, 6, 2, "prelu")
    expected = x
    for convolution, activation in zip(encoder.convolutions, encoder.activations, strict=True):
        expected = activation(convolution(expected, torch.stack([columns[kept], rows[kept]])))
    weights = torch.randn(5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        found = encoder(x, adjacency)
    close = {"rtol": 0.05, "atol": 0.05} if bf16 else {}
    torch.testing.assert_close(found.float(), expected, **close)
    parameters = list(encoder.parameters())
    gradients = (torch.autograd.grad((output * weights).sum(), parameters) for output in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **({"rtol": 0.1, "atol": 0.1} if bf16 else {}))
