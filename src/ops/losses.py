"""Losses on logits."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from src.ops.groupwise import SeparateLogits, total


def group_discrimination_loss(positive: Tensor | SeparateLogits, negative: Tensor | SeparateLogits) -> Tensor:
    """Return the binary cross-entropy over two groups, Zheng et al. (2022), Eq. 4, a mean over all samples.

    -1 / (P + M) [sum log sigmoid(positive) + sum log(1 - sigmoid(negative))]; log 2 for a scorer that is blind.

    Args:
        positive: Logits of nodes of the graph, shape (P,).
        negative: Logits of nodes of the corrupted graph, shape (M,).

    Returns:
        Scalar, at least 0.
    """
    losses = total(lambda x: softplus(-x), positive) + total(softplus, negative)
    return losses / (len(positive) + len(negative))
