"""Graph Group Discrimination, Zheng et al. (NeurIPS 2022), Algorithm 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from src.graph import Graph
from src.models.base import Method
from src.models.discriminator import GroupDiscriminator
from src.ops.augmentation import drop_edges, keep_columns
from src.ops.checks import check_range
from src.ops.corruption import random_permutation
from src.ops.losses import group_discrimination_loss
from src.ops.propagation import add_power


class GGD(Method):
    """Tell the nodes of a graph from those of a corrupted copy; embed with H + A^n H."""

    def __init__(
        self,
        projector_layers: int,
        projector_activation: str,
        aggregation: str,
        feature_drop: float,
        edge_drop: float,
        hops: int,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_range("feature_drop", feature_drop, 0, below=1)
        check_range("edge_drop", edge_drop, 0, below=1)
        check_range("hops", hops, 0)
        self.save_hyperparameters(logger=False)
        self.discriminator = GroupDiscriminator(
            shared["hidden_dim"], projector_layers, projector_activation, aggregation
        )

    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        adjacency = drop_edges(graph.adjacency, self.hparams["edge_drop"])
        kept_columns = keep_columns(graph.num_features, self.hparams["feature_drop"], graph.device)
        permutation = random_permutation(graph.num_nodes, graph.device)
        positive, negative = self.encoder.both_groups(graph.features, adjacency, permutation, kept_columns, targets)
        return group_discrimination_loss(*self.discriminator(positive, negative))

    def embed(self, graph: Graph) -> Tensor:
        return add_power(graph.adjacency, self.encode(graph), self.hparams["hops"])
