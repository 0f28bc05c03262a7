"""Sparse products and their gradients against dense ones."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from src.ops import sparse
from src.ops.sparse import SparseMatrix


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """Dense float64 matrices in which about half of the entries are zero; whole rows and columns may be."""
    rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dense = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return dense * (torch.rand(rows, columns, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])))


@given(matrices())
@settings(deadline=None)
def test_product_and_gradient_equal_the_dense_ones(dense: Tensor) -> None:
    z = torch.randn(dense.shape[1], 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(dense.shape[0], 3, dtype=torch.float64)
    (expected_gradient,) = torch.autograd.grad((dense @ z * weights).sum(), z)
    product = SparseMatrix.from_dense(dense) @ z
    (gradient,) = torch.autograd.grad((product * weights).sum(), z)
    torch.testing.assert_close(product, dense @ z)
    torch.testing.assert_close(gradient, expected_gradient)


@given(matrices())
@settings(deadline=None)
def test_columns_that_are_not_kept_count_as_zero(dense: Tensor) -> None:
    kept = (torch.rand(dense.shape[1]) < 0.5).double()
    z = torch.randn(dense.shape[1], 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(dense.shape[0], 3, dtype=torch.float64)
    (expected_gradient,) = torch.autograd.grad((dense * kept @ z * weights).sum(), z)
    product = SparseMatrix.from_dense(dense).multiply(z, kept)
    torch.testing.assert_close(product, dense * kept @ z)
    torch.testing.assert_close(torch.autograd.grad((product * weights).sum(), z)[0], expected_gradient)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_gradient_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    monkeypatch.setattr(sparse, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sparse, "threads", lambda: num_threads)
    dense = torch.randn(150, 40, dtype=torch.float64) * (torch.rand(150, 40) < 0.6)
    matrix = SparseMatrix.from_dense(dense)
    assert len(matrix._column_blocks.starts) == 9
    z = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(150, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((matrix @ z * weights).sum(), z)
    torch.testing.assert_close(gradient, dense.T @ weights)


@given(matrices())
@settings(deadline=None)
def test_transposed_and_selected_rows(dense: Tensor) -> None:
    matrix = SparseMatrix.from_dense(dense)
    torch.testing.assert_close(matrix.transposed.to_dense(), dense.T)
    rows = torch.randint(dense.shape[0], (5,))
    torch.testing.assert_close(matrix.select_rows(rows).to_dense(), dense[rows])


@given(matrices())
@settings(deadline=None)
def test_product_of_two_sparse_matrices(dense: Tensor) -> None:
    other = torch.randn(dense.shape[1], 4, dtype=torch.float64) * (torch.rand(dense.shape[1], 4) < 0.5)
    kept = (torch.rand(4) < 0.7).double()
    terms = int((dense != 0).double().mv((other != 0).double().sum(dim=1)).sum())
    product = SparseMatrix.from_dense(dense).multiply_sparse(SparseMatrix.from_dense(other), kept, terms)
    identity = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(product @ identity, dense @ other * kept)
    assert len(product.values) == ((dense != 0).double() @ (other != 0).double() * kept).count_nonzero()


def test_repeated_columns_add_up() -> None:
    repeated = SparseMatrix(
        torch.tensor([0, 3, 4]), torch.tensor([1, 1, 0, 2]), torch.tensor([1.0, 2.0, 5.0, 7.0]), (2, 3)
    )
    dense = torch.tensor([[5.0, 3.0, 0.0], [0.0, 0.0, 7.0]])
    z = torch.randn(3, 2, requires_grad=True)
    product = repeated @ z
    torch.testing.assert_close(product, dense @ z)
    (gradient,) = torch.autograd.grad(product.sum(), z)
    torch.testing.assert_close(gradient, dense.T @ torch.ones(2, 2))


def test_mirror_finds_the_entry_across_the_diagonal() -> None:
    dense = torch.rand(9, 9) * (torch.rand(9, 9) < 0.4)
    matrix = SparseMatrix.from_csr(SparseMatrix.from_dense(dense + dense.T).csr, symmetric=True)
    torch.testing.assert_close(matrix.rows[matrix.mirror], matrix.columns)
    torch.testing.assert_close(matrix.columns[matrix.mirror], matrix.rows)


def test_indices_of_two_widths() -> None:
    """As in a graph on disk: row starts of 64 bits, columns of 32."""
    dense = torch.rand(9, 7) * (torch.rand(9, 7) < 0.4)
    parts = SparseMatrix.from_dense(dense)
    matrix = SparseMatrix(parts.row_starts, parts.columns.int(), parts.values, (9, 7))
    z = torch.rand(7, 2, requires_grad=True)
    torch.testing.assert_close(matrix @ z, dense @ z)
    (gradient,) = torch.autograd.grad((matrix @ z).sum(), z)
    torch.testing.assert_close(gradient, dense.T @ torch.ones(9, 2))
    torch.testing.assert_close(matrix.csr.to_dense(), dense)
    torch.testing.assert_close(matrix.select_rows(torch.tensor([3, 0])).to_dense(), dense[[3, 0]])


def test_product_stays_in_float32_under_autocast() -> None:
    matrix = SparseMatrix.from_dense(torch.eye(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = matrix @ torch.ones(4, 2, dtype=torch.bfloat16)
    assert product.dtype == torch.float32


def test_kernels_leave_pytorch_the_threads_it_had() -> None:
    """numba's first call sets the threads of OpenMP, which jobs in parallel share, to all cores."""
    code = """
import torch
from src.ops.sparse import SparseMatrix
SparseMatrix.from_dense(torch.eye(3)) @ torch.eye(3)
print(torch.get_num_threads())
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    outcome = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert outcome.stdout == "1\n"
