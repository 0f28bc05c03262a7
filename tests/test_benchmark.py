"""The published algorithm as a plain twin, the turns, and the command as a user drives it; no test minds the clock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from src.benchmarks.as_published import AsPublished, adjacency_as_published
from src.benchmarks.contenders import RIVALS
from src.benchmarks.report import fitted_exponents, markdown, profile, show, write_report
from src.benchmarks.timing import Turns, parts
from src.command import PROJECT_ROOT
from src.graph import Graph
from src.models import GGD
from src.ops.augmentation import keep_columns
from src.ops.corruption import random_permutation
from src.ops.sparse import SparseMatrix
from tests.conftest import SHARED, Run

SETTINGS: dict[str, Any] = SHARED | {
    "projector_activation": "none",
    "aggregation": "sum",
    "feature_drop": 0.25,
    "edge_drop": 0.0,
    "hops": 3,
}


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("projector_layers", [0, 1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_ggd_equals_the_published_algorithm(
    small_graph: Graph, num_layers: int, projector_layers: int, sparse: bool
) -> None:
    graph = small_graph.to(torch.float64)
    x, num_nodes = graph.features, graph.num_nodes
    assert isinstance(x, torch.Tensor)
    adjacency = graph.adjacency.csr.to_sparse_coo()
    settings = SETTINGS | {"num_layers": num_layers, "projector_layers": projector_layers}
    model = GGD(num_features=24, **settings).double()
    plain = AsPublished(24, settings["hidden_dim"], num_layers, projector_layers).double()
    with torch.no_grad():
        for own, other in zip(plain.parameters(), model.parameters(), strict=True):
            own.copy_(other + 0.1 * torch.rand_like(other))  # biases and slopes away from where they start
            other.copy_(own)

    torch.manual_seed(5)
    kept_columns, permutation = keep_columns(24, 0.25), random_permutation(num_nodes)
    expected = plain(x, adjacency, permutation, kept_columns)
    torch.manual_seed(5)  # the same columns and the same permutation
    loss = model.loss(Graph(SparseMatrix.from_dense(x), graph.adjacency) if sparse else graph)
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=1e-10)
    expected.backward()
    loss.backward()
    for own, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad, atol=1e-10, rtol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(model.embed(graph), plain.embed(x, adjacency, 3), atol=1e-10, rtol=1e-10)


def test_both_prepare_the_same_adjacency(small_graph: Graph) -> None:
    published = adjacency_as_published(small_graph.adjacency.edge_index, small_graph.num_nodes)
    torch.testing.assert_close(published.to_dense(), small_graph.adjacency.to_dense())


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_learns(small_graph: Graph, rival: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: (losses.append(loss.item()), backward(loss)))
    settings = SETTINGS | {"hidden_dim": 64, "projector_layers": 1, "feature_drop": 0.0, "learning_rate": 1e-2}
    actions = RIVALS[rival](small_graph, settings, 2)
    for _ in range(200):
        actions["step"]()
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])
    for action in actions.values():
        action()


def test_actions_take_turns() -> None:
    calls: list[str] = []
    actions = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    spent = Turns(warmup=1, blocks=2, calls=3, seconds=60).time(actions)
    assert "".join(calls) == "ab" + "aaabbb" * 2
    assert [len(milliseconds) for milliseconds in spent.values()] == [6, 6]
    calls.clear()
    Turns(warmup=0, blocks=2, calls=3, seconds=1e-9).time(actions)
    assert "".join(calls) == "abab"
    with pytest.raises(ValueError, match=r"turns.blocks is 0; it must be at least 1"):
        Turns(warmup=0, blocks=0, calls=1, seconds=1)


@pytest.fixture
def report() -> dict[str, Any]:
    """Of three graphs, whose milliseconds grow with the square of their nodes, and a pair that failed."""
    rows: list[dict[str, Any]] = [
        {
            "dataset": f"g{n}",
            "model": "ggd",
            "num_nodes": n,
            "step_ms": n**2 / 10,
            "step_ms_min": 1.0,
            "step_ms_max": 9.0,
        }
        for n in (10, 100, 1000)
    ]
    rows[0] |= {"pyg_ms": 30.0, "pyg_ms_min": 29.0, "pyg_ms_max": 31.0, "pyg_ratio": 3.0}
    rows[0] |= {"paper_step_ms": 10, "test_accuracy": 0.5}
    rows[0]["parts"], rows[1]["parts"] = {"large": 96.0, "small": 1.0, "tiny": 3.0}, {"large": 1.0, "small": 2.0}
    rows.append({"dataset": "g10", "model": "dgi", "error": "ValueError: no"})
    settings = {
        "title": "A test",
        "text": "Of nothing.",
        "paper_machine": "a T4 GPU",
        "turns": {"warmup": 1, "blocks": 1, "calls": 1, "seconds": 1.0},
        "scaling": {"num_nodes": ["g10", "g100", "g1000"]},
        "paper": {"gmi": {"step_ms": {"g100": 394}}},
    }
    machine = {"cpu": "a CPU", "cores": 2, "threads": 1, "gpu": None, "load": 0.5, "versions": {"torch": "2"}}
    return {"name": "mini", "status": "finished", "machine": machine, "settings": settings, "rows": rows}


def test_the_table_has_a_column_for_each_graph_and_shows_rivals_the_paper_and_failures(report: dict[str, Any]) -> None:
    table = markdown(report).splitlines()
    assert table[0] == "|  | g10 | g100 | g1000 |"
    assert "| ggd: a step, ms | 10.0 (1.00–9.00) | 1,000 (1.00–9.00) | 100,000 (1.00–9.00) |" in table
    assert "| PyG's DeepGraphInfomax: a step, ms | 30.0 (29.0–31.0, 3.00 ×) |  |  |" in table
    assert "| the paper on a T4 GPU: a step, ms | 10.0 |  |  |" in table
    assert "| ggd: default run: test accuracy | 50.0 % |  |  |" in table
    assert "| dgi: failed | ValueError: no |  |  |" in table
    assert "| the paper on a T4 GPU, gmi: a step, ms |  | 394 |  |" in table


def test_the_exponent_is_the_slope(report: dict[str, Any], tmp_path: Path) -> None:
    assert fitted_exponents(report)["num_nodes"]["ggd"] == pytest.approx(2)
    write_report(report, tmp_path / "mini")
    assert "grow with nodes to the power of 2.00 (ggd)" in (tmp_path / "mini.md").read_text()
    assert (tmp_path / "mini.png").stat().st_size > 0


def test_the_profile_shows_what_is_large_somewhere(report: dict[str, Any]) -> None:
    assert profile(report).splitlines()[-5:] == [
        "| ms | ggd, g10 | ggd, g100 |",
        "| --- | --- | --- |",
        "| `large` | 96.0 | 1.00 |",
        "| `small` | 1.00 | 2.00 |",
        "| all others | 3.00 | 0 |",
    ]
    report["rows"] = report["rows"][2:]
    assert profile(report) == ""


def test_the_parts_of_an_action_are_named() -> None:
    x = torch.randn(200, 200)
    found = parts(lambda: x @ x, calls=3)
    assert next(iter(found)) == "aten::mm"
    assert found["aten::mm"] > 0


def test_the_readme_shows_what_was_published() -> None:
    readme = (PROJECT_ROOT / "README.md").read_text()
    places = re.findall(r"<!-- benchmark (\w+) -->\n(.*?)<!-- end -->", readme, flags=re.DOTALL)
    assert places
    for name, shown in places:
        published = PROJECT_ROOT / "docs" / "results" / f"benchmark_{name}.md"
        assert shown in (published.read_text() if shown else "")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00123, "0.00123"), (8, "8.00"), (81.26, "81.3"), (1460.4, "1,460"), (0, "0"), (-5.5, "-5.50")],
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert show(value) == text


@pytest.mark.command
def test_the_command_measures_a_pair_and_a_failing_one_stops_no_other(run: Run, tmp_path: Path) -> None:
    outcome = run(
        '+graphs.broken=["dataset=synthetic/tiny","model.hidden_dim=0"]',
        '+graphs.tiny=["dataset=synthetic/tiny","model.hidden_dim=16"]',
        "only=[broken,tiny]",
        "rivals=[as_published]",
        "prepare=true",
        "embed=true",
        "power=true",
        "profile=2",
        "turns={warmup: 1, blocks: 2, calls: 2}",
        "lightning={graphs: [tiny], steps: 3}",
        'training=["evaluation.references=false","trainer.max_steps=8"]',
        "checkpoints=2",
        module="src.benchmark",
    )
    assert outcome.returncode != 0
    assert "1 of 2 pairs failed; the first: " in outcome.stderr
    assert "hidden_dim is 0; it must be at least 1" in outcome.stderr
    assert "[2/2] ggd on tiny: step_ms" in outcome.stdout

    report = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    broken, tiny = report["rows"]
    assert report["status"] == "finished"
    assert "hidden_dim is 0" in broken["error"]
    assert "error" not in tiny
    assert (tiny["dataset"], tiny["model"], tiny["num_nodes"], tiny["hidden_dim"]) == ("tiny", "ggd", 400, 16)
    for figure in ("step_ms", "as_published_ms", "prepare_ms", "as_published_prepare_ms", "embed_ms",
                   "as_published_embed_ms", "power_ms", "as_published_power_ms"):  # fmt: skip
        assert 0 < tiny[f"{figure}_min"] <= tiny[figure] <= tiny[f"{figure}_max"]
    for figure in ("as_published_ratio", "as_published_embed_ratio", "peak_rss_mb", "memory_mb",
                   "as_published_memory_mb", "lightning_fit_seconds", "lightning_bare_seconds",
                   "lightning_alone_fit_seconds", "lightning_alone_bare_seconds", "command_seconds"):  # fmt: skip
        assert tiny[figure] > 0
    for run_of in ("lightning", "lightning_alone"):
        assert tiny[f"{run_of}_share"] == pytest.approx(
            100 - 100 * tiny[f"{run_of}_bare_seconds"] / tiny[f"{run_of}_fit_seconds"]
        )
    assert tiny["parts"]["_SparseLogits"] > 0
    assert tiny["seconds"] == pytest.approx(tiny["fit_seconds"] + tiny["other_seconds"])
    assert len(tiny["curve"]) == 2
    assert 0 < tiny["curve"][0]["seconds"] < tiny["curve"][1]["seconds"]
    assert tiny["curve"][1]["val_accuracy"] == tiny["val_accuracy"]  # the last look is at the trained model
    assert "step_ms" in (tmp_path / "run" / "benchmark.csv").read_text().splitlines()[0]
    assert "| ggd: a step, ms |" in (tmp_path / "run" / "benchmark.md").read_text()
    assert (tmp_path / "run" / "benchmark.png").stat().st_size > 0
