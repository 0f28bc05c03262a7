"""Memory of large tensors is used again, and never while a tensor lives in it."""

from __future__ import annotations

import pytest
import torch

from src.ops import memory


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HUGE_PAGE", 2000)
    monkeypatch.setattr(memory, "IDLE_BYTES", 30_000)
    monkeypatch.setattr(memory, "_idle", [])


def test_freed_memory_is_used_again_for_what_needs_about_as_much() -> None:
    first = memory.empty(100, 25, torch.float32)
    place = first.data_ptr()
    del first
    assert memory.empty(10, 150, torch.float64).data_ptr() != place, "it is too small"
    assert memory.empty(100, 12, torch.float32).data_ptr() != place, "it is too large"
    again = memory.empty(45, 25, torch.float64)
    assert again.data_ptr() == place
    assert (again.shape, again.dtype) == ((45, 25), torch.float64)


def test_memory_of_a_view_or_of_what_autograd_keeps_is_not_free() -> None:
    x = memory.empty(100, 25, torch.float32).fill_(1)
    part = x[3]
    weight = torch.ones(25, requires_grad=True)
    product = memory.empty(100, 25, torch.float32).fill_(2) * weight
    del x
    others = [memory.empty(100, 25, torch.float32).fill_(7) for _ in range(3)]
    product.sum().backward()
    assert part.tolist() == [1] * 25
    assert weight.grad is not None
    assert weight.grad.tolist() == [200] * 25
    assert len({other.data_ptr() for other in others}) == 3


def test_no_more_is_kept_than_the_bound() -> None:
    tensors = [memory.empty(100, 20, torch.float32) for _ in range(5)]
    del tensors
    assert sum(map(len, memory._idle)) == 24_000


def test_small_tensors_are_left_to_the_library() -> None:
    memory.empty(10, 10, torch.float32)
    assert memory._idle == []
