"""A synthetic graph: communities, a few hubs, and features that hint at the class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from src.data.datamodule import InMemoryDataModule


class SyntheticDataModule(InMemoryDataModule):
    """A degree-corrected block model, Karrer & Newman (2011), with class-dependent bags of words.

    Args:
        num_nodes, num_edges, num_features, num_classes: Sizes. Pairs that are drawn twice count once, so the graph
            has somewhat fewer than ``num_edges`` undirected edges.
        homophily: Share of the edges drawn within a class, in [0, 1].
        degree_exponent: Degrees follow a power law with this exponent, above 2; the smaller, the larger the hubs.
        words_per_node: Words drawn for each node; a feature is 1 where its word was drawn. 0: features are standard
            normal instead, whatever the class.
        topic_share: Share of a node's words drawn from its own class's part of the vocabulary, in [0, 1].
        graph_seed: Of the graph itself, apart from the seeds of the split and the run.
        **shared: The arguments of ``InMemoryDataModule``.
    """

    def __init__(
        self,
        num_nodes: int,
        num_edges: int,
        num_features: int,
        num_classes: int,
        homophily: float,
        degree_exponent: float,
        words_per_node: int,
        topic_share: float,
        graph_seed: int,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if not 1 <= num_classes <= min(num_nodes, num_features):
            raise ValueError(
                f"dataset.num_classes is {num_classes}; it must be at least 1, and at most the numbers of nodes "
                f"({num_nodes}) and features ({num_features})"
            )
        if degree_exponent <= 2:
            raise ValueError(f"dataset.degree_exponent is {degree_exponent}; it must be above 2")
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self.num_features, self.num_classes = num_features, num_classes
        self.homophily, self.degree_exponent = homophily, degree_exponent
        self.words_per_node, self.topic_share = words_per_node, topic_share
        self.graph_seed = graph_seed

    def load(self) -> Data:
        generator = torch.Generator().manual_seed(self.graph_seed)
        classes = torch.arange(self.num_nodes) % self.num_classes
        classes = classes[torch.randperm(self.num_nodes, generator=generator)]
        return Data(x=self._features(classes, generator), edge_index=self._edges(classes, generator), y=classes)

    def _edges(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw both ends of each edge in proportion to their weights, the second within the class of the first or
        anywhere."""
        uniform = torch.rand(self.num_nodes, generator=generator, dtype=torch.float64)
        weight = (1 - uniform) ** (-1 / (self.degree_exponent - 1))  # Pareto
        by_class = torch.argsort(classes, stable=True)
        cumulative = weight[by_class].cumsum(0)
        bounds = torch.cat([cumulative.new_zeros(1), cumulative[torch.bincount(classes).cumsum(0) - 1]])

        def draw(low: Tensor, high: Tensor) -> Tensor:
            point = low + (high - low) * torch.rand(low.shape, generator=generator, dtype=torch.float64)
            return by_class[torch.searchsorted(cumulative, point).clamp_(max=self.num_nodes - 1)]

        zero, total = cumulative.new_zeros(self.num_edges), bounds[-1].expand(self.num_edges)
        source = draw(zero, total)
        within = torch.rand(self.num_edges, generator=generator) < self.homophily
        own = classes[source]
        target = draw(torch.where(within, bounds[own], zero), torch.where(within, bounds[own + 1], total))
        return to_undirected(torch.stack([source, target]), num_nodes=self.num_nodes)

    def _features(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw each node's words from its class's slice of the vocabulary, or from all of it; or normal numbers."""
        if self.words_per_node == 0:
            return torch.randn(self.num_nodes, self.num_features, generator=generator)
        shape = (self.num_nodes, self.words_per_node)
        slice_size = self.num_features // self.num_classes
        topical = torch.randint(slice_size, shape, generator=generator) + slice_size * classes[:, None]
        anywhere = torch.randint(self.num_features, shape, generator=generator)
        words = torch.where(torch.rand(shape, generator=generator) < self.topic_share, topical, anywhere)
        return torch.zeros(self.num_nodes, self.num_features).scatter_(1, words, 1.0)
