"""The paper's tables, driven as a user would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from src.command import PROJECT_ROOT
from tests.conftest import Run

MINI = """# @package table.mini
title: A small table
text: Two methods.
timed: false
datasets: [synthetic/tiny]
seeds: [0, 1]
overrides: [trainer.max_steps=2, evaluation.references=false]
measures:
  accuracy: {path: test_accuracy, unit: "%", scale: 100, digits: 1, better: higher}
rows:
  GGD: {overrides: [model=ggd], paper: {accuracy: [[50.0, 1.0]]}}
  the same: {overrides: [model=ggd]}
  DGI: {overrides: [model=dgi]}
  broken: {overrides: [model=dgi, model.hidden_dim=-1]}
"""


@pytest.mark.command
def test_a_table_is_run_once_and_a_failure_stops_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conf" / "table").mkdir(parents=True)
    (tmp_path / "conf" / "table" / "mini.yaml").write_text(MINI)
    arguments = (f"hydra.searchpath=[file://{tmp_path}/conf]", "table=mini", f"output_dir={tmp_path}/tables")
    first = run(*arguments, module="src.reproduce")
    assert first.returncode != 0
    assert "6 runs: 0 are finished, 6 to go." in first.stdout
    assert "hidden_dim is -1; it must be at least 1" in first.stdout
    assert "2 of 6 runs failed; the first: " in first.stderr
    table = (tmp_path / "tables" / "mini.md").read_text()
    assert re.search(r"\| GGD \| (\d\d\.\d ± \d+\.\d)<br>\*paper 50\.0 ± 1\.0, [+-]\d+\.\d, \w+\* \|", table)
    assert "| broken | not run: InstantiationException" in table
    results = {path: path.stat().st_mtime_ns for path in (tmp_path / "tables" / "runs").rglob("result.json")}
    finished = [path for path in results if json.loads(path.read_text())["status"] == "finished"]
    assert len(finished) == 4
    assert not list((tmp_path / "tables").rglob("*.npy")) + list((tmp_path / "tables").rglob("*.ckpt"))

    second = run(*arguments, "~table.mini.rows.broken", module="src.reproduce")
    assert second.returncode == 0, second.stderr
    assert "4 runs: 4 are finished, 0 to go." in second.stdout
    assert all(path.stat().st_mtime_ns == results[path] for path in finished)


def test_the_readme_shows_what_was_published() -> None:
    readme = (PROJECT_ROOT / "README.md").read_text()
    places = re.findall(r"<!-- table (\w+): .+? -->\n(.*?)<!-- end -->", readme, flags=re.DOTALL)
    assert places
    for name, shown in places:
        assert shown in (PROJECT_ROOT / "docs" / "results" / f"{name}.md").read_text()
