"""Activations that are never made against activations that are, gradients too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import prelu

from src.ops import groups
from src.ops.groups import Activations, stack_permuted
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix, to_dense


@pytest.fixture(params=[1, 2, 3], autouse=True)
def num_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "threads", lambda: request.param)


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 6), st.sampled_from([0.1, 0.5, 1.0]), st.integers(0, 999))
@settings(deadline=None, max_examples=40)
def test_products_and_gradients_equal_those_of_activations(
    half: int, num_nodes: int, width: int, density: float, seed: int
) -> None:
    torch.manual_seed(seed)
    matrix = torch.randn(2 * half, num_nodes, dtype=torch.float64) * (torch.rand(2 * half, num_nodes) < density)
    shapes = (num_nodes, width), (width,), (1,), (width,)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    dense, bias, slope, vector = inputs
    weights = torch.randn(2 * half, dtype=torch.float64)

    expected = prelu(matrix @ dense + bias, slope) @ vector
    expected_gradients = torch.autograd.grad(expected @ weights, inputs)
    for operator in (SparseMatrix.from_dense(matrix), matrix):
        positive, negative = Activations(operator, dense, bias, slope).chunk(2)
        logits = torch.cat([positive @ vector, negative @ vector])
        torch.testing.assert_close(logits, expected)
        torch.testing.assert_close(torch.cat([to_dense(positive), to_dense(negative)]) @ vector, expected)
        for one, other in zip(torch.autograd.grad(logits @ weights, inputs), expected_gradients, strict=True):
            torch.testing.assert_close(one, other)


def test_one_group_alone() -> None:
    matrix, dense = torch.rand(6, 4), torch.rand(4, 3, requires_grad=True)
    activations = Activations(SparseMatrix.from_dense(matrix), dense, torch.zeros(3), torch.ones(1))
    vector = torch.rand(3)
    (gradient,) = torch.autograd.grad((activations.chunk(2)[1] @ vector).sum(), dense)
    torch.testing.assert_close(gradient, matrix[3:].sum(dim=0).outer(vector))


@pytest.mark.parametrize("symmetric", [True, False])
def test_stack_with_permuted_columns(symmetric: bool) -> None:
    matrix = normalised_adjacency(torch.randint(50, (2, 80)), 50).to(torch.float64)
    if not symmetric:
        matrix = SparseMatrix.from_csr(matrix.with_values(torch.randn(len(matrix.values), dtype=torch.float64)).csr)
    permutation, x = torch.randperm(50), torch.randn(50, 4, dtype=torch.float64, requires_grad=True)

    def product(operator: SparseMatrix | Tensor) -> Tensor:
        return torch.cat([operator @ x, operator @ x[permutation]])

    stacked, weights = stack_permuted(matrix, permutation), torch.randn(100, 4, dtype=torch.float64)
    torch.testing.assert_close(stacked @ x, product(matrix.to_dense()))
    (expected,) = torch.autograd.grad((product(matrix.to_dense()) * weights).sum(), x)
    (gradient,) = torch.autograd.grad((stacked @ x * weights).sum(), x)
    torch.testing.assert_close(gradient, expected)
