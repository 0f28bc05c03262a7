"""A graph on disk, made piece by piece and opened by memory maps, so that it need not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Source:
    """What a large graph is made from, read in pieces.

    Attributes:
        num_nodes, num_edges, num_features: N; the edges that ``edges`` yields, before duplicates are merged; D.
        edges: Yields pieces of the edges, integers, shape (2, any). Either direction of an edge stands for both;
            duplicates and loops do no harm.
        features: Yields pieces of the features in the order of the nodes, floating point, shape (any, D).
        classes: Class of each node, -1 where it is not known, shape (N,).
        split: Nodes of ``train``, ``validation`` and ``test``.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    edges: Callable[[], Iterator[np.ndarray]]
    features: Callable[[], Iterator[np.ndarray]]
    classes: np.ndarray
    split: Mapping[str, np.ndarray]
