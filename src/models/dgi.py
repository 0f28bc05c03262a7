"""Deep Graph Infomax, Veličković et al. (ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from src.graph import Graph
from src.models.base import Method
from src.ops.corruption import random_permutation
from src.ops.losses import group_discrimination_loss


class DGI(Method):
    """Score each node against a summary of the graph, sigma(h' W s + b), and tell the graph from a corrupted copy.

    The scores of all nodes are H (W s): a vector is made first, and no N x D' x D' product is formed.
    """

    def __init__(self, summary: str | float, **shared: Any) -> None:
        super().__init__(**shared)
        if isinstance(summary, str) and summary != "mean":
            raise ValueError(f"summary is {summary!r}; it can be 'mean' or a number")
        self.save_hyperparameters()
        self.bilinear = nn.Bilinear(shared["hidden_dim"], shared["hidden_dim"], 1)
        nn.init.xavier_uniform_(self.bilinear.weight)
        nn.init.zeros_(self.bilinear.bias)

    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        if targets is not None:
            raise ValueError("DGI's summary is a mean over all nodes: set dataset.loader=full")
        positive, negative = self.encoder.both_groups(graph, random_permutation(graph.num_nodes, graph.device))
        direction = self.bilinear.weight[0] @ self.summarise(positive)
        return group_discrimination_loss(
            positive @ direction + self.bilinear.bias, negative @ direction + self.bilinear.bias
        )

    def summarise(self, embeddings: Tensor) -> Tensor:
        """Return the summary vector s, shape (D',): the sigmoid of the mean embedding, or the constant asked for."""
        summary = self.hparams["summary"]
        if summary == "mean":
            return torch.sigmoid(embeddings.mean(dim=0))
        return embeddings.new_full((embeddings.shape[1],), summary)
