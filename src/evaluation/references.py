"""The rivals of a trained encoder: what the same probe reaches without any training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from src.evaluation.probe import LinearProbe, ProbeResult
from src.graph import Graph, Labels
from src.ops.diffusion import mean_of_powers, personalised_pagerank
from src.ops.propagation import add_power
from src.ops.sparse import to_dense

POWERS = (1, 5, 10)
TELEPORTS = (0.1, 0.2)
MEANS = (5, 10)


@torch.no_grad()
def reference_results(
    graph: Graph, labels: Labels, untrained: Tensor, probe: LinearProbe, report: Callable[[str], None] = lambda _: None
) -> dict[str, ProbeResult]:
    """Probe raw features, smoothed raw features and an untrained encoder, each parameter chosen on validation nodes.

    Args:
        graph: X and A.
        labels: Classes and split.
        untrained: Output H of an encoder with random weights, shape (N, D').
        probe: The probe that judges the trained embeddings.
        report: Called with the name of each row before it is probed.

    Returns:
        ``raw``: X. ``smoothed_power``: X + A^n X. ``smoothed_ppr``: a (I - (1-a) A)^-1 X. ``smoothed_mean``: the mean
        of A^0 X, ..., A^n X. ``untrained``: H. ``untrained_power``: H + A^n H.
    """
    adjacency = graph.adjacency
    x = to_dense(graph.features)

    def powers(z: Tensor) -> dict[str, Callable[[], Tensor]]:
        return {f"n={n}": lambda n=n: add_power(adjacency, z, n) for n in POWERS}  # type: ignore[misc]

    rows: dict[str, dict[str, Callable[[], Tensor]]] = {
        "raw": {"": lambda: x},
        "smoothed_power": powers(x),
        "smoothed_ppr": {
            f"alpha={a}": lambda a=a: personalised_pagerank(adjacency, a, 1e-3) @ x  # type: ignore[misc]
            for a in TELEPORTS
        },
        "smoothed_mean": {f"n={n}": lambda n=n: mean_of_powers(adjacency, x, n) for n in MEANS},  # type: ignore[misc]
        "untrained": {"": lambda: untrained},
        "untrained_power": powers(untrained),
    }
    results = {}
    for name, candidates in rows.items():
        report(name)
        results[name] = probe.evaluate_best(candidates, labels)
    return results
