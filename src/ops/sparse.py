"""Sparse matrices in compressed rows (CSR), multiplied with dense ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils.sparse import index2ptr

from src.ops import kernels
from src.ops.memory import empty

torch.sparse.check_sparse_tensor_invariants.disable()  # what PyTorch does by default, said aloud to spare its warning
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


BLOCK_ROWS = 512
"""Rows of S that one block of its transpose takes: their gradients, 256 wide, fill half a second-level cache."""


class Rows(NamedTuple):
    """A matrix in compressed rows, as the kernels take it: row starts, columns and values."""

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class SparseMatrix:
    """A constant sparse matrix S; ``S @ dense`` is differentiable in the dense matrix.

    The gradient of ``S @ Z`` is ``S' g``: one more product, with a transpose that is computed once, or with S itself
    where S is symmetric. Products run in the precision of S, also under autocast, since half-precision products of
    CSR matrices do not exist on the CPU. There they are kernels of our own, 2 to 4 times as fast as PyTorch's.

    The parts may be memory-mapped; nothing here reads more of them than it is asked for.

    Args:
        row_starts: Of each row in the two others, and their length, integers, shape (rows + 1,).
        columns: Of the stored entries, integers, shape (E,). Within a row they may repeat; repeated entries add up.
        values: Of the stored entries, shape (E,).
        shape: Numbers of rows and columns.
        symmetric: S = S', entry by entry. Needs the columns of each row sorted and free of repetition.
    """

    def __init__(
        self, row_starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int], symmetric: bool = False
    ) -> None:
        self.row_starts = row_starts
        self.columns = columns
        self.values = values
        self.shape = shape
        self.symmetric = symmetric

    @classmethod
    def from_dense(cls, dense: Tensor) -> SparseMatrix:
        """Keep the non-zero entries of a dense matrix."""
        return cls.from_csr(dense.to_sparse_csr())

    @classmethod
    def from_csr(cls, csr: Tensor, symmetric: bool = False) -> SparseMatrix:
        """Take PyTorch's own sparse CSR tensor."""
        rows, columns = csr.shape
        return cls(csr.crow_indices(), csr.col_indices(), csr.values(), (rows, columns), symmetric)

    @cached_property
    def csr(self) -> Tensor:
        """S as PyTorch's own."""
        columns = self.columns.to(self.row_starts.dtype)  # it takes indices of one width only
        return torch.sparse_csr_tensor(self.row_starts, columns, self.values, self.shape)

    @property
    def device(self) -> torch.device:
        return self.values.device

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
    def edge_matrix(self) -> Tensor:
        """The same edges as PyG has them in sparse form: a row for each target, all values 1, in CSR form."""
        sources, targets = self.edge_index
        ones = torch.ones_like(sources, dtype=self.values.dtype)
        return torch.sparse_csr_tensor(index2ptr(targets, self.shape[0]), sources, ones, self.shape)

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
        row_starts = index2ptr(self.columns[order].to(self.row_starts.dtype), self.shape[1])
        shape = (self.shape[1], self.shape[0])
        return SparseMatrix(row_starts, self.rows[order], self.values[order], shape).csr

    @cached_property
    def compressed_rows(self) -> Rows:
        """S for the kernels, with indices of 32 bits where they suffice."""
        starts, columns = (
            indices.to(torch.int32 if bound < 2**31 else torch.int64).numpy()
            for indices, bound in ((self.row_starts, len(self.values)), (self.columns, self.shape[1]))
        )
        return Rows(starts, columns, self.values.numpy())

    def _rows_of(self, kept_columns: Tensor | None) -> tuple[np.ndarray, ...]:
        """Row starts, row ends, columns and values for the kernels, of the columns that are kept; None keeps all."""
        starts, columns, values = self.compressed_rows
        if kept_columns is None:
            return starts, starts[1:], columns, values
        ends, *kept = (np.empty_like(part) for part in (starts[1:], columns, values))
        kernels.select_columns(starts, columns, values, as_mask(kept_columns), ends, *kept, threads())
        return starts, ends, *kept

    @cached_property
    def compressed_columns(self) -> Rows:
        """S' for the kernels, in one block."""
        if self.symmetric:
            return self.compressed_rows
        blocks = self._transpose(block_rows=max(1, self.shape[0]))
        return blocks._replace(starts=blocks.starts[0])

    @cached_property
    def _column_blocks(self) -> Rows:
        """S' for the kernels, in blocks of at least ``BLOCK_ROWS`` columns with 8 entries in a row on average."""
        num_blocks = min(self.shape[0] // BLOCK_ROWS, len(self.values) // (8 * max(1, self.shape[1])))
        if num_blocks < 2:
            return self.compressed_columns._replace(starts=self.compressed_columns.starts[None])
        return self._transpose(block_rows=-(-self.shape[0] // num_blocks))

    def _transpose(self, block_rows: int) -> Rows:
        rows = self.compressed_rows
        num_blocks = max(1, -(-self.shape[0] // block_rows))
        starts = np.zeros((num_blocks, self.shape[1] + 1), rows.starts.dtype)
        result = Rows(starts, np.empty_like(rows.columns), np.empty_like(rows.values))
        kernels.transpose(*rows, block_rows, *result)
        return result

    def with_values(self, values: Tensor) -> SparseMatrix:
        """Return the same pattern with other values."""
        return SparseMatrix(self.row_starts, self.columns, values, self.shape, self.symmetric)

    def multiply(self, dense: Tensor, kept_columns: Tensor | None = None) -> Tensor:
        """Return S diag(kept_columns) dense, at no cost for columns that are not kept.

        Args:
            dense: Shape (columns, width).
            kept_columns: 0 or 1 for each column, shape (columns,); None keeps all.
        """
        return _Product.apply(dense.to(self.values.dtype), self, kept_columns)

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
        return SparseMatrix(row_starts, self.columns[entries], self.values[entries], (len(rows), self.shape[1]))

    def multiply_sparse(self, other: SparseMatrix, kept_columns: Tensor | None, max_entries: int) -> SparseMatrix:
        """Return S @ other @ diag(kept_columns), on the CPU; columns within a row come in no order.

        Args:
            other: Shape (columns, width).
            kept_columns: 0 or 1 for each column of ``other``, shape (width,); None keeps all.
            max_entries: Number of terms of all sums, or more: for each entry of S, the length of a row of ``other``.
        """
        rows, others = self.compressed_rows, other.compressed_rows
        out = Rows(
            np.zeros(self.shape[0] + 1, others.starts.dtype),
            np.empty(max_entries, others.columns.dtype),
            np.empty(max_entries, others.values.dtype),
        )
        place = np.full(other.shape[1], -1, out.starts.dtype)
        count = kernels.multiply_sparse(*rows, *others, as_mask(kept_columns), place, *out)
        starts, columns, values = map(torch.from_numpy, (out.starts, out.columns[:count], out.values[:count]))
        return SparseMatrix(starts, columns, values, (self.shape[0], other.shape[1]))

    def to(self, *args: Any, **kwargs: Any) -> SparseMatrix:
        """Move or convert the values like ``Tensor.to``."""
        values = self.values.to(*args, **kwargs)
        if values is self.values:
            return self
        row_starts, columns = self.row_starts.to(values.device), self.columns.to(values.device)
        return SparseMatrix(row_starts, columns, values, self.shape, self.symmetric)

    def to_dense(self) -> Tensor:
        return self._dense

    @cached_property
    def _dense(self) -> Tensor:
        return self.csr.to_dense()

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.multiply(dense)


class _Product(torch.autograd.Function):
    """S M Z with the gradient M S' g."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, kept: Tensor | None) -> Tensor:
        ctx.matrix, ctx.kept = matrix, kept
        if dense.device.type == "cpu":
            return run(kernels.multiply, matrix._rows_of(kept), dense, matrix.shape[0])
        with torch.autocast(dense.device.type, enabled=False):
            return torch.sparse.mm(matrix.csr, dense if kept is None else dense * kept[:, None])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        matrix, kept, gradient = ctx.matrix, ctx.kept, gradients[0]
        if gradient.device.type == "cpu":
            blocks = (*matrix._column_blocks, as_mask(kept))
            return run(kernels.multiply_blocks, blocks, gradient, matrix.shape[1]), None, None
        with torch.autocast(gradient.device.type, enabled=False):
            product = torch.sparse.mm(matrix.transposed, gradient.contiguous())
        return product if kept is None else product * kept[:, None], None, None


def run(kernel: Any, matrix: Sequence[np.ndarray], dense: Tensor, num_rows: int) -> Tensor:
    """Return what one of the two kernels for products makes of a matrix as it takes it, shape (num_rows, width)."""
    out = empty(num_rows, dense.shape[1], dense.dtype)
    kernel(*matrix, dense.detach().contiguous().numpy(), out.numpy(), threads())
    return out


def load_kernels() -> None:
    """Call a kernel on nothing much: numba's first call of any takes half a second, which is no part of a step."""
    SparseMatrix.from_dense(torch.ones(1, 1)) @ torch.ones(1, 1)


def as_mask(kept: Tensor | None) -> np.ndarray:
    """Return a mask as the kernels take it, for which an empty one keeps all."""
    return np.empty(0, np.bool_) if kept is None else kept.bool().numpy()


def threads() -> int:
    """Return the number of threads that kernels use, which is PyTorch's."""
    before = torch.get_num_threads()
    number = min(before, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(number)
    if torch.get_num_threads() != before:  # the first call gives OpenMP, which PyTorch has too, all cores
        torch.set_num_threads(before)
    return number


class Convertible(Protocol):
    """What can be made a tensor: a sparse matrix, or a group of embeddings that are not computed yet."""

    def to_dense(self) -> Tensor: ...


def to_dense(x: Tensor | Convertible) -> Tensor:
    """Return X as a tensor, whichever it is."""
    return x if isinstance(x, Tensor) else x.to_dense()
