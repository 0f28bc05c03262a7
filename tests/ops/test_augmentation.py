"""Augmentation: how much is left out, and that what is left is a proper graph."""

import pytest
import torch

from src.ops.augmentation import drop_edges, keep_columns
from src.ops.propagation import normalised_adjacency


@pytest.mark.parametrize(("drop", "dropped"), [(0.0, 0), (0.2, 2), (0.29, 2), (0.99, 9)])
def test_an_exact_share_of_the_columns_is_left_out(drop: float, dropped: int) -> None:
    mask = keep_columns(10, drop)
    assert set(mask.tolist()) <= {0.0, 1.0}
    assert int((mask == 0).sum()) == dropped


def test_dropped_columns_change_from_call_to_call() -> None:
    assert not torch.equal(keep_columns(100, 0.5), keep_columns(100, 0.5))


def test_dropping_edges_equals_normalising_the_graph_without_them() -> None:
    adjacency = normalised_adjacency(torch.randint(40, (2, 120)), 40)
    thinned = drop_edges(adjacency, 0.4).to_dense()
    left = (thinned > 0).float()
    assert torch.equal(left, left.T)
    assert torch.equal(left.diagonal(), torch.ones(40))
    scale = left.sum(dim=1).rsqrt()
    torch.testing.assert_close(thinned, scale[:, None] * left * scale[None, :])
    assert (adjacency.to_dense()[left > 0] > 0).all()  # no edge that was not there


def test_share_of_dropped_edges() -> None:
    adjacency = normalised_adjacency(torch.randint(3000, (2, 40_000)), 3000)
    edges = (len(adjacency.values) - 3000) / 2
    left = (int((drop_edges(adjacency, 0.3).values > 0).sum()) - 3000) / 2
    assert left / edges == pytest.approx(0.7, abs=0.01)  # four standard errors: sqrt(0.3 * 0.7 / 39,000) = 0.0023


def test_no_drop_returns_the_adjacency_itself() -> None:
    adjacency = normalised_adjacency(torch.randint(5, (2, 9)), 5)
    assert drop_edges(adjacency, 0.0) is adjacency
