"""Cells and their verdicts, and the files that show them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from src.command import PROJECT_ROOT
from src.tables import Cell, Measure, Table, cells, markdown, marked_texts, write_report

TABLES = sorted(path for path in (PROJECT_ROOT / "conf" / "table").glob("*.yaml") if path.stem != "all")
ACCURACY = Measure("test_accuracy", unit="%", scale=100, digits=1, better="higher")
SECONDS = Measure("timing.fit_seconds", unit="s", scale=1, digits=2, better="lower")


def cell(values: list[float], paper: list[float] | None, measure: Measure = ACCURACY) -> Cell:
    return Cell("row", "cora", measure, values, paper, reason="" if values else "no GPU")


@pytest.mark.parametrize(
    ("values", "paper", "measure", "verdict"),
    [
        ([82.0, 83.0, 84.0, 83.0, 83.0], [83.0, 0.5], ACCURACY, "agrees"),
        ([82.0, 83.0, 84.0, 83.0, 83.0], [84.0, 0.5], ACCURACY, "worse"),
        ([82.0, 83.0, 84.0, 83.0, 83.0], [82.0, 0.5], ACCURACY, "better"),
        ([82.0, 83.0, 84.0, 83.0, 83.0], [82.0, 0.5], SECONDS, "worse"),
        ([83.0], [83.0], ACCURACY, "agrees"),
        ([83.0], [82.9], ACCURACY, "better"),
        ([83.0], None, ACCURACY, ""),
        ([], [83.0, 0.5], ACCURACY, "not run"),
        ([83.0], [82.9], Measure("", unit="", scale=1, digits=0, better=None), ""),
    ],
)
def test_verdict(values: list[float], paper: list[float] | None, measure: Measure, verdict: str) -> None:
    assert cell(values, paper, measure).verdict == verdict


def test_agreement_is_two_standard_errors_of_the_difference() -> None:
    """Five runs at ± 1 have a standard error of 1 / sqrt(4), the paper's too: two of the difference are 1.414."""
    ours = [82.0, 84.0, 83.0 + 1.5**0.5, 83.0 - 1.5**0.5, 83.0]  # mean 83, population variance 1
    for paper, verdict in (([84.41, 1.0], "agrees"), ([84.42, 1.0], "worse"), ([81.59, 1.0], "agrees")):
        assert cell(ours, paper).verdict == verdict


def test_text_of_a_cell() -> None:
    assert cell([82.0, 84.0], [83.5, 0.5]).text == "83.0 ± 1.0<br>*paper 83.5 ± 0.5, -0.5, agrees*"
    assert cell([82.0, 84.0], None).text == "83.0 ± 1.0"
    assert cell([], [83.5]).text == "not run: no GPU<br>*paper 83.5*"


@pytest.fixture
def table() -> Table:
    return Table.from_config(
        "mini",
        {
            "title": "A table",
            "text": "What it shows.",
            "timed": False,
            "datasets": ["cora", "pubmed"],
            "seeds": [0, 1],
            "overrides": [],
            "measures": {
                "accuracy": vars(ACCURACY),
                "seconds": vars(SECONDS) | {"log": True},
            },
            "rows": {
                "ours": {"overrides": [], "paper": {"accuracy": [[83.0, 1.0], None]}},
                "half": {"overrides": [], "skipped": {"pubmed": "too large"}},
                "other place": {"overrides": [], "path": "references.raw"},
            },
        },
    )


@pytest.fixture
def results() -> dict[tuple[str, str, int], dict[str, Any]]:
    def finished(accuracy: float) -> dict[str, Any]:
        timing = {"fit_seconds": 2.0}
        return {"status": "finished", "test_accuracy": accuracy, "timing": timing, "references": {"raw": 0.5}}

    failed = {"status": "failed", "error": "MemoryError: 12 GB\nmore"}
    return {
        ("ours", "cora", 0): finished(0.82),
        ("ours", "cora", 1): finished(0.84),
        ("ours", "pubmed", 0): finished(0.8),
        ("ours", "pubmed", 1): failed,
        ("half", "cora", 0): failed,
        ("half", "cora", 1): failed,
        ("other place", "cora", 0): finished(0.82),
        ("other place", "cora", 1): finished(0.84),
    }


def test_markdown(table: Table, results: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    assert markdown(table, "accuracy", cells(table, results)["accuracy"]).splitlines() == [
        "| accuracy in % | cora | pubmed |",
        "| --- | --- | --- |",
        "| ours | 83.0 ± 1.0<br>*paper 83.0 ± 1.0, +0.0, agrees* | 80.0 ± 0.0 (1 of 2 runs: MemoryError: 12 GB) |",
        "| half | not run: MemoryError: 12 GB | not run: too large |",
        "| other place | 50.0 ± 0.0 | not run: not run yet |",
    ]


def test_report(table: Table, results: dict[tuple[str, str, int], dict[str, Any]], tmp_path: Path) -> None:
    write_report({"mini": table}, {"mini": results}, tmp_path)
    with (tmp_path / "mini.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 3 * 2
    assert lines[0] | {"reason": ""} == {
        "row": "ours", "dataset": "cora", "measure": "accuracy", "unit": "%", "mean": "83.0", "deviation": "1.0",
        "runs": "2", "paper_mean": "83.0", "paper_deviation": "1.0", "difference": "0.0", "verdict": "agrees",
        "reason": "",
    }  # fmt: skip
    assert (tmp_path / "mini.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "report.md").read_text()
    assert "python -m src.reproduce table=mini" in report
    for part in (report, (tmp_path / "mini.md").read_text()):
        assert "\n\n| accuracy in % | cora | pubmed |\n" in part
        assert "\n\n| seconds in s | cora | pubmed |\n" in part


def test_a_report_keeps_the_tables_that_are_not_written_anew(
    table: Table, results: dict[tuple[str, str, int], dict[str, Any]], tmp_path: Path
) -> None:
    write_report({"mini": table, "other": table}, {"mini": {}, "other": results}, tmp_path)
    before = (tmp_path / "report.md").read_text()
    write_report({"mini": table}, {"mini": results}, tmp_path)
    after = (tmp_path / "report.md").read_text()
    assert after.split("<!-- section other -->")[1] == before.split("<!-- section other -->")[1]
    shown = markdown(table, "accuracy", cells(table, results)["accuracy"])
    assert (before.count(shown), after.count(shown)) == (1, 2)


def test_marked_texts(table: Table, results: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    texts = marked_texts({"mini": table}, {"mini": results})
    assert list(texts) == ["table mini: accuracy", "table mini: seconds"]
    assert texts["table mini: accuracy"] == markdown(table, "accuracy", cells(table, results)["accuracy"])


def test_figures_of_the_paper_must_fit_the_table() -> None:
    config = yaml.safe_load(TABLES[0].read_text())
    next(iter(config["rows"].values()))["paper"] = {"accuracy": [[83.0, 1.0]]}
    with pytest.raises(ValueError, match="there must be one for each of"):
        Table.from_config("mini", config)


def test_a_path_that_is_not_there_is_named(table: Table) -> None:
    result = {"status": "finished", "model": "ggd", "dataset": "cora", "references": None}
    with pytest.raises(KeyError, match=r"references\.raw is not in the result of ggd on cora"):
        cells(table, {("other place", "cora", seed): result for seed in (0, 1)})


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_shipped_tables_are_sound(path: Path) -> None:
    """Each row is a command that ``src.train`` takes, and two rows differ in what they run or in what they read."""
    table = Table.from_config(path.stem, yaml.safe_load(path.read_text()))
    assert path.read_text().startswith(f"# @package table.{path.stem}\n")
    assert path.stem in (PROJECT_ROOT / "conf" / "table" / "all.yaml").read_text()
    seen = []
    with initialize_config_dir(str(PROJECT_ROOT / "conf"), version_base="1.3"):
        for row in table.rows.values():
            for dataset in table.datasets:
                cfg = compose("train", [f"dataset={dataset}", *table.overrides, *row.overrides])
            seen.append((cfg.model, cfg.trainer, cfg.dataset, row.path))
    assert all(one != other for i, one in enumerate(seen) for other in seen[:i]) or path.stem == "ggd_parts"
