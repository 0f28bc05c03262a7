"""Settings out of range: an error that names the setting, what it is, and what it may be."""

from __future__ import annotations

from collections.abc import Iterable


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
