"""Products of a graph that need not fit into memory, made in blocks of columns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from src.ops.checks import check_disk
from src.ops.progress import watched
from src.ops.sparse import SparseMatrix

PIECE_BYTES = 2**26
"""Size of the pieces in which rows are read and written."""


class MappedMatrix(SparseMatrix):
    """A symmetric sparse matrix in memory maps, the products of which are made in blocks of columns.

    Args:
        row_starts, columns, values, shape: As of ``SparseMatrix``.
        folder: Where results that are larger than ``memory_mb`` lie, in files that vanish with their last use.
        memory_mb: Of a block and its product together, in MB (10^6 bytes).
    """

    def __init__(
        self,
        row_starts: Tensor,
        columns: Tensor,
        values: Tensor,
        shape: tuple[int, int],
        folder: Path,
        memory_mb: float,
    ) -> None:
        super().__init__(row_starts, columns, values, shape, symmetric=True)
        self.folder = folder
        self.memory_mb = memory_mb

    def map_columns(
        self,
        start: Callable[[slice], Tensor],
        width: int,
        hops: int,
        finish: Callable[[Tensor, slice, slice], Tensor],
    ) -> Tensor:
        """Return S^hops X, shape (N, width), from no more columns of X at a time than memory is given for.

        Args:
            start: Returns the columns of X in a slice.
            width: Columns of X.
            hops: Number of products.
            finish: From entries of the product, their rows and their columns, what is to be put in their place; called
                for a few rows at a time.
        """
        num_nodes, size = self.shape[0], self.values.element_size()
        out = self.empty(width)
        blocks = list(slices(width, max(1, int(self.memory_mb * 1e6 / (2 * num_nodes * size)))))
        for columns in watched(blocks, width, "multiplying in blocks", lambda block: block.stop - block.start):
            x = start(columns)
            for _ in range(hops):
                x = self @ x
            for rows in slices(num_nodes, max(1, PIECE_BYTES // (size * x.shape[1]))):
                out[rows, columns] = finish(x[rows], rows, columns)
            del x
        return out

    def check_room(self, width: int, number: int) -> None:
        """Raise OSError if there is no room on the disk for so many results of a width that do not fit into memory."""
        needed = self.shape[0] * width * self.values.element_size()
        if needed > self.memory_mb * 1e6:
            check_disk(self.folder, number * needed)

    def empty(self, width: int) -> Tensor:
        """Return room for one row of ``width`` for each row of S, in memory if it fits, else in a file without a name.

        Raises:
            OSError: If there is no room for it on the disk.
        """
        shape, dtype = (self.shape[0], width), torch.empty(0, dtype=self.values.dtype).numpy().dtype
        if shape[0] * width * dtype.itemsize <= self.memory_mb * 1e6:
            return torch.empty(shape, dtype=self.values.dtype)
        self.check_room(width, 1)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            return torch.from_numpy(np.memmap(file, dtype, "w+", shape=shape))


def matrix_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return X W, of which X may be less precise than W."""
    if x.dtype == weight.dtype:
        return x @ weight
    out = weight.new_empty(len(x), weight.shape[1])
    for rows in slices(len(x), max(1, PIECE_BYTES // (x.shape[1] * weight.element_size()))):
        torch.mm(x[rows].to(weight.dtype), weight, out=out[rows])
    return out


def slices(length: int, size: int) -> Iterator[slice]:
    """Yield slices of ``size`` that cover 0..length-1 in order."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))
