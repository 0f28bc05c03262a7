"""Kernels for sparse matrices on a GPU, compiled by Triton on first use: twins of two of ``src.ops.kernels``.

Matrices come as CSR: ``starts`` (rows + 1), ``columns`` and ``values`` (E). A program takes ``BLOCK`` columns of a row
at a time. The tests compare results in Triton's interpreter and compile for GPUs; how long a step takes on one was not
measured.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from src.ops.sparse import SparseMatrix

MOST_COLUMNS = 1024
"""That a program takes at a time: eight for each thread of four warps."""

PROGRAMS = 1024
"""At most, of ``_discriminate_backward``, which keeps sums over rows for each: several for each multiprocessor."""


@triton.jit
def _discriminate(
    starts, columns, values, order, dense, bias, slope, vector, above, logits, num_rows, width, BLOCK: tl.constexpr
):
    i, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, end, below = tl.load(starts + i), tl.load(starts + i + 1), tl.load(slope)
    out = group * num_rows + i
    total = tl.zeros((BLOCK,), bias.dtype.element_ty)
    for first in range(0, width, BLOCK):
        k = first + tl.arange(0, BLOCK)
        inside = k < width
        row = tl.load(bias + k, inside, 0)
        for e in range(start, end):
            j = tl.load(columns + e).to(tl.int64)
            if group == 1:
                j = tl.load(order + j).to(tl.int64)
            row += tl.load(values + e) * tl.load(dense + j * width + k, inside, 0)
        positive = row > 0
        tl.store(above + out * width + k, positive.to(tl.uint8), inside)
        total += tl.load(vector + k, inside, 0) * tl.where(positive, row, below * row)
    tl.store(logits + out, tl.sum(total, 0))


@triton.jit
def _add_masks(start, end, columns, values, scale, masks, width, k, inside, row, total):
    for e in range(start, end):
        i = tl.load(columns + e).to(tl.int64)
        weight = tl.load(values + e) * tl.load(scale + i)
        row += tl.where(tl.load(masks + i * width + k, inside, 0) > 0, weight, 0)
        total += weight
    return row, total


@triton.jit
def _discriminate_backward(
    starts,
    columns,
    values,
    inverse,
    dense,
    slope,
    vector,
    above,
    gradient,
    dense_gradient,
    sums,
    num_rows,
    num_logits,
    width,
    TWO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < width
    low, v = tl.load(slope), tl.load(vector + k, inside, 0)
    weighted_sum, below_sum, kept_sum = tl.zeros_like(v), tl.zeros_like(v), tl.zeros_like(v)
    second = tl.full((), num_logits // 2, tl.int64)  # times the width it may take 64 bits
    for j in range(program, num_rows, programs):
        row, total = tl.zeros_like(v), tl.zeros_like(low)
        row, total = _add_masks(
            tl.load(starts + j), tl.load(starts + j + 1), columns, values, gradient, above, width, k, inside, row, total
        )
        if TWO:
            i = tl.load(inverse + j).to(tl.int64)
            row, total = _add_masks(
                tl.load(starts + i),
                tl.load(starts + i + 1),
                columns,
                values,
                gradient + second,
                above + second * width,
                width,
                k,
                inside,
                row,
                total,
            )
        u = low * total + (1 - low) * row
        dense_j = tl.load(dense + j * width + k, inside, 0)
        tl.store(dense_gradient + j * width + k, v * u, inside)
        weighted_sum += dense_j * u
        below_sum += dense_j * (total - row)
    for i in range(program, num_logits, programs):
        kept_sum += tl.where(tl.load(above + i * width + k, inside, 0) > 0, tl.load(gradient + i), 0)
    out = sums + program * width + k
    tl.store(out, weighted_sum, inside)
    tl.store(out + programs * width, below_sum, inside)
    tl.store(out + 2 * programs * width, kept_sum, inside)


def discriminate(
    matrix: SparseMatrix, permutation: Tensor | None, dense: Tensor, bias: Tensor, slope: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what ``src.ops.discriminate.discriminate`` does."""
    groups = 1 if permutation is None else 2
    above = dense.new_empty(groups * matrix.shape[0], len(vector), dtype=torch.uint8)
    logits = dense.new_empty(len(above))
    order = matrix.columns if permutation is None else permutation
    with torch.cuda.device_of(dense):
        _discriminate[matrix.shape[0], groups](
            matrix.row_starts, matrix.columns, matrix.values, order, dense, bias, slope, vector, above, logits,
            matrix.shape[0], len(vector), BLOCK=_block(vector),
        )  # fmt: skip
    return above, logits


def discriminate_backward(
    matrix: SparseMatrix,
    inverse: Tensor | None,
    dense: Tensor,
    slope: Tensor,
    vector: Tensor,
    above: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what ``src.ops.discriminate.discriminate_backward`` does, from the inverse of the permutation."""
    transposed, block = matrix.transposed, _block(vector)
    rows = transposed.crow_indices(), transposed.col_indices(), transposed.values()
    programs = min(PROGRAMS, max(len(dense), len(gradient)))
    dense_gradient, sums = torch.empty_like(dense), dense.new_empty(3, programs, len(vector))
    order = matrix.columns if inverse is None else inverse
    with torch.cuda.device_of(dense):
        _discriminate_backward[programs, triton.cdiv(len(vector), block)](
            *rows, order, dense, slope, vector, above, gradient, dense_gradient, sums,
            len(dense), len(gradient), len(vector), TWO=inverse is not None, BLOCK=block,
        )  # fmt: skip
    return dense_gradient, sums.sum(dim=1)


def _block(vector: Tensor) -> int:
    """Return the number of columns that a program takes at a time."""
    return min(MOST_COLUMNS, triton.next_power_of_2(len(vector)))
