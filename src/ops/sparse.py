"""Sparse matrices in compressed rows (CSR), multiplied with dense ones."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

torch.sparse.check_sparse_tensor_invariants.disable()  # what PyTorch does by default, said aloud to spare its warning
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


class SparseMatrix:
    """A constant sparse matrix S; ``S @ dense`` is differentiable in the dense matrix.

    The gradient of ``S @ Z`` is ``S' g``: one more product, with a transpose that is computed once, or with S itself
    where S is symmetric. Products run in the precision of S, also under autocast, since half-precision products of
    CSR matrices do not exist on the CPU.

    Args:
        csr: Sparse CSR tensor, shape (rows, columns). Columns within a row may repeat; repeated entries add up.
        symmetric: S = S', entry by entry. Needs the columns of each row sorted and free of repetition.
    """

    def __init__(self, csr: Tensor, symmetric: bool = False) -> None:
        self.csr = csr
        self.symmetric = symmetric

    @classmethod
    def from_parts(
        cls, row_starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int], symmetric: bool = False
    ) -> SparseMatrix:
        """Build from row starts (rows + 1), columns (E) and values (E)."""
        csr = torch.sparse_csr_tensor(row_starts, columns, values, shape)
        return cls(csr, symmetric)

    @classmethod
    def from_dense(cls, dense: Tensor) -> SparseMatrix:
        """Keep the non-zero entries of a dense matrix."""
        return cls(dense.to_sparse_csr())

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.csr.shape
        return rows, columns

    @property
    def row_starts(self) -> Tensor:
        return self.csr.crow_indices()

    @property
    def columns(self) -> Tensor:
        return self.csr.col_indices()

    @property
    def values(self) -> Tensor:
        return self.csr.values()

    @cached_property
    def row_lengths(self) -> Tensor:
        """Stored entries of each row, int64, shape (rows,)."""
        return self.row_starts.diff()

    @cached_property
    def rows(self) -> Tensor:
        """Row of each stored entry, int64, shape (E,)."""
        return torch.repeat_interleave(self.row_lengths)

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges (source, target) as PyG has them, without self-loops and entries of 0, int64, shape (2, edges)."""
        kept = (self.rows != self.columns) & (self.values != 0)
        return torch.stack([self.columns[kept], self.rows[kept]])

    @cached_property
    def mirror(self) -> Tensor:
        """Position of the entry (j, i) for each entry (i, j) of a symmetric matrix, int64, shape (E,)."""
        return torch.argsort(self.columns, stable=True)

    @cached_property
    def transposed(self) -> Tensor:
        """S' in CSR form."""
        if self.symmetric:
            return self.csr
        order = torch.argsort(self.columns, stable=True)
        row_starts = self.row_starts.new_zeros(self.shape[1] + 1)
        torch.cumsum(torch.bincount(self.columns, minlength=self.shape[1]), 0, out=row_starts[1:])
        shape = (self.shape[1], self.shape[0])
        return SparseMatrix.from_parts(row_starts, self.rows[order], self.values[order], shape).csr

    def with_values(self, values: Tensor) -> SparseMatrix:
        """Return the same pattern with other values."""
        return SparseMatrix.from_parts(self.row_starts, self.columns, values, self.shape, self.symmetric)

    def mask_columns(self, mask: Tensor) -> SparseMatrix:
        """Return S diag(mask), with a mask of shape (columns,)."""
        return self.with_values(self.values * mask[self.columns])

    def select_rows(self, rows: Tensor) -> SparseMatrix:
        """Return the given rows, in the given order; a row may be asked for more than once.

        Args:
            rows: Row numbers, int64, shape (B,).
        """
        lengths = self.row_lengths[rows]
        row_starts = self.row_starts.new_zeros(len(rows) + 1)
        torch.cumsum(lengths, 0, out=row_starts[1:])
        shift = torch.repeat_interleave(self.row_starts[rows] - row_starts[:-1], lengths)
        entries = torch.arange(len(shift), device=shift.device) + shift
        return SparseMatrix.from_parts(
            row_starts, self.columns[entries], self.values[entries], (len(rows), self.shape[1])
        )

    def multiply_sparse(self, other: SparseMatrix) -> SparseMatrix:
        """Return S @ other as a matrix whose rows list the contributions one by one (columns may repeat)."""
        picked = other.select_rows(self.columns)
        values = picked.values * torch.repeat_interleave(self.values, picked.row_lengths)
        row_starts = picked.row_starts[self.row_starts]
        return SparseMatrix.from_parts(row_starts, picked.columns, values, (self.shape[0], other.shape[1]))

    def to(self, *args: Any, **kwargs: Any) -> SparseMatrix:
        """Move or convert the values like ``Tensor.to``."""
        return SparseMatrix(self.csr.to(*args, **kwargs), self.symmetric)

    def to_dense(self) -> Tensor:
        return self._dense

    @cached_property
    def _dense(self) -> Tensor:
        return self.csr.to_dense()

    def __matmul__(self, dense: Tensor) -> Tensor:
        return _Product.apply(dense.to(self.csr.dtype), self)


class _Product(torch.autograd.Function):
    """S Z with the gradient S' g."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        with torch.autocast(dense.device.type, enabled=False):
            return torch.sparse.mm(matrix.csr, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        with torch.autocast(gradients[0].device.type, enabled=False):
            return torch.sparse.mm(ctx.matrix.transposed, gradients[0].contiguous()), None


def to_dense(x: Tensor | SparseMatrix) -> Tensor:
    """Return X as a tensor, whichever it is."""
    return x.to_dense() if isinstance(x, SparseMatrix) else x
