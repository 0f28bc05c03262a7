"""Graph convolutions on the adjacency, with a cheaper road to both groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from src.models.encoders.base import ACTIVATIONS, Embeddings, Encoder
from src.ops.activation import activated_product
from src.ops.blocks import MappedMatrix, matrix_product
from src.ops.corruption import permute_rows
from src.ops.diffusion import Diffusion
from src.ops.discriminate import has_kernels
from src.ops.groups import Activations, Group, products
from src.ops.groupwise import SeparateGroup
from src.ops.memory import empty
from src.ops.propagation import graph_power, propagate_rows, receptive_field
from src.ops.sparse import SparseMatrix


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
