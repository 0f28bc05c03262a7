"""Both groups of nodes out of one layer, whose activations are not made where only a linear score of them is wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.ops import kernels
from src.ops.activation import prelu
from src.ops.memory import empty
from src.ops.sparse import Rows, SparseMatrix, threads


@dataclass
class Activations:
    """PReLU(S Z + b), not computed before it is known what for.

    With a sparse S, their products with one vector, and the gradients of these, come from one pass over S and one over
    its transpose: of the activations nothing is kept but whether each is above 0. With a dense S, S Z is made and kept.

    Args:
        matrix: S, dense or sparse, shape (M, N), on the CPU.
        dense: Z, shape (N, D').
        bias: b, shape (D',).
        slope: Of the PReLU, shape (1,).
    """

    matrix: Tensor | SparseMatrix
    dense: Tensor
    bias: Tensor
    slope: Tensor
    _logits: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def __matmul__(self, vector: Tensor) -> Tensor:
        """Return the products with a vector, shape (M,), made once for all groups that share these activations."""
        if self._logits is None or self._logits[0] is not vector:
            rest = self.bias, self.slope, vector
            if isinstance(self.matrix, SparseMatrix):
                logits = _SparseLogits.apply(self.matrix, self.dense, *rest)
            else:
                logits = _DenseLogits.apply(self.matrix @ self.dense, *rest)
            self._logits = vector, logits
        return self._logits[1]

    @cached_property
    def embeddings(self) -> Tensor:
        """The activations themselves, shape (M, D')."""
        return prelu(self.matrix @ self.dense + self.bias, self.slope)

    def chunk(self, number: int) -> list[Group]:
        """Return the rows as groups of equal size, in order."""
        size = self.matrix.shape[0] // number
        return [Group(self, slice(i * size, (i + 1) * size)) for i in range(number)]


@dataclass(frozen=True)
class Group:
    """Some rows of activations: the embeddings of one group."""

    activations: Activations
    rows: slice

    def __matmul__(self, vector: Tensor) -> Tensor:
        return (self.activations @ vector)[self.rows]

    def to_dense(self) -> Tensor:
        return self.activations.embeddings[self.rows]


class _SparseLogits(torch.autograd.Function):
    """PReLU(S Z + b) v.

    With c for the gradient of the logits and D for the derivative of PReLU, which is 1 or the slope, all gradients
    follow from u = S' (c D), since sum_i c_i PReLU(S Z + b)_ik = sum_j Z_jk u_jk + b_k sum_i c_i D_ik.
    """

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: Tensor, bias: Tensor, slope: Tensor, vector: Tensor) -> Tensor:
        dense, bias, slope, vector = (x.to(matrix.values.dtype).contiguous() for x in (dense, bias, slope, vector))
        above = empty(matrix.shape[0], len(vector), torch.uint8)
        logits = dense.new_empty(matrix.shape[0])
        arrays = (x.detach().numpy() for x in (dense, bias, slope, vector, above, logits))
        kernels.discriminate(*matrix.compressed_rows, *arrays, threads())
        ctx.save_for_backward(dense, bias, slope, vector, above)
        ctx.matrix = matrix
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor, Tensor, Tensor]:
        dense, bias, slope, vector, above = ctx.saved_tensors
        gradient, dense_gradient = gradients[0].contiguous(), empty(len(dense), dense.shape[1], dense.dtype)
        sums = dense.new_zeros(3, threads(), len(vector))
        arrays = (x.detach().numpy() for x in (dense, slope, vector, above, gradient, dense_gradient, *sums))
        kernels.discriminate_backward(*ctx.matrix.compressed_columns, *arrays, threads())
        weighted, below, kept = sums.sum(dim=1)
        total = gradient.sum()
        bias_share = slope * total + (1 - slope) * kept  # sum_i c_i D_ik
        slope_gradient = vector @ (below + bias * (total - kept))
        return None, dense_gradient, vector * bias_share, slope_gradient.view(1), weighted + bias * bias_share


class _DenseLogits(torch.autograd.Function):
    """PReLU(X + b) v."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, slope: Tensor, vector: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        x, vector = x.to(bias.dtype), vector.to(bias.dtype).contiguous()  # both are half as precise under autocast
        logits = x.new_empty(len(x))
        kernels.score(*(t.detach().numpy() for t in (x, bias, slope, vector, logits)), threads())
        ctx.save_for_backward(x, bias, slope, vector)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, bias, slope, vector = ctx.saved_tensors
        x_gradient = torch.empty_like(x)
        sums = x.new_zeros(3, threads(), len(vector))
        arrays = (x, bias, slope, vector, gradients[0].contiguous(), x_gradient, *sums)
        kernels.score_backward(*(t.detach().numpy() for t in arrays), threads())
        derivative, weighted, negative = sums.sum(dim=1)
        return x_gradient.to(ctx.dtype), vector * derivative, (vector @ negative).view(1), weighted


def stack_permuted(matrix: SparseMatrix, permutation: Tensor) -> SparseMatrix:
    """Return [S; S P], where P X stands for the rows of X in the order of ``permutation``.

    Args:
        matrix: S, shape (N, N), on the CPU.
        permutation: Each of 0..N-1 exactly once, int64, shape (N,).
    """
    num_nodes, rows, columns = matrix.shape[0], matrix.compressed_rows, matrix.compressed_columns
    order = permutation.numpy().astype(rows.columns.dtype)
    stacked = SparseMatrix(
        torch.from_numpy(np.concatenate([rows.starts, rows.starts[1:] + rows.starts[-1]])),
        torch.from_numpy(np.concatenate([rows.columns, order[rows.columns]])),
        torch.from_numpy(np.tile(rows.values, 2)),
        (2 * num_nodes, num_nodes),
    )
    inverse = np.empty_like(order)
    inverse[order] = np.arange(num_nodes, dtype=order.dtype)
    transposed = Rows(
        np.zeros(num_nodes + 1, rows.starts.dtype),
        np.empty(2 * len(rows.columns), rows.columns.dtype),
        np.empty(2 * len(rows.values), rows.values.dtype),
    )
    kernels.stack(*columns, inverse, num_nodes, *transposed, threads())
    stacked.compressed_columns = transposed  # known without sorting
    return stacked
