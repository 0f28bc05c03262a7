"""Matrix-free smoothing against the dense inverse and the dense powers."""

import pytest
import torch

from src.ops.diffusion import mean_of_powers, personalised_pagerank
from src.ops.propagation import normalised_adjacency


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.9, 1.0])
def test_pagerank_equals_the_dense_inverse(edges: torch.Tensor, alpha: float) -> None:
    adjacency = normalised_adjacency(edges, 7)
    x = torch.rand(7, 4)
    exact = alpha * torch.linalg.inv(torch.eye(7) - (1 - alpha) * adjacency.to_dense()) @ x
    for tolerance in (1e-2, 1e-5):
        error = (personalised_pagerank(adjacency, x, alpha, tolerance) - exact).norm()
        assert error <= tolerance * (x - exact).norm() + 1e-5  # the bound that the docstring states, and rounding


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5])
def test_pagerank_refuses_other_alphas(edges: torch.Tensor, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\]"):
        personalised_pagerank(normalised_adjacency(edges, 7), torch.rand(7, 4), alpha)


def test_mean_of_powers(edges: torch.Tensor) -> None:
    adjacency = normalised_adjacency(edges, 7)
    x = torch.rand(7, 4)
    before = x.clone()
    a = adjacency.to_dense()
    torch.testing.assert_close(mean_of_powers(adjacency, x, 2), (x + a @ x + a @ a @ x) / 3)
    torch.testing.assert_close(mean_of_powers(adjacency, x, 0), x)
    torch.testing.assert_close(x, before)
