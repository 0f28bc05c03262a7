"""Smoothing over the whole graph, matrix-free: only products with the adjacency, never an N x N matrix."""

from __future__ import annotations

import math

from torch import Tensor

from src.ops.sparse import SparseMatrix


def personalised_pagerank(adjacency: SparseMatrix, x: Tensor, alpha: float, tolerance: float = 1e-3) -> Tensor:
    """Return alpha (I - (1 - alpha) A)^-1 x, Gasteiger et al. (2019), Eq. 3, by z <- (1 - alpha) A z + alpha x.

    Args:
        adjacency: A, symmetric, eigenvalues in [-1, 1], shape (N, N).
        x: Dense, shape (N, D).
        alpha: Probability of returning to the start, in (0, 1].
        tolerance: Bound on the error relative to that of the start z = x; each step shrinks it by 1 - alpha.

    Raises:
        ValueError: If alpha is outside (0, 1].
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be in (0, 1], got {alpha}")
    steps = 0 if alpha == 1 else math.ceil(math.log(tolerance) / math.log(1 - alpha))
    z = x
    for _ in range(steps):
        z = (adjacency @ z).mul_(1 - alpha).add_(x, alpha=alpha)
    return z


def mean_of_powers(adjacency: SparseMatrix, x: Tensor, hops: int) -> Tensor:
    """Return the mean of A^0 x, A^1 x, ..., A^hops x, Zhu & Koniusz (2021), Eq. 8 without its residual weight.

    Args:
        adjacency: A, shape (N, N).
        x: Dense, shape (N, D).
        hops: Number of products, 0 or more; 0 returns x.
    """
    total, power = x.clone(), x
    for _ in range(hops):
        power = adjacency @ power
        total += power
    return total.div_(hops + 1)
