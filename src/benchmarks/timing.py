"""Milliseconds of several actions that take turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch

from src.ops.checks import check_range


@dataclass(frozen=True)
class Turns:
    """How actions take turns.

    Attributes:
        warmup: Calls of each action before the first that counts, 0 or more.
        blocks: Turns of each, 1 or more.
        calls: Calls in a block, 1 or more.
        seconds: A block ends early once it took so long.
    """

    warmup: int
    blocks: int
    calls: int
    seconds: float

    def __post_init__(self) -> None:
        check_range("turns.warmup", self.warmup, 0)
        check_range("turns.blocks", self.blocks, 1)
        check_range("turns.calls", self.calls, 1)

    def time(self, actions: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Return the milliseconds of each call of each action."""
        for action in actions.values():
            for _ in range(self.warmup):
                timed(action)
        spent: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(self.blocks):
            for name, action in actions.items():
                block: list[float] = []
                while len(block) < self.calls and sum(block) < 1000 * self.seconds:
                    block.append(timed(action))
                spent[name] += block
        return spent


class Beside(pl.Callback):
    """Does something else after each step of a training, so that whatever slows the machine down hits both alike.

    Attributes:
        seconds: That the action took in all, but for a first time before training.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self.action, self.seconds = action, 0.0
        action()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds += timed(self.action) / 1000


def timed(action: Callable[[], object]) -> float:
    """Return the milliseconds of one call, until the GPU is done too."""
    started = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started)


def summary(name: str, milliseconds: list[float]) -> dict[str, float]:
    """Return median, least and largest, as ``<name>``, ``<name>_min`` and ``<name>_max``."""
    return {
        name: statistics.median(milliseconds),
        f"{name}_min": min(milliseconds),
        f"{name}_max": max(milliseconds),
    }


def parts(action: Callable[[], object], calls: int) -> dict[str, float]:
    """Return the milliseconds of a call that each operation of PyTorch takes itself, the largest first.

    The profiler makes small operations look larger than they are. On a GPU it is the GPU's time.
    """
    for _ in range(3):
        action()
    with torch.profiler.profile() as profile:
        for _ in range(calls):
            action()
    unit = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    spent = {event.key: getattr(event, unit) / 1000 / calls for event in profile.key_averages()}
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
