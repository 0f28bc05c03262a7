"""The loss against its formula, and against what the theory says of it."""

import math

import pytest
import torch

from src.ops.losses import group_discrimination_loss


def test_equals_equation_4_by_hand() -> None:
    positive, negative = torch.tensor([0.5, -1.0]), torch.tensor([2.0, -3.0])
    y_hat = torch.sigmoid(torch.cat([positive, negative]))
    y = torch.tensor([1.0, 1.0, 0.0, 0.0])
    by_hand = -(y * y_hat.log() + (1 - y) * (1 - y_hat).log()).sum() / 4
    torch.testing.assert_close(group_discrimination_loss(positive, negative), by_hand)


def test_a_blind_scorer_loses_log_2() -> None:
    assert group_discrimination_loss(torch.zeros(7), torch.zeros(3)).item() == pytest.approx(math.log(2))


def test_stays_finite_for_extreme_logits() -> None:
    logits = torch.tensor([-1e4, 1e4], requires_grad=True)
    loss = group_discrimination_loss(logits, logits)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_the_best_loss_is_log_2_minus_the_jensen_shannon_divergence() -> None:
    """With the optimal logit log p/q, minus twice the loss is 2 JS(p, q) - 2 log 2."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.3, 0.6])
    counts = 10
    logit = (p / q).log()
    positive = torch.repeat_interleave(logit, (p * counts).round().long())
    negative = torch.repeat_interleave(logit, (q * counts).round().long())
    mixture = (p + q) / 2
    divergence = ((p * (p / mixture).log()).sum() + (q * (q / mixture).log()).sum()) / 2
    loss = group_discrimination_loss(positive, negative)
    assert -2 * loss.item() == pytest.approx(2 * divergence.item() - 2 * math.log(2), abs=1e-6)
