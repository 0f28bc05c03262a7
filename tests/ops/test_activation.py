"""PReLU against PyTorch's own, gradients too."""

import pytest
import torch

from src.ops.activation import prelu


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
