"""Corruption: a permutation, and the gradient of taking rows in its order."""

import torch

from src.ops.corruption import permute_rows, random_permutation


def test_permutation_holds_each_node_once() -> None:
    permutation = random_permutation(50)
    assert permutation.sort().values.tolist() == list(range(50))
    assert permutation.tolist() != list(range(50))


def test_permuted_rows_and_their_gradient_equal_plain_indexing() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    permutation, weights = torch.randperm(6), torch.randn(6, 3)
    (expected,) = torch.autograd.grad((x[permutation] * weights).sum(), x)
    permuted = permute_rows(x, permutation)
    (gradient,) = torch.autograd.grad((permuted * weights).sum(), x)
    torch.testing.assert_close(permuted, x[permutation])
    torch.testing.assert_close(gradient, expected)
