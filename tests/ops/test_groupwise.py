"""Groups that are differentiated one after the other against both together."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from src.ops.groupwise import SeparateGroup, total
from src.ops.losses import group_discrimination_loss


class Case:
    """Two groups made from one matrix Z by a layer, and scored by a vector and a bias, in float64."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        shapes = (6, 4), (4, 3), (3,), ()
        self.leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        leaf, self.weight, vector, self.bias = self.leaves
        self.dense, self.vector = leaf.sin(), vector.exp()  # no leaves, like a product X W and a collapsed projector
        self.made: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def encode(self, dense: Tensor) -> Tensor:
        self.alive.append(sum(made() is not None for made in self.made))
        hidden = torch.tanh(dense @ self.weight)
        self.made.append(weakref.ref(hidden))
        return hidden

    def group(self, shift: int) -> SeparateGroup:
        return SeparateGroup(lambda z: self.encode(z.roll(shift, 0)), self.dense, (self.weight,), 6)

    def loss(self, separate: bool) -> Tensor:
        groups = [self.group(shift) if separate else self.group(shift).to_dense() for shift in (0, 1)]
        return group_discrimination_loss(*(group @ self.vector + self.bias for group in groups))


def test_loss_and_gradients_equal_those_of_both_groups_together() -> None:
    apart, together = Case(), Case()
    losses = 3 * apart.loss(True), 3 * together.loss(False)
    torch.testing.assert_close(*losses)
    gradients = torch.autograd.grad(losses[0], apart.leaves), torch.autograd.grad(losses[1], together.leaves)
    torch.testing.assert_close(*gradients)


def test_the_first_group_is_given_up_before_the_second_is_encoded() -> None:
    apart, together = Case(), Case()
    apart.loss(True)
    together.loss(False)
    assert apart.alive == [0, 0]
    assert together.alive == [0, 1]


def test_values_without_gradients() -> None:
    case = Case()
    with torch.no_grad():
        torch.testing.assert_close(case.loss(True), case.loss(False))
    frozen = SeparateGroup(torch.tanh, torch.ones(5, 3), (), 5)
    logits = frozen @ torch.ones(3) + torch.ones(())
    assert not total(softplus, logits).requires_grad
    torch.testing.assert_close(logits.to_dense(), torch.full((5,), 1 + 3 * torch.tanh(torch.ones(())).item()))


def test_gradients_asked_for_twice_are_an_error_and_not_wrong() -> None:
    case = Case()
    loss = 2 * case.loss(True)
    torch.autograd.grad(loss, case.leaves, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, case.leaves)


def test_half_precise_gradients_are_scaled_before_they_vanish() -> None:
    weight = torch.ones(3, requires_grad=True)
    group = SeparateGroup(lambda z: 1e-8 * (z @ weight[:, None]), torch.ones(5, 3), (weight,), 5)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = total(softplus, group @ torch.ones(1))
    (2.0**12 * loss).backward()
    torch.testing.assert_close(weight.grad / 2.0**12, torch.full((3,), 5 * 0.5e-8), rtol=0.05, atol=0)
