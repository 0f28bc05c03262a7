"""The reference rows."""

import torch

from src.evaluation.probe import LinearProbe
from src.evaluation.references import reference_results
from src.graph import Graph, Labels
from src.result import REFERENCE_NAMES


def test_every_row_is_probed_and_named(small_graph: Graph) -> None:
    labels = Labels(torch.arange(60) % 2, torch.arange(20), torch.arange(20, 40), torch.arange(40, 60))
    announced: list[str] = []
    probe = LinearProbe((1.0,), False, 100, "exact", exact_up_to=0, tolerance=0)
    results = reference_results(small_graph, labels, torch.randn(60, 8), probe, announced.append)
    assert list(results) == announced == list(REFERENCE_NAMES)
    assert results["raw"] == probe.evaluate(small_graph.features, labels)
    assert {name: bool(row.candidate) for name, row in results.items()} == {
        "raw": False,
        "smoothed_power": True,
        "smoothed_ppr": True,
        "smoothed_mean": True,
        "untrained": False,
        "untrained_power": True,
    }
