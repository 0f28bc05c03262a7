"""PReLU against PyTorch's own, gradients too."""

import pytest
import torch

from src.ops import activation
from src.ops.activation import activated_product, prelu


@pytest.mark.parametrize("slope", [0.25, 0.0, -0.5, 1.5])
def test_equals_torch_prelu(slope: float) -> None:
    x = torch.randn(9, 4, dtype=torch.float64)
    x[0] = 0
    x.requires_grad_()
    a = torch.tensor([slope], dtype=torch.float64, requires_grad=True)
    weights = torch.randn(9, 4, dtype=torch.float64)
    plain, ours = torch.nn.functional.prelu(x, a), prelu(x, a)
    torch.testing.assert_close(ours, plain)
    expected = torch.autograd.grad((plain * weights).sum(), [x, a])
    gradients = torch.autograd.grad((ours * weights).sum(), [x, a])
    for one, other in zip(expected, gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("piece_rows", [1, 4, 100])
@pytest.mark.parametrize("slope", [0.25, 0.0, -0.5, 1.5])
def test_activated_product(monkeypatch: pytest.MonkeyPatch, piece_rows: int, slope: float) -> None:
    monkeypatch.setattr(activation, "PIECE_BYTES", piece_rows * 5 * 8)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in ((9, 5), (5,), (5, 3))]
    inputs.insert(2, torch.tensor([slope], dtype=torch.float64))
    for tensor in inputs:
        tensor.requires_grad_()
    x, bias, a, weight = inputs
    plain = torch.nn.functional.prelu(x + bias, a) @ weight
    ours, weights = activated_product(*inputs), torch.randn(9, 3, dtype=torch.float64)
    torch.testing.assert_close(ours, plain)
    expected = torch.autograd.grad((plain * weights).sum(), inputs)
    for one, other in zip(torch.autograd.grad((ours * weights).sum(), inputs), expected, strict=True):
        torch.testing.assert_close(one, other)
