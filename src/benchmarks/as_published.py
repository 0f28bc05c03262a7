"""GGD as Zheng et al. (NeurIPS 2022) publish it, with no fast road: what ours must equal, and its rival."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """PReLU(A X W + b)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.activation = nn.PReLU()
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return self.activation(torch.sparse.mm(adjacency, x @ self.weight) + self.bias)


class AsPublished(nn.Module):
    """Algorithm 1 with the sum for its aggregation; parameters in the order of ``src.models.GGD``'s.

    Args:
        num_features: D.
        hidden_dim: D'.
        num_layers: Layers of the encoder, 1 or more.
        projector_layers: Linear layers after it, without an activation between them, 0 or more.
    """

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, projector_layers: int) -> None:
        super().__init__()
        widths = [num_features] + [hidden_dim] * num_layers
        self.layers = nn.ModuleList(Layer(a, b) for a, b in itertools.pairwise(widths))
        self.projector = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(projector_layers))

    def forward(self, x: Tensor, adjacency: Tensor, permutation: Tensor, kept_columns: Tensor) -> Tensor:
        """Return the loss of one step, a scalar.

        Args:
            x: Features, dense, shape (N, D).
            adjacency: A^, sparse, shape (N, N).
            permutation: Order of the features in the corrupted graph, int64, shape (N,).
            kept_columns: Mask over the feature columns, shape (D,).
        """
        augmented = x * kept_columns
        logits = []
        for h in (augmented, augmented[permutation]):
            h = self.encode(h, adjacency)
            for linear in self.projector:
                h = linear(h)
            logits.append(h.sum(dim=1))
        labels = torch.cat([torch.ones_like(logits[0]), torch.zeros_like(logits[1])])
        return functional.binary_cross_entropy_with_logits(torch.cat(logits), labels)

    def encode(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return H, shape (N, D')."""
        for layer in self.layers:
            x = layer(x, adjacency)
        return x

    def embed(self, x: Tensor, adjacency: Tensor, hops: int) -> Tensor:
        """Return H + A^hops H, shape (N, D')."""
        h = self.encode(x, adjacency)
        return power(adjacency, h, hops) + h


def power(adjacency: Tensor, h: Tensor, hops: int) -> Tensor:
    """Return A^hops h, one product after the other."""
    for _ in range(hops):
        h = torch.sparse.mm(adjacency, h)
    return h


def adjacency_as_published(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2 made by SciPy, as a sparse tensor in coordinate form, float32, shape (N, N).

    Args:
        edge_index: Edges in both directions, each once, without self-loops, int64, shape (2, E).
        num_nodes: N.
    """
    entries = (np.ones(edge_index.shape[1], np.float32), edge_index.numpy())
    with_loops = sp.coo_matrix(entries, (num_nodes, num_nodes)) + sp.eye(num_nodes, dtype=np.float32)
    scale = sp.diags(np.asarray(with_loops.sum(axis=1)).ravel() ** -0.5)
    normalised = (scale @ with_loops @ scale).tocoo()
    places = torch.from_numpy(np.stack([normalised.row, normalised.col]).astype(np.int64))
    return torch.sparse_coo_tensor(places, torch.from_numpy(normalised.data), normalised.shape, is_coalesced=True)
