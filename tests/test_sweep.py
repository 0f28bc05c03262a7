"""``python -m src.train -m``: all jobs run, failures are shown, one table ends it."""

import json
from pathlib import Path

import pytest

from tests.conftest import Run

pytestmark = pytest.mark.command

QUICK = ("-m", "dataset=synthetic/tiny", "trainer.max_steps=3", "evaluation.references=false")


def test_seeds_end_in_one_row_of_mean_and_deviation(run: Run, tmp_path: Path) -> None:
    outcome = run(*QUICK, "seed=0,1,2", "model.hidden_dim=8")
    assert outcome.returncode == 0, outcome.stderr
    (row,) = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert (row["runs"], row["failed"], row["seeds"]) == (3, 0, [0, 1, 2])
    results = [json.loads((Path(folder) / "result.json").read_text()) for folder in row["folders"]]
    accuracies = [found["test_accuracy"] for found in results]
    assert row["test_accuracy"][0] == pytest.approx(sum(accuracies) / 3)
    assert len({found["split"]["fingerprint"] for found in results}) == 3
    assert "mean ± standard deviation" in outcome.stdout


def test_a_failing_job_is_shown_and_the_others_finish(run: Run, tmp_path: Path) -> None:
    outcome = run(*QUICK, "model.hidden_dim=-1,8")
    assert outcome.returncode != 0
    assert "hidden_dim is -1; it must be at least 1" in outcome.stdout + outcome.stderr
    rows = {row["setting"]: row for row in json.loads((tmp_path / "sweep" / "summary.json").read_text())}
    failed = next(row for setting, row in rows.items() if "hidden_dim=-1" in setting)
    finished = next(row for setting, row in rows.items() if "hidden_dim=8" in setting)
    assert (failed["runs"], failed["failed"], failed["test_accuracy"]) == (0, 1, None)
    assert (finished["runs"], finished["failed"]) == (1, 0)
