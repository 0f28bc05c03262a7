"""DGI against its published form, node by node."""

from __future__ import annotations

import math

import pytest
import torch

from src.graph import Graph
from src.models import DGI
from src.models.discriminator import BilinearDiscriminator
from tests.conftest import SHARED


@pytest.mark.parametrize("targets", [None, [3, 58, 0]])
@pytest.mark.parametrize("summary", ["mean", 0.4])
def test_loss_and_gradients_equal_the_bilinear_scores_of_all_nodes(
    small_graph: Graph, summary: str | float, targets: list[int] | None
) -> None:
    model = DGI(summary=summary, num_features=24, **SHARED)
    torch.nn.init.normal_(model.discriminator.bias)
    nodes = torch.arange(60) if targets is None else torch.tensor(targets)
    torch.manual_seed(4)
    loss = model.loss(small_graph, None if targets is None else nodes)
    torch.manual_seed(4)
    shuffled = small_graph.features[torch.randperm(60)]
    h, h_corrupted = model.encode(small_graph)[nodes], model.encode(Graph(shuffled, small_graph.adjacency))[nodes]
    s = torch.sigmoid(h.mean(dim=0)) if summary == "mean" else torch.full((16,), 0.4)
    weight, bias = model.discriminator.weight, model.discriminator.bias
    logits = torch.nn.functional.bilinear(
        torch.cat([h, h_corrupted]), s.expand(2 * len(nodes), 16).contiguous(), weight, bias
    ).squeeze(1)
    labels = torch.cat([torch.ones(len(nodes)), torch.zeros(len(nodes))])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(expected, parameters), torch.autograd.grad(loss, parameters), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_the_bilinear_weight_starts_as_that_of_pytorch() -> None:
    bound = math.sqrt(6 / (200**2 + 200))  # Xavier: one output, 200 x 200 inputs
    weight = BilinearDiscriminator(200).weight.detach()
    assert 0.99 * bound < weight.abs().max() <= bound


def test_unknown_summary() -> None:
    with pytest.raises(ValueError, match="summary is 'median'; it can be 'mean' or a number"):
        DGI(summary="median", num_features=24, **SHARED)
