"""What every encoder is, and the activations after its layers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from src.ops.activation import prelu
from src.ops.diffusion import Diffusion
from src.ops.groups import Group
from src.ops.groupwise import SeparateGroup
from src.ops.sparse import SparseMatrix, to_dense


class PReLU(nn.PReLU):
    """PReLU with one slope, at first 0.25, and a gradient several times cheaper than PyTorch's own."""

    def forward(self, x: Tensor) -> Tensor:
        return prelu(x, self.weight)


Embeddings = Tensor | Group | SeparateGroup
"""Of one group, shape (B, D'): made, or not made before it is known what for (see ``src.ops``: groups, groupwise)."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "prelu": PReLU,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
}


class Encoder(nn.Module, ABC):
    """From features and a graph to one vector for each node.

    Args:
        num_features: D.
        hidden_dim: D', the width of every layer.
        num_layers: 1 or more.
        activation: After every layer, a key of ``ACTIVATIONS``.
    """

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, activation: str) -> None:
        super().__init__()
        self.num_layers = num_layers

    @abstractmethod
    def forward(self, features: Tensor | SparseMatrix, adjacency: SparseMatrix | Diffusion) -> Tensor:
        """Return the embeddings of all nodes, shape (N, D'), from features (N, D) and adjacency (N, N)."""

    def both_groups(
        self,
        features: Tensor | SparseMatrix,
        adjacency: SparseMatrix | Diffusion,
        permutation: Tensor,
        kept_columns: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> tuple[Embeddings, Embeddings]:
        """Return the embeddings of the graph and of its corrupted copy: here by a plain pass over all nodes for each.

        Args:
            features: X, shape (N, D).
            adjacency: A, or a diffusion of it, shape (N, N).
            permutation: Order of the features in the corrupted copy, int64, shape (N,).
            kept_columns: Mask over the feature columns, shape (D,); None keeps all.
            targets: Nodes to embed, int64, shape (B,); None for all.

        Returns:
            Positive and negative group, each of shape (B, D').
        """
        x = to_dense(features) if kept_columns is None else to_dense(features) * kept_columns
        nodes, size = (slice(None), len(x)) if targets is None else (targets, len(targets))
        parameters = tuple(self.parameters())
        return (
            SeparateGroup(lambda x: self(x, adjacency)[nodes], x, parameters, size),
            SeparateGroup(lambda x: self(x[permutation], adjacency)[nodes], x, parameters, size),
        )
