"""Contrastive Multi-View Representation Learning on Graphs, Hassani & Khasahmadi (ICML 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from src.graph import Graph
from src.models.discriminator import BilinearDiscriminator, mean_summary, summary_statistics
from src.models.views import TwoViews
from src.ops.losses import group_discrimination_loss
from src.ops.sparse import to_dense


class MVGRL(TwoViews):
    """Score the nodes of each view against the summary of the other, and tell both views from corrupted copies."""

    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        self.save_hyperparameters(ignore="cache_dir", logger=False)
        self.discriminator = BilinearDiscriminator(shared["hidden_dim"])

    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        groups = self.both_views(graph, targets)
        view, diffused, corrupted_view, corrupted_diffused = map(to_dense, groups)
        by_view = self.discriminator(mean_summary(view), diffused, corrupted_diffused)
        by_diffused = self.discriminator(mean_summary(diffused), view, corrupted_view)
        positive, negative = (torch.cat(logits) for logits in zip(by_view, by_diffused, strict=True))
        return group_discrimination_loss(positive, negative)

    def statistics(self, graph: Graph) -> dict[str, float]:
        return summary_statistics(mean_summary(self.encode_views(graph)[0]))
