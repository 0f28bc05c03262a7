"""What flows through the project: a graph without labels, and labels without a graph."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor

from src.ops.sparse import SparseMatrix


@dataclass(frozen=True)
class Graph:
    """A graph as the methods see it. It carries no labels, so no self-supervised loss can read them.

    Attributes:
        features: X, float32, shape (N, D), dense or sparse.
        adjacency: A^ = D^-1/2 (A + I) D^-1/2, float32, shape (N, N).
    """

    features: Tensor | SparseMatrix
    adjacency: SparseMatrix

    @property
    def num_nodes(self) -> int:
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        return self.features.shape[1]

    @property
    def num_edges(self) -> int:
        """Undirected edges, without the self-loop of each node."""
        return (len(self.adjacency.values) - self.num_nodes) // 2

    @property
    def device(self) -> torch.device:
        return self.adjacency.device

    def select_features(self, nodes: Tensor) -> Tensor | SparseMatrix:
        """Return the rows ``nodes`` of X, in the precision of A."""
        if isinstance(self.features, SparseMatrix):
            return self.features.select_rows(nodes)
        return self.features[nodes].to(self.adjacency.values.dtype)

    def to(self, *args: Any, **kwargs: Any) -> Graph:
        """Move or convert both matrices like ``Tensor.to``."""
        return Graph(self.features.to(*args, **kwargs), self.adjacency.to(*args, **kwargs))


class Batch(NamedTuple):
    """One optimiser step.

    Attributes:
        graph: The whole graph, or the sample of it that the targets see.
        targets: Nodes whose samples enter the loss, int64, shape (B,); None for all.
        seed: Of everything random in the step.
    """

    graph: Graph
    targets: Tensor | None
    seed: int


@dataclass(frozen=True)
class Labels:
    """Classes and a split of the nodes; they meet the embeddings only in the evaluation.

    Attributes:
        classes: Class of each node, int64, shape (N,).
        train, validation, test: Disjoint sets of nodes, int64, sorted.
        score: Of predicted and true classes of the test nodes, each of shape (n,); the accuracy, in [0, 1].
    """

    classes: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor
    score: Callable[[np.ndarray, np.ndarray], float] = accuracy_score

    @property
    def num_classes(self) -> int:
        return int(self.classes.max()) + 1

    @property
    def sizes(self) -> list[int]:
        """Numbers of training, validation and test nodes."""
        return [len(self.train), len(self.validation), len(self.test)]

    def describe(self) -> dict[str, Any]:
        """Sizes and fingerprint of the split."""
        return {"sizes": self.sizes, "fingerprint": self.fingerprint}

    @property
    def fingerprint(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 over the three index sets: equal splits, equal fingerprints."""
        digest = hashlib.sha256()
        for nodes in (self.train, self.validation, self.test):
            digest.update(len(nodes).to_bytes(8, "little"))
            digest.update(nodes.numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]
