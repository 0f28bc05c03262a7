"""DGI without summary and bilinear weight, Zheng et al. (NeurIPS 2022), Eq. 4: group discrimination at its plainest."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from src.graph import Graph
from src.models.base import Method
from src.models.discriminator import GroupDiscriminator
from src.ops.corruption import random_permutation
from src.ops.losses import group_discrimination_loss


class DGIBCE(Method):
    """Aggregate each embedding to one number, and tell the nodes of a graph from those of a corrupted copy."""

    def __init__(self, aggregation: str, **shared: Any) -> None:
        super().__init__(**shared)
        self.save_hyperparameters(logger=False)
        self.discriminator = GroupDiscriminator(shared["hidden_dim"], 0, "none", aggregation)

    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        permutation = random_permutation(graph.num_nodes, graph.device)
        positive, negative = self.encoder.both_groups(graph.features, graph.adjacency, permutation, targets=targets)
        return group_discrimination_loss(*self.discriminator(positive, negative))
