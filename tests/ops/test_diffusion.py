"""Matrix-free smoothing against the dense inverse, the dense exponential and the dense powers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from src.ops.diffusion import Diffusion, heat_kernel, mean_of_powers, personalised_pagerank, strongest_entries
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix


def dense_pagerank(adjacency: Tensor, alpha: float) -> Tensor:
    """alpha (I - (1 - alpha) A)^-1 in float64."""
    return alpha * torch.linalg.inv(torch.eye(len(adjacency)) - (1 - alpha) * adjacency.double())


def dense_heat(adjacency: Tensor, time: float) -> Tensor:
    """exp(-time (I - A)) in float64."""
    return torch.matrix_exp(-time * (torch.eye(len(adjacency)) - adjacency.double()))


CASES = [(personalised_pagerank, dense_pagerank, alpha) for alpha in (0.05, 0.2, 0.9, 1.0)]
CASES += [(heat_kernel, dense_heat, time) for time in (0.0, 0.5, 5.0, 30.0)]
Case = tuple[Callable[..., Diffusion], Callable[..., Tensor], float]


@pytest.fixture
def adjacency(edges: Tensor) -> SparseMatrix:
    return normalised_adjacency(edges, 7)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[2]}")
def test_products_equal_the_dense_ones_to_the_tolerance(edges: Tensor, case: Case, tolerance: float) -> None:
    make, make_dense, strength = case
    for adjacency in (normalised_adjacency(edges, 7), normalised_adjacency(torch.randint(200, (2, 500)), 200)):
        x = torch.randn(adjacency.shape[0], 4)
        error = make(adjacency, strength, tolerance) @ x - make_dense(adjacency.to_dense(), strength) @ x.double()
        assert (error.norm(dim=0) <= tolerance * x.norm(dim=0) + 1e-6).all()  # 1e-6: rounding in float32


def test_the_series_is_short(adjacency: SparseMatrix) -> None:
    assert len(personalised_pagerank(adjacency, 0.2, 1e-5).coefficients) == 18
    assert len(personalised_pagerank(adjacency, 1.0, 1e-5).coefficients) == 1


def test_the_gradient_is_the_same_product(adjacency: SparseMatrix) -> None:
    diffusion = personalised_pagerank(adjacency.to(torch.float64), 0.2, 1e-9)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: diffusion @ z, x)


@pytest.mark.parametrize("block_entries", [1, 7 * 3, 2**24])
@pytest.mark.parametrize("top_k", [1, 3, 7, 100])
def test_strongest_entries_are_those_of_the_dense_matrix(edges: Tensor, top_k: int, block_entries: int) -> None:
    adjacency = normalised_adjacency(edges, 7)
    dense = dense_pagerank(adjacency.to_dense(), 0.2).float()
    found = strongest_entries(personalised_pagerank(adjacency, 0.2, 1e-7), top_k, block_entries)
    smallest_kept = dense.topk(min(top_k, 7), dim=1).values[:, -1:]
    expected = torch.where((dense >= smallest_kept - 1e-6) & (dense > 1e-6), dense, 0)
    kept = found.to_dense()
    torch.testing.assert_close(kept[kept > 0], dense[kept > 0], atol=1e-6, rtol=0)
    assert found.row_lengths.tolist() == (dense > 1e-6).sum(dim=1).clamp(max=top_k).tolist()
    torch.testing.assert_close(kept.sum(dim=1), expected.topk(min(top_k, 7), dim=1).values.sum(dim=1))


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5])
def test_pagerank_refuses_other_alphas(adjacency: SparseMatrix, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\]"):
        personalised_pagerank(adjacency, alpha)


def test_other_settings_out_of_range(adjacency: SparseMatrix) -> None:
    with pytest.raises(ValueError, match="time is -1; it must be at least 0"):
        heat_kernel(adjacency, -1)
    with pytest.raises(ValueError, match="tolerance must be greater than 0, got 0"):
        personalised_pagerank(adjacency, 0.2, 0)
    with pytest.raises(ValueError, match="top_k is 0; it must be at least 1"):
        strongest_entries(personalised_pagerank(adjacency, 0.2), 0)


def test_mean_of_powers(adjacency: SparseMatrix) -> None:
    x = torch.rand(7, 4)
    before = x.clone()
    a = adjacency.to_dense()
    torch.testing.assert_close(mean_of_powers(adjacency, x, 2), (x + a @ x + a @ a @ x) / 3)
    torch.testing.assert_close(mean_of_powers(adjacency, x, 0), x)
    torch.testing.assert_close(x, before)
