"""The paper's argument, step by step: a constant summary, a blind scorer, and what the loss measures."""

from __future__ import annotations

import math

import pytest
import torch

from src.graph import Graph
from src.models import DGI
from src.ops.losses import group_discrimination_loss
from src.ops.propagation import normalised_adjacency
from tests.conftest import SHARED


@pytest.mark.parametrize(("activation", "slope"), [("relu", 0.0), ("leaky_relu", 0.01), ("prelu", 0.25)])
@pytest.mark.parametrize("num_nodes", [50, 2000])
def test_the_summary_is_constant_at_initialisation(activation: str, slope: float, num_nodes: int) -> None:
    """Proposition 1: rows of X that add up to 1 and Xavier weights leave the summary near sigmoid(0) = 1/2.

    An element of A X W is at most max |A| row sum x max row sum of X x max |W|, and the sigmoid's slope is at most 1/4.
    """
    x = torch.rand(num_nodes, 500)
    x /= x.sum(dim=1, keepdim=True)
    adjacency = normalised_adjacency(torch.randint(num_nodes, (2, 3 * num_nodes)), num_nodes)
    model = DGI(summary="mean", num_features=500, **(SHARED | {"activation": activation, "hidden_dim": 256}))
    (layer,) = model.encoder.layers
    bound = adjacency.to_dense().sum(dim=1).mean() * layer.weight.abs().max() / 4
    summary = model.summarise(model.encode(Graph(x, adjacency)))
    assert (summary - 0.5).abs().max() <= bound
    assert layer.weight.abs().max() <= math.sqrt(6 / (500 + 256))  # Xavier, so that the bound is 0.02
    assert (summary - 0.5).abs().max() < 0.02
    assert summary.min() >= 0.5 - slope * bound  # what is below zero is scaled by the slope


def test_the_summary_is_constant_for_the_sigmoid_too() -> None:
    """A sigmoid's output near 1/2 has a mean near 1/2, and sigmoid(1/2) = 0.62."""
    x = torch.rand(200, 500)
    model = DGI(summary="mean", num_features=500, **(SHARED | {"activation": "sigmoid"}))
    graph = Graph(x / x.sum(dim=1, keepdim=True), normalised_adjacency(torch.randint(200, (2, 600)), 200))
    summary = model.summarise(model.encode(graph))
    assert (summary - torch.sigmoid(torch.tensor(0.5))).abs().max() < 0.01


@pytest.mark.parametrize(("num_positive", "num_negative"), [(10, 10), (20, 10)])
def test_a_blind_scorer_loses_log_2(num_positive: int, num_negative: int) -> None:
    loss = group_discrimination_loss(torch.zeros(num_positive), torch.zeros(num_negative))
    assert loss.item() == pytest.approx(math.log(2))


def test_with_the_summary_at_zero_dgi_is_blind(small_graph: Graph) -> None:
    """Then only the bias scores, the same for all: no gradient reaches the encoder (the first column of Table 3)."""
    model = DGI(summary=0.0, num_features=24, **SHARED)
    loss = model.loss(small_graph)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert all(p.grad.abs().max() == 0 for p in model.encoder.parameters())


def test_a_constant_summary_makes_dgi_a_weighted_sum(small_graph: Graph) -> None:
    """h' W (c 1) = c h . (W 1): DGI with a constant summary is group discrimination with a linear aggregation."""
    model = DGI(summary=0.5, num_features=24, **SHARED)
    h = model.encode(small_graph)
    (logits,) = model.discriminator(model.summarise(h), h)
    weight = model.discriminator.weight[0]
    torch.testing.assert_close(logits, (h * (0.5 * weight.sum(dim=1))).sum(dim=1))


@pytest.mark.parametrize(
    ("p", "q"), [([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]), ([0.9, 0.1], [0.1, 0.9]), ([0.25] * 4, [0.25] * 4)]
)
def test_the_optimum_of_the_loss_is_the_jensen_shannon_divergence(p: list[float], q: list[float]) -> None:
    """Positive samples from p, negative ones from q: the best scorer reaches -2 loss = 2 JS(p, q) - 2 log 2.

    Each value is drawn as often as its probability says, and one logit per value is fitted by L-BFGS.
    """
    counts = torch.tensor([p, q], dtype=torch.float64).mul(100).round().long()
    logits = torch.zeros(len(p), dtype=torch.float64, requires_grad=True)

    def loss() -> torch.Tensor:
        return group_discrimination_loss(*(logits.repeat_interleave(count) for count in counts))

    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    mean = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    divergence = sum((a * math.log(a / m) + b * math.log(b / m)) / 2 for a, b, m in zip(p, q, mean, strict=True))
    assert -2 * loss().item() == pytest.approx(2 * divergence - 2 * math.log(2), abs=1e-8)
