"""MVGRL without summaries and bilinear weight, Zheng et al. (NeurIPS 2022), Eq. 12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from src.graph import Graph
from src.models.discriminator import GroupDiscriminator
from src.models.views import TwoViews
from src.ops.checks import check_choice
from src.ops.losses import group_discrimination_loss
from src.ops.sparse import to_dense

SAMPLES = ("graph", "diffused", "corrupted_graph", "corrupted_diffused")


class MVGRLBCE(TwoViews):
    """Tell the nodes of a graph and of its diffusion from those of their corrupted copies, 4N samples in all.

    ``left_out`` names sets of samples that do not enter the loss. A view that has none left is not trained, and the
    embedding does without it.
    """

    def __init__(self, aggregation: str, left_out: Sequence[str], **shared: Any) -> None:
        super().__init__(**shared)
        for name in left_out:
            check_choice("left_out", name, SAMPLES)
        if set(SAMPLES[:2]) <= set(left_out) or set(SAMPLES[2:]) <= set(left_out):
            raise ValueError(f"left_out is {list(left_out)}: the loss needs a set of either group, {SAMPLES}")
        self.save_hyperparameters(ignore="cache_dir", logger=False)
        self.discriminator = GroupDiscriminator(shared["hidden_dim"], 0, "none", aggregation)

    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        logits = dict(zip(SAMPLES, self.discriminator(*self.both_views(graph, targets)), strict=True))
        positive, negative = (
            torch.cat([to_dense(logits[name]) for name in names if name not in self.hparams["left_out"]])
            for names in (SAMPLES[:2], SAMPLES[2:])
        )
        return group_discrimination_loss(positive, negative)

    def encode(self, graph: Graph) -> Tensor:
        view, diffused = self.encode_views(graph)
        left_out = set(self.hparams["left_out"])
        if {"diffused", "corrupted_diffused"} <= left_out:
            return view
        return diffused if {"graph", "corrupted_graph"} <= left_out else view + diffused
