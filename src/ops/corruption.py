"""Corruption: the negative group is the same graph with its features dealt to other nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def random_permutation(num_nodes: int, device: torch.device | str | None = None) -> Tensor:
    """Return a uniformly random order of the nodes 0..N-1, int64, shape (N,)."""
    return torch.randperm(num_nodes, device=device)


def permute_rows(x: Tensor, permutation: Tensor) -> Tensor:
    """Return x[permutation], with a gradient that is one more gather instead of a scatter.

    Args:
        x: Dense, shape (N, D).
        permutation: Each of 0..N-1 exactly once, int64, shape (N,).
    """
    return _Permute.apply(x, permutation)


def inverse_permutation(permutation: Tensor) -> Tensor:
    """Return the order that undoes another: x[permutation][inverse] = x, int64, shape (N,)."""
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(len(permutation), device=permutation.device)
    return inverse


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, permutation: Tensor) -> Tensor:
        ctx.permutation = permutation
        return x[permutation]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][inverse_permutation(ctx.permutation)], None
