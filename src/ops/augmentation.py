"""Augmentation: columns of the features and edges of the graph left out of one step."""

from __future__ import annotations

import torch
from torch import Tensor

from src.ops.propagation import normalise
from src.ops.sparse import SparseMatrix


def keep_columns(num_features: int, drop: float, device: torch.device | str | None = None) -> Tensor:
    """Return a mask over the feature columns: 0 for floor(drop * D) columns drawn at random, 1 for the others.

    Args:
        num_features: D.
        drop: Share of the columns to leave out, in [0, 1).

    Returns:
        float32, shape (D,).
    """
    mask = torch.ones(num_features, device=device)
    num_dropped = int(drop * num_features)
    if num_dropped:
        mask[torch.randperm(num_features, device=device)[:num_dropped]] = 0
    return mask


def drop_edges(adjacency: SparseMatrix, drop: float) -> SparseMatrix:
    """Leave out each undirected edge with probability ``drop``, in both directions, and normalise what is left.

    Args:
        adjacency: Normalised adjacency with self-loops, symmetric, shape (N, N).
        drop: In [0, 1). Self-loops always stay; 0 returns the adjacency unchanged.

    Returns:
        The normalised adjacency of the thinned graph. It keeps the pattern, with zeros for the edges left out.

    Raises:
        ValueError: If edges are to be left out of an adjacency that is not symmetric.
    """
    if drop == 0:
        return adjacency
    if not adjacency.symmetric:
        raise ValueError(
            f"edge_drop is {drop}; edges are left out in both directions, which samples of neighbours do not have: set "
            "model.edge_drop=0, or dataset.loader=full or rows"
        )
    kept = torch.rand(adjacency.values.shape, device=adjacency.values.device) >= drop
    below = adjacency.rows > adjacency.columns
    kept = torch.where(below, kept[adjacency.mirror], kept) | (adjacency.rows == adjacency.columns)
    return normalise(adjacency.with_values(kept.to(adjacency.values.dtype)))
