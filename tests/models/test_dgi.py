"""DGI against its published form, node by node."""

from __future__ import annotations

import pytest
import torch

from src.graph import Graph
from src.models import DGI
from tests.conftest import SHARED


@pytest.mark.parametrize("summary", ["mean", 0.4])
def test_loss_and_gradients_equal_the_bilinear_scores_of_all_nodes(small_graph: Graph, summary: str | float) -> None:
    model = DGI(summary=summary, num_features=24, **SHARED)
    torch.nn.init.normal_(model.bilinear.bias)
    torch.manual_seed(4)
    loss = model.loss(small_graph)
    torch.manual_seed(4)
    shuffled = small_graph.features[torch.randperm(60)]
    h, h_corrupted = model.encode(small_graph), model.encode(Graph(shuffled, small_graph.adjacency))
    s = torch.sigmoid(h.mean(dim=0)) if summary == "mean" else torch.full((16,), 0.4)
    logits = model.bilinear(torch.cat([h, h_corrupted]), s.expand(120, 16).contiguous()).squeeze(1)
    targets = torch.cat([torch.ones(60), torch.zeros(60)])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(expected, parameters), torch.autograd.grad(loss, parameters), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_batches_of_nodes_are_refused(small_graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"set dataset\.loader=full"):
        DGI(summary="mean", num_features=24, **SHARED).loss(small_graph, torch.tensor([0, 1]))


def test_unknown_summary() -> None:
    with pytest.raises(ValueError, match="summary is 'median'; it can be 'mean' or a number"):
        DGI(summary="median", num_features=24, **SHARED)
