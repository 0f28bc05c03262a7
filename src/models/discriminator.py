"""Discriminators, from embeddings to logits: of groups, and of nodes against the summary of a graph."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from src.models.encoders import ACTIVATIONS, Embeddings
from src.ops.aggregation import AGGREGATIONS
from src.ops.checks import check_choice, check_range
from src.ops.groupwise import SeparateLogits
from src.ops.sparse import to_dense


class GroupDiscriminator(nn.Module):
    """Projector of linear layers, then an aggregation of each row to one logit.

    Without an activation between the layers, and with an aggregation that is linear too, projector and aggregation
    together are one vector: sum_j (h W + b)_j = h . (W 1) + 1'b. ``forward`` then multiplies by that vector, which
    gives the same logits and gradients at O(N D') instead of O(K N D'^2).

    Args:
        hidden_dim: D'.
        num_layers: K >= 0; 0 leaves the embeddings as they are.
        activation: Between the projector's layers, a key of ``ACTIVATIONS``; ``none`` as in the authors' code.
        aggregation: ``sum``, ``mean``, ``min``, ``max``, or ``linear`` (a learned weight for each dimension).
    """

    ones: Tensor

    def __init__(self, hidden_dim: int, num_layers: int, activation: str, aggregation: str) -> None:
        super().__init__()
        check_range("projector_layers", num_layers, 0)
        check_choice("projector_activation", activation, ["none", *ACTIVATIONS])
        check_choice("aggregation", aggregation, [*AGGREGATIONS, "linear"])
        self.projector = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(num_layers))
        self.activation = None if activation == "none" else ACTIVATIONS[activation]()
        self.linear = nn.Linear(hidden_dim, 1) if aggregation == "linear" else None
        self.aggregation = aggregation
        self.register_buffer("ones", torch.ones(hidden_dim), persistent=False)

    def forward(self, *groups: Embeddings) -> list[Tensor | SeparateLogits]:
        """Return the logits of each group: for embeddings of shape (N, D'), logits of shape (N,)."""
        collapses = self.activation is None or len(self.projector) < 2
        if collapses and self.aggregation in ("sum", "mean", "linear"):
            weight, bias = self._collapsed()
            return [embeddings @ weight + bias for embeddings in groups]
        return [self.plain(to_dense(embeddings)) for embeddings in groups]

    def plain(self, embeddings: Tensor) -> Tensor:
        """Return the logits of one group layer by layer: what ``forward`` must equal."""
        x = embeddings
        for depth, layer in enumerate(self.projector):
            x = layer(x if depth == 0 or self.activation is None else self.activation(x))
        return self.linear(x).squeeze(1) if self.linear is not None else AGGREGATIONS[self.aggregation](x)

    def _collapsed(self) -> tuple[Tensor, Tensor]:
        """Weight (D',) and bias () of the linear map that projector and aggregation together are."""
        if self.linear is not None:
            weight, bias = self.linear.weight[0], self.linear.bias[0]
        else:
            weight, bias = self.ones / (len(self.ones) if self.aggregation == "mean" else 1), self.ones.new_zeros(())
        for layer in cast(list[nn.Linear], list(reversed(self.projector))):
            weight, bias = (weight[None] @ layer.weight)[0], bias + layer.bias @ weight
        return weight, bias


class BilinearDiscriminator(nn.Module):
    """The score h' W s + b of each node against one summary vector, with Xavier weights and the bias at zero.

    The scores of all nodes are H (W s): a vector is made first, and no N x D' x D' product is formed.
    """

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, hidden_dim, hidden_dim))  # a single score, as in nn.Bilinear
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, summary: Tensor, *groups: Tensor) -> list[Tensor]:
        """Return the logits of each group of shape (N, D') against a summary of shape (D',), each of shape (N,)."""
        direction = self.weight[0] @ summary
        return [embeddings @ direction + self.bias for embeddings in groups]


def mean_summary(embeddings: Tensor) -> Tensor:
    """Return the summary vector s, shape (D',): the sigmoid of the mean embedding."""
    return torch.sigmoid(embeddings.mean(dim=0))


def summary_statistics(summary: Tensor) -> dict[str, float]:
    """Return mean, population standard deviation and range (largest less smallest) of the elements."""
    return {
        "summary_mean": summary.mean().item(),
        "summary_std": summary.std(correction=0).item(),
        "summary_range": (summary.max() - summary.min()).item(),
    }
