"""Settings out of range: an error that names the setting, what it is, and what it may be."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``, naming the setting and what it may be."""
    choices = list(allowed)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it can be {', '.join(map(repr, choices))}")


def check_range(name: str, value: float, low: float, below: float | None = None) -> None:
    """Raise ValueError unless low <= value < below, naming the setting and its bounds."""
    if value < low or (below is not None and value >= below):
        bound = "" if below is None else f" and less than {below}"
        raise ValueError(f"{name} is {value}; it must be at least {low}{bound}")


def check_disk(folder: Path, needed: int) -> int:
    """Return the bytes that are free where ``folder`` is or will be.

    Raises:
        OSError: If they are fewer than ``needed``.
    """
    free = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free
    if free < needed:
        raise OSError(
            f"{folder} needs {needed / 1e9:,.3g} GB of disk, and {free / 1e9:,.3g} GB are free: make room, or set "
            "data_dir to a larger disk"
        )
    return free
