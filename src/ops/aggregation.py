"""Aggregation: each node's embedding becomes one number, the logit of belonging to the positive group."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

AGGREGATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(dim=1),
    "mean": lambda x: x.mean(dim=1),
    "min": lambda x: x.amin(dim=1),
    "max": lambda x: x.amax(dim=1),
}
"""Aggregations without parameters, from shape (N, D) to (N,); ``linear`` adds a learned weight per dimension."""
