"""Encoders: from a graph to one vector for each node."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MLP, GATConv, GINConv, SAGEConv

from src.ops.activation import activated_product, prelu
from src.ops.blocks import MappedMatrix, matrix_product
from src.ops.corruption import permute_rows
from src.ops.diffusion import Diffusion
from src.ops.discriminate import has_kernels
from src.ops.groups import Activations, Group, products
from src.ops.groupwise import SeparateGroup
from src.ops.memory import empty
from src.ops.propagation import graph_power, propagate_rows, receptive_field
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


class GCNLayer(nn.Module):
    """sigma(A^hops X W + b), Kipf & Welling (2017), Eq. 2 with one hop, with Xavier weights and the bias at zero.

    Args:
        in_dim: Columns of X.
        out_dim: Columns of W.
        activation: A key of ``ACTIVATIONS``.
        hops: Products with the adjacency.
    """

    def __init__(self, in_dim: int, out_dim: int, activation: str, hops: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(empty(in_dim, out_dim, torch.float32))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.activation = ACTIVATIONS[activation]()
        self.hops = hops
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor | SparseMatrix, adjacency: SparseMatrix | Diffusion) -> Tensor:
        """Return the layer's output, shape (N, out_dim); without gradients, in blocks of a graph that is on disk."""
        if isinstance(adjacency, MappedMatrix) and isinstance(x, Tensor) and not torch.is_grad_enabled():
            return adjacency.map_columns(
                lambda columns: matrix_product(x, self.weight[:, columns]),
                self.weight.shape[1],
                self.hops,
                lambda propagated, rows, columns: self.activation(propagated + self.bias[columns]),
            )
        return self.propagate(x @ self.weight, adjacency)

    def propagate(self, transformed: Tensor, adjacency: SparseMatrix | Diffusion) -> Tensor:
        """Return the layer's output, where ``transformed`` stands for X W."""
        return self.activate(graph_power(adjacency, transformed, self.hops))

    def transform(self, before: GCNLayer, propagated: Tensor) -> Tensor:
        """Return H W for the output H of the layer before, which is made anew for the gradient instead of kept."""
        slope = before.slope
        if slope is not None and propagated.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
            return activated_product(propagated, before.bias, slope, self.weight)
        return checkpoint(
            lambda x: before.activate(x) @ self.weight, propagated, use_reentrant=False, preserve_rng_state=False
        )

    def activate(self, propagated: Tensor) -> Tensor:
        """Return the layer's output, where ``propagated`` stands for A^hops X W."""
        return self.activation(propagated + self.bias)

    def groups(
        self,
        operator: Tensor | SparseMatrix | Diffusion,
        dense: Tensor,
        number: int,
        permutation: Tensor | None = None,
    ) -> Sequence[Tensor | Group]:
        """Return the layer's output in groups of rows, where ``products`` of the same arguments are A^hops X W.

        It is not computed yet where that may save work: with an activation that is a PReLU, and kernels for the device.
        """
        slope, device = self.slope, dense.device.type
        has_kernel = has_kernels(device) if isinstance(operator, SparseMatrix) else device == "cpu"
        if slope is None or isinstance(operator, Diffusion) or not has_kernel:
            return [self.activate(product) for product in products(operator, dense, number, permutation)]
        return Activations(operator, dense, self.bias, slope, number, permutation).groups

    @property
    def slope(self) -> Tensor | None:
        """Slope of the activation below 0, shape (1,), where it is a PReLU or a special case of one."""
        if isinstance(self.activation, nn.PReLU):
            return self.activation.weight
        if isinstance(self.activation, nn.LeakyReLU):
            return self.bias.new_full((1,), self.activation.negative_slope)
        return self.bias.new_zeros(1) if isinstance(self.activation, nn.ReLU) else None


def masked_product(x: Tensor | SparseMatrix, weight: Tensor, kept_columns: Tensor | None) -> Tensor:
    """Return X M W, with M as a mask over the columns of X; None keeps all.

    On the CPU columns that are not kept cost nothing, if X is sparse or lies column by column: then the others are
    copied, which takes a tenth of the product. Elsewhere (X M) W = X (M W).
    """
    if isinstance(x, SparseMatrix):
        return x.multiply(weight, kept_columns)
    if kept_columns is None:
        return x @ weight
    if x.device.type == "cpu" and x.T.is_contiguous():
        kept = kept_columns.nonzero()[:, 0]
        if len(kept) < len(weight):
            out = empty(len(kept), len(x), x.dtype)
            return torch.index_select(x.T, 0, kept, out=out).T @ weight.index_select(0, kept)
    return x @ (weight * kept_columns[:, None])


class GCN(Encoder):
    """A stack of GCN layers of one width, with a cheaper road to both groups."""

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, activation: str) -> None:
        super().__init__(num_features, hidden_dim, num_layers, activation)
        widths = [num_features] + [hidden_dim] * num_layers
        self.layers = nn.ModuleList(GCNLayer(a, b, activation) for a, b in itertools.pairwise(widths))

    def forward(self, features: Tensor | SparseMatrix, adjacency: SparseMatrix | Diffusion) -> Tensor:
        x = features
        for layer in self._stack:
            x = layer(x, adjacency)
        return cast(Tensor, x)

    @property
    def _stack(self) -> list[GCNLayer]:
        return [cast(GCNLayer, layer) for layer in self.layers]

    def both_groups(
        self,
        features: Tensor | SparseMatrix,
        adjacency: SparseMatrix | Diffusion,
        permutation: Tensor,
        kept_columns: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> tuple[Embeddings, Embeddings]:
        """Return what two plain passes give, in exact arithmetic at half the cost.

        Equalities for the first layer, with features X, column mask M and row permutation P: (P X) M W = P (X M W), so
        both groups share one dense product, which skips what M leaves out; rows of A (P X) W need only those rows of A,
        so that batches of nodes need no more than what they see. And A (X W) = (A X) W, where the right side
        needs no product with A' for the gradient, as X has none: so it is the cheaper one for few rows or columns.
        With more than one hop, each group is made by itself, when it is known what for (``src.ops.groupwise``).
        """
        first, *others = self._stack
        hops = first.hops + len(others)
        factors: Sequence[SparseMatrix | Diffusion]
        if targets is not None:
            nodes, factors = receptive_field(adjacency, targets, hops - 1)
            rows = propagate_rows(adjacency, features, nodes, permutation, kept_columns)
            if hops == 1:
                x, y = first.groups(rows, first.weight, 2)
                return x, y
            x, y = (rows @ first.weight).chunk(2)
            return self._separate(x, factors), self._separate(y, factors)
        transform = partial(masked_product, weight=first.weight, kept_columns=kept_columns)
        if hops == 1:
            x, y = first.groups(adjacency, transform(features), 2, permutation)
            return x, y
        factors = [adjacency] * (hops - 1)
        dense: Tensor
        if isinstance(features, Tensor) and features.shape[1] <= first.weight.shape[1]:
            dense, start = features.contiguous(), lambda x: transform(adjacency @ x)
        else:
            dense, start = transform(features), lambda x: adjacency @ x
        return (
            self._separate(dense, factors, start),
            self._separate(dense, factors, lambda x: start(permute_rows(x, permutation))),
        )

    def _separate(
        self,
        dense: Tensor,
        factors: Sequence[SparseMatrix | Diffusion],
        start: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> SeparateGroup:
        """Return a group, where ``start`` makes A X W of ``dense``, and ``factors`` are the adjacencies that follow."""

        def encode(dense: Tensor) -> Tensor | Group:
            x = start(dense)
            for hop, factor in enumerate(factors):
                if len(self._stack) > 1:  # of one hop each; else it is one layer of more
                    x = self._stack[hop + 1].transform(self._stack[hop], x)
                if hop + 1 < len(factors):
                    x = factor @ x
            return self._stack[-1].groups(factors[-1], x, 1)[0]

        return SeparateGroup(encode, dense, tuple(self.parameters()), factors[-1].shape[0])


class SGC(GCN):
    """sigma(A^K X W + b), Wu et al. (2019): one weight, K = ``num_layers`` hops."""

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, activation: str) -> None:
        super().__init__(num_features, hidden_dim, 1, activation)
        self.num_layers = num_layers
        self._stack[0].hops = num_layers


class PyGEncoder(Encoder):
    """A stack of one of PyG's convolutions. It sees which nodes are joined, not the weights of the edges.

    What sums over neighbours is given a matrix, which saves PyG a row of features for each edge: a step of SAGE on
    Computers takes 0.9 instead of 4.2 s. Not under autocast, since half-precise products with it do not exist.
    """

    sums = True

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, activation: str) -> None:
        super().__init__(num_features, hidden_dim, num_layers, activation)
        widths = [num_features] + [hidden_dim] * num_layers
        self.convolutions = nn.ModuleList(self.convolution(a, b) for a, b in itertools.pairwise(widths))
        self.activations = nn.ModuleList(ACTIVATIONS[activation]() for _ in range(num_layers))

    @staticmethod
    @abstractmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        """Return one layer, without activation."""

    def forward(self, features: Tensor | SparseMatrix, adjacency: SparseMatrix | Diffusion) -> Tensor:
        if isinstance(adjacency, Diffusion):
            raise ValueError(
                f"{type(self).__name__} needs edges, and a matrix-free diffusion has none: set model.top_k=32, or "
                "model.encoder=gcn or sgc"
            )
        x = to_dense(features)
        as_matrix = self.sums and not torch.is_autocast_enabled(x.device.type)
        edges = adjacency.edge_matrix if as_matrix else adjacency.edge_index
        for convolution, activation in zip(self.convolutions, self.activations, strict=True):
            x = activation(convolution(x, edges))
        return x


class GAT(PyGEncoder):
    """Attention over the neighbours, Veličković et al. (2018), with one head."""

    sums = False

    @staticmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        return GATConv(in_dim, out_dim)


class SAGE(PyGEncoder):
    """The mean of the neighbours beside the node itself, Hamilton et al. (2017)."""

    @staticmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        return SAGEConv(in_dim, out_dim)


class GIN(PyGEncoder):
    """The sum of a node and its neighbours through two linear layers, Xu et al. (2019).

    Without batch normalisation: it would tell the two groups apart by their statistics.
    """

    @staticmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        return GINConv(MLP([in_dim, out_dim, out_dim], norm=None))


ENCODERS: dict[str, type[Encoder]] = {"gcn": GCN, "gat": GAT, "sage": SAGE, "gin": GIN, "sgc": SGC}
