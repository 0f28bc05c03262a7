"""Both groups of nodes out of one layer, whose activations are not made where only a linear score of them is wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from src.ops import kernels
from src.ops.activation import prelu
from src.ops.corruption import permute_rows
from src.ops.diffusion import Diffusion
from src.ops.discriminate import discriminate, discriminate_backward
from src.ops.sparse import SparseMatrix, threads


def products(
    matrix: Tensor | SparseMatrix | Diffusion, dense: Tensor, number: int, permutation: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the rows of S Z in groups of equal size, in order; with a permutation P, of S Z and S P Z together.

    Args:
        matrix: S, shape (M, N).
        dense: Z, shape (N, D').
        number: Of groups.
        permutation: P as the order in which the rows of Z are taken, int64, shape (N,). It needs two groups.
    """
    if permutation is None:
        return (matrix @ dense).chunk(number)
    return matrix @ dense, matrix @ permute_rows(dense, permutation)


@dataclass
class Activations:
    """PReLU(S Z + b) in groups of rows, not computed before it is known what for.

    With a sparse S, their products with one vector, and the gradients of these, come from one pass over S and one over
    its transpose: of the activations nothing is kept but whether each is above 0. With a dense S, S Z is made and kept.

    Args:
        matrix, dense, number, permutation: What ``products`` takes. A dense S must be on the CPU, and a sparse one on a
            device that has kernels (``src.ops.discriminate``). A permutation needs a sparse S.
        bias: b, shape (D',).
        slope: Of the PReLU, shape (1,).
    """

    matrix: Tensor | SparseMatrix
    dense: Tensor
    bias: Tensor
    slope: Tensor
    number: int
    permutation: Tensor | None = None
    _logits: tuple[Tensor, tuple[Tensor, ...]] | None = field(default=None, repr=False)

    def logits(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Return the products of each group with a vector, made once for all of them."""
        if self._logits is None or self._logits[0] is not vector:
            rest = self.bias, self.slope, vector
            if isinstance(self.matrix, SparseMatrix):
                logits = _SparseLogits.apply(self.matrix, self.permutation, self.dense, *rest)
            else:
                assert self.permutation is None, "permuted groups of a dense matrix"
                logits = _DenseLogits.apply(self.matrix @ self.dense, *rest)
            self._logits = vector, logits.chunk(self.number)
        return self._logits[1]

    @cached_property
    def embeddings(self) -> list[Tensor]:
        """The activations of each group themselves, of D' columns."""
        groups = products(self.matrix, self.dense, self.number, self.permutation)
        return [prelu(product + self.bias, self.slope) for product in groups]

    @property
    def groups(self) -> list[Group]:
        return [Group(self, index) for index in range(self.number)]


@dataclass(frozen=True)
class Group:
    """The embeddings of one group, made or not."""

    activations: Activations
    index: int

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.activations.logits(vector)[self.index]

    def to_dense(self) -> Tensor:
        return self.activations.embeddings[self.index]


class _SparseLogits(torch.autograd.Function):
    """PReLU(S Z + b) v, and below it PReLU(S P Z + b) v where there is a permutation.

    With c for the gradient of the logits and D for the derivative of PReLU, which is 1 or the slope, all gradients
    follow from u = S' (c D), since sum_i c_i PReLU(S Z + b)_ik = sum_j Z_jk u_jk + b_k sum_i c_i D_ik. And S P has the
    rows of S' in another order for its transpose.
    """

    @staticmethod
    def forward(
        ctx: Any,
        matrix: SparseMatrix,
        permutation: Tensor | None,
        dense: Tensor,
        bias: Tensor,
        slope: Tensor,
        vector: Tensor,
    ) -> Tensor:
        dense, bias, slope, vector = (x.to(matrix.values.dtype).contiguous() for x in (dense, bias, slope, vector))
        above, logits = discriminate(matrix, permutation, dense, bias, slope, vector)
        ctx.save_for_backward(dense, bias, slope, vector, above)
        ctx.matrix, ctx.permutation = matrix, permutation
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor, Tensor]:
        dense, bias, slope, vector, above = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        dense_gradient, (weighted, below, kept) = discriminate_backward(
            ctx.matrix, ctx.permutation, dense, slope, vector, above, gradient
        )
        total = gradient.sum()
        bias_share = slope * total + (1 - slope) * kept  # sum_i c_i D_ik
        slope_gradient = vector @ (below + bias * (total - kept))
        return None, None, dense_gradient, vector * bias_share, slope_gradient.view(1), weighted + bias * bias_share


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
