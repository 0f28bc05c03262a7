"""Activations that are never made against activations that are, gradients too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import prelu

from src.ops import discriminate, groups
from src.ops.groups import Activations
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix, to_dense


@pytest.fixture(params=[1, 2, 3], autouse=True)
def num_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (discriminate, groups):
        monkeypatch.setattr(module, "threads", lambda: request.param)


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
        positive, negative = Activations(operator, dense, bias, slope, 2).groups
        logits = torch.cat([positive @ vector, negative @ vector])
        torch.testing.assert_close(logits, expected)
        torch.testing.assert_close(torch.cat([to_dense(positive), to_dense(negative)]) @ vector, expected)
        for one, other in zip(torch.autograd.grad(logits @ weights, inputs), expected_gradients, strict=True):
            torch.testing.assert_close(one, other)


def test_one_group_alone() -> None:
    matrix, dense = torch.rand(6, 4), torch.rand(4, 3, requires_grad=True)
    activations = Activations(SparseMatrix.from_dense(matrix), dense, torch.zeros(3), torch.ones(1), 2)
    vector = torch.rand(3)
    (gradient,) = torch.autograd.grad((activations.groups[1] @ vector).sum(), dense)
    torch.testing.assert_close(gradient, matrix[3:].sum(dim=0).outer(vector))


@pytest.mark.parametrize("symmetric", [True, False])
@given(st.integers(0, 999), st.integers(1, 50), st.integers(1, 40))
@settings(deadline=None, max_examples=20)
def test_a_permuted_group_equals_the_product_with_permuted_rows(
    symmetric: bool, seed: int, num_nodes: int, width: int
) -> None:
    torch.manual_seed(seed)
    matrix = normalised_adjacency(torch.randint(num_nodes, (2, 2 * num_nodes)), num_nodes).to(torch.float64)
    if not symmetric:
        matrix = SparseMatrix.from_csr(matrix.with_values(torch.randn(len(matrix.values), dtype=torch.float64)).csr)
    permutation = torch.randperm(num_nodes)
    shapes = (num_nodes, width), (width,), (1,), (width,)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    dense, bias, slope, vector = inputs
    weights = torch.randn(2 * num_nodes, dtype=torch.float64)

    plain = torch.cat([matrix.to_dense() @ dense, matrix.to_dense() @ dense[permutation]])
    expected = prelu(plain + bias, slope) @ vector
    expected_gradients = torch.autograd.grad(expected @ weights, inputs)
    both = Activations(matrix, dense, bias, slope, 2, permutation).groups
    for logits in (
        torch.cat([group @ vector for group in both]),
        torch.cat([group.to_dense() for group in both]) @ vector,
    ):
        torch.testing.assert_close(logits, expected)
        for one, other in zip(torch.autograd.grad(logits @ weights, inputs), expected_gradients, strict=True):
            torch.testing.assert_close(one, other)
