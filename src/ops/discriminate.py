"""The logits of a layer's last activations in one pass over a sparse matrix: by numba on the CPU, Triton on a GPU."""

from __future__ import annotations

import importlib.util
from functools import cache

import numpy as np
import torch
from torch import Tensor

from src.ops import kernels
from src.ops.corruption import inverse_permutation
from src.ops.memory import empty
from src.ops.sparse import SparseMatrix, threads


@cache
def has_kernels(device_type: str) -> bool:
    """Whether the functions here take tensors on such a device."""
    return device_type == "cpu" or (device_type == "cuda" and importlib.util.find_spec("triton") is not None)


def discriminate(
    matrix: SparseMatrix, permutation: Tensor | None, dense: Tensor, bias: Tensor, slope: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor]:
    """Return whether each element of S Z + b is above 0, and the logits PReLU(S Z + b) v; no activation is kept.

    With a permutation P, the same of S P Z + b stands below.

    Args:
        matrix: S, shape (M, N).
        permutation: P as the order in which the rows of Z are taken, int64, shape (N,), or None.
        dense: Z, contiguous, shape (N, D').
        bias: b, shape (D',).
        slope: Of the PReLU, shape (1,).
        vector: v, shape (D',).

    Returns:
        0 or 1 as uint8, shape (M, D'), and logits, shape (M,); with a permutation, of 2 M rows.
    """
    if dense.device.type != "cpu":
        from src.ops import gpu_kernels

        return gpu_kernels.discriminate(matrix, permutation, dense, bias, slope, vector)
    num_rows = matrix.shape[0] * (1 if permutation is None else 2)
    above, logits = empty(num_rows, len(vector), torch.uint8), dense.new_empty(num_rows)
    arrays = (x.detach().numpy() for x in (dense, bias, slope, vector, above, logits))
    kernels.discriminate(*matrix.compressed_rows, _as_order(permutation, matrix), *arrays, threads())
    return above, logits


def discriminate_backward(
    matrix: SparseMatrix,
    permutation: Tensor | None,
    dense: Tensor,
    slope: Tensor,
    vector: Tensor,
    above: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what the gradients of ``discriminate`` follow from, by one pass over S'.

    Args:
        matrix, permutation, dense, slope, vector: As given to ``discriminate``.
        above: As it returned it.
        gradient: c, that of the logits, contiguous, shape (M,) or (2 M,).

    Returns:
        With D for the derivative of PReLU and u = S' (c D): the gradient of Z, which is u with its columns scaled by v,
        shape (N, D'); and sums over rows, shape (3, D'): of u * Z, of S' (c (1 - above)) * Z, and of c * above.
    """
    inverse = None if permutation is None else inverse_permutation(permutation)
    if dense.device.type != "cpu":
        from src.ops import gpu_kernels

        return gpu_kernels.discriminate_backward(matrix, inverse, dense, slope, vector, above, gradient)
    dense_gradient = empty(len(dense), dense.shape[1], dense.dtype)
    sums = dense.new_zeros(3, threads(), len(vector))
    arrays = (x.detach().numpy() for x in (dense, slope, vector, above, gradient, dense_gradient, *sums))
    kernels.discriminate_backward(*matrix.compressed_columns, _as_order(inverse, matrix), *arrays, threads())
    return dense_gradient, sums.sum(dim=1)


def _as_order(permutation: Tensor | None, matrix: SparseMatrix) -> np.ndarray:
    """Return a permutation as numba's kernels take it: indices as wide as the matrix's, and an empty one for None."""
    dtype = matrix.compressed_rows.columns.dtype
    return np.empty(0, dtype) if permutation is None else permutation.numpy().astype(dtype)
