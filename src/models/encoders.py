"""Encoders: from a graph to one vector for each node."""

from __future__ import annotations

import itertools
from typing import cast

import torch
from torch import Tensor, nn

from src.graph import Graph
from src.ops.activation import prelu
from src.ops.corruption import permute_rows
from src.ops.propagation import propagate_rows
from src.ops.sparse import SparseMatrix


class PReLU(nn.PReLU):
    """PReLU with one slope, at first 0.25, and a gradient several times cheaper than PyTorch's own."""

    def forward(self, x: Tensor) -> Tensor:
        return prelu(x, self.weight)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "prelu": PReLU,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
}


class GCNLayer(nn.Module):
    """sigma(A^ X W + b), Kipf & Welling (2017), Eq. 2, with Xavier weights and the bias at zero.

    Args:
        in_dim: Columns of X.
        out_dim: Columns of W.
        activation: A key of ``ACTIVATIONS``.
    """

    def __init__(self, in_dim: int, out_dim: int, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.activation = ACTIVATIONS[activation]()
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor | SparseMatrix, adjacency: SparseMatrix) -> Tensor:
        """Return the layer's output, shape (N, out_dim)."""
        return self.activate(adjacency @ (x @ self.weight))

    def activate(self, propagated: Tensor) -> Tensor:
        """Return sigma(propagated + b), where ``propagated`` stands for A^ X W."""
        return self.activation(propagated + self.bias)


class GCN(nn.Module):
    """A stack of GCN layers of one width.

    Args:
        num_features: D.
        hidden_dim: D', the width of every layer.
        num_layers: 1 or more.
        activation: After every layer, a key of ``ACTIVATIONS``.
    """

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, activation: str) -> None:
        super().__init__()
        widths = [num_features] + [hidden_dim] * num_layers
        self.layers = nn.ModuleList(GCNLayer(a, b, activation) for a, b in itertools.pairwise(widths))

    def forward(self, graph: Graph) -> Tensor:
        """Return the embeddings of all nodes, shape (N, D')."""
        first, *others = self._stack
        x = first(graph.features, graph.adjacency)
        for layer in others:
            x = layer(x, graph.adjacency)
        return x

    @property
    def _stack(self) -> list[GCNLayer]:
        return [cast(GCNLayer, layer) for layer in self.layers]

    def both_groups(
        self, graph: Graph, permutation: Tensor, kept_columns: Tensor | None = None, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the graph and of its corrupted copy, in exact arithmetic at half the cost.

        Three equalities for the first layer, with features X, column mask M and row permutation P: (X M) W = X (M W),
        so X is never copied; (P X) W = P (X W), so both groups share one dense product; and rows of A (P X) W need
        only those rows of A, so that one layer can be trained on batches of nodes.

        Args:
            graph: The graph, shape (N, D).
            permutation: Order of the features in the corrupted copy, int64, shape (N,).
            kept_columns: Mask over the feature columns, shape (D,); None keeps all.
            targets: Nodes to embed, int64, shape (B,); None for all.

        Returns:
            Positive and negative group, each of shape (B, D').

        Raises:
            ValueError: If targets are given to an encoder of several layers.
        """
        first, *others = self._stack
        if targets is None:
            weight = first.weight if kept_columns is None else first.weight * kept_columns[:, None]
            transformed = graph.features @ weight
            positive = first.activate(graph.adjacency @ transformed)
            negative = first.activate(graph.adjacency @ permute_rows(transformed, permutation))
        else:
            if others:
                raise ValueError(
                    f"batches of target nodes are exact for one layer only, and this encoder has {len(self.layers)}: "
                    "set model.num_layers=1, or dataset.loader=full"
                )
            propagated = propagate_rows(graph.adjacency, graph.features, targets, permutation)
            if kept_columns is not None:
                propagated = mask_columns(propagated, kept_columns)
            positive, negative = first.activate(propagated @ first.weight).chunk(2)
        for layer in others:
            positive, negative = layer(positive, graph.adjacency), layer(negative, graph.adjacency)
        return positive, negative


def mask_columns(x: Tensor | SparseMatrix, mask: Tensor) -> Tensor | SparseMatrix:
    """Return X diag(mask)."""
    return x.mask_columns(mask) if isinstance(x, SparseMatrix) else x * mask


ENCODERS = {"gcn": GCN}
