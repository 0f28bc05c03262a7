"""Deep Graph Infomax, Veličković et al. (ICLR 2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from src.graph import Graph
from src.models.base import Method
from src.models.discriminator import BilinearDiscriminator, mean_summary, summary_statistics
from src.ops.corruption import random_permutation
from src.ops.losses import group_discrimination_loss
from src.ops.sparse import to_dense


class DGI(Method):
    """Score each node against a summary of the graph, and tell the graph from a corrupted copy.

    On batches of nodes the summary is that of the batch, as Veličković et al. do on large graphs.
    """

    def __init__(self, summary: str | float, **shared: Any) -> None:
        super().__init__(**shared)
        if isinstance(summary, str) and summary != "mean":
            raise ValueError(f"summary is {summary!r}; it can be 'mean' or a number")
        self.save_hyperparameters(logger=False)
        self.discriminator = BilinearDiscriminator(shared["hidden_dim"])

    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        permutation = random_permutation(graph.num_nodes, graph.device)
        groups = self.encoder.both_groups(graph.features, graph.adjacency, permutation, targets=targets)
        positive, negative = map(to_dense, groups)
        return group_discrimination_loss(*self.discriminator(self.summarise(positive), positive, negative))

    def summarise(self, embeddings: Tensor) -> Tensor:
        """Return the summary vector, shape (D',): that of the embeddings, or the constant asked for."""
        summary = self.hparams["summary"]
        return mean_summary(embeddings) if summary == "mean" else embeddings.new_full((embeddings.shape[1],), summary)

    def statistics(self, graph: Graph) -> dict[str, float]:
        return summary_statistics(self.summarise(self.encode(graph)))
