"""Losses on logits."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def group_discrimination_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the binary cross-entropy of two groups, Zheng et al. (2022), Eq. 4, each group weighing one half.

    -1/2 [mean log sigmoid(positive) + mean log(1 - sigmoid(negative))]; log 2 for a scorer that can't tell them apart.

    Args:
        positive: Logits of the nodes of the graph, shape (N,).
        negative: Logits of the nodes of the corrupted graph, shape (N,).

    Returns:
        Scalar, at least 0.
    """
    return (softplus(-positive).mean() + softplus(negative).mean()) / 2
