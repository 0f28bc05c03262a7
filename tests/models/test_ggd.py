"""GGD against Algorithm 1 of the paper, restated plainly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from src.graph import Graph
from src.models import GGD
from tests.conftest import SHARED

SETTINGS: dict[str, Any] = SHARED | {
    "projector_layers": 2,
    "projector_activation": "none",
    "aggregation": "sum",
    "feature_drop": 0.25,
    "edge_drop": 0.0,
    "hops": 3,
}


def published_loss(model: GGD, x: Tensor, adjacency: Tensor, seed: int) -> Tensor:
    """Augment, corrupt, encode twice, project, aggregate, binary cross-entropy over 2N samples, all dense."""
    torch.manual_seed(seed)
    dropped = torch.randperm(x.shape[1])[: int(model.hparams["feature_drop"] * x.shape[1])]
    augmented = x.clone()
    augmented[:, dropped] = 0
    corrupted = augmented[torch.randperm(x.shape[0])]
    (layer,) = model.encoder.layers
    samples = []
    for features in (augmented, corrupted):
        h = functional.prelu(adjacency @ (features @ layer.weight) + layer.bias, layer.activation.weight)
        for linear in model.discriminator.projector:
            h = linear(h)
        samples.append(h.sum(dim=1))
    targets = torch.cat([torch.ones(len(x)), torch.zeros(len(x))])
    return functional.binary_cross_entropy_with_logits(torch.cat(samples), targets)


def test_loss_and_gradients_equal_the_published_algorithm(small_graph: Graph) -> None:
    model = GGD(num_features=24, **SETTINGS)
    expected = published_loss(model, small_graph.features, small_graph.adjacency.to_dense(), seed=5)
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    torch.manual_seed(5)
    loss = model.loss(small_graph)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(loss, expected)
    for one, other in zip(expected_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_embedding_is_h_plus_a_power_n_h(small_graph: Graph) -> None:
    model = GGD(num_features=24, **SETTINGS)
    h = model.encode(small_graph)
    power = torch.linalg.matrix_power(small_graph.adjacency.to_dense(), 3)
    torch.testing.assert_close(model.embed(small_graph), power @ h + h)


def test_all_batches_of_nodes_together_give_the_loss_of_the_whole_graph(small_graph: Graph) -> None:
    model = GGD(num_features=24, **SETTINGS)

    def loss(targets: Tensor | None) -> Tensor:
        torch.manual_seed(3)  # the same columns and the same permutation
        return model.loss(small_graph, targets)

    parts = torch.arange(60).view(3, 20)
    torch.testing.assert_close(torch.stack([loss(part) for part in parts]).mean(), loss(None))


def test_one_step_has_two_samples_for_each_node(small_graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GGD(num_features=24, **SETTINGS)
    counted = []
    model.discriminator.register_forward_hook(lambda _, __, logits: counted.extend(map(len, logits)))
    model.loss(small_graph)
    assert sum(counted) == 2 * small_graph.num_nodes
    counted.clear()
    model.loss(small_graph, torch.tensor([4, 8]))
    assert sum(counted) == 4


def test_dropped_edges_change_the_loss(small_graph: Graph) -> None:
    def loss(edge_drop: float) -> float:
        torch.manual_seed(0)
        model = GGD(num_features=24, **(SETTINGS | {"edge_drop": edge_drop, "feature_drop": 0.0}))
        torch.manual_seed(1)
        return model.loss(small_graph).item()

    assert loss(0.5) != loss(0.0)


def test_the_loss_reaches_every_parameter_of_a_deep_projector_and_a_learned_aggregation(small_graph: Graph) -> None:
    model = GGD(num_features=24, **(SETTINGS | {"aggregation": "linear", "feature_drop": 0.0}))
    model.loss(small_graph).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("aggregation", "median", "aggregation is 'median'; it can be 'sum', 'mean', 'min', 'max', 'linear'"),
        ("projector_activation", "tanh", "projector_activation is 'tanh'; it can be 'none', 'prelu'"),
        ("projector_layers", -1, "projector_layers is -1; it must be at least 0"),
        ("feature_drop", 1.0, "feature_drop is 1.0; it must be at least 0 and less than 1"),
        ("edge_drop", -0.1, "edge_drop is -0.1; it must be at least 0 and less than 1"),
        ("hops", -1, "hops is -1; it must be at least 0"),
    ],
)
def test_settings_out_of_range(setting: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GGD(num_features=24, **(SETTINGS | {setting: value}))
