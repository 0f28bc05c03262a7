"""Seconds and peak memory of a run."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch


@contextlib.contextmanager
def stopwatch(timing: dict[str, float | None], name: str) -> Iterator[None]:
    """Note the seconds that the block takes as ``timing[name]``."""
    started = time.perf_counter()
    yield
    timing[name] = time.perf_counter() - started


def reset_peak() -> None:
    """Start a new measurement, so that a job of a sweep does not inherit the peak of the one before.

    The peak of the process can be reset on Linux only; elsewhere it is that of the process's whole life.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_rss_mb() -> float:
    """Largest resident memory since the last reset, in MB (10^6 bytes)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def peak_gpu_mb() -> float | None:
    """Largest memory allocated on the GPU since the last reset, in MB (10^6 bytes); None without a GPU."""
    return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else None
