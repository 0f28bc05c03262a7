"""``python -m src.train -m``: all jobs run, failures are shown, one table ends it."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import joblib
import pytest
from omegaconf import OmegaConf

from src.command import expand_sweep
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


def test_a_sweep_by_name_ends_in_table_plot_and_tuned_file_and_is_resumed(run: Run, tmp_path: Path) -> None:
    """Two settings by two seeds; then the same again with a third setting, which alone is run."""
    arguments = (
        "sweep=grid", *QUICK[1:], "model.learning_rate=1e-3", "model.num_layers=1", "model.projector_layers=1",
        "model.aggregation=sum", f"hydra.sweep.dir={tmp_path}/sweep",
    )  # fmt: skip
    first = run(*arguments, "model.hidden_dim=8,16")
    assert first.returncode == 0, first.stderr
    with (tmp_path / "sweep" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model.hidden_dim"], row["runs"]) for row in rows] == [("8", "2"), ("16", "2")]
    assert (tmp_path / "sweep" / "summary.png").read_bytes().startswith(b"\x89PNG")
    best = max(rows, key=lambda row: float(row["val_accuracy_mean"]))
    tuned = tmp_path / "sweep" / "tuned" / "ggd_synthetic" / "tiny.yaml"
    content = OmegaConf.load(tuned)
    assert content.model.hidden_dim == int(best["model.hidden_dim"])
    assert (content.dataset.loader, content.trainer.max_steps) == ("full", 3)
    assert "Expect" in tuned.read_text().splitlines()[0]

    results = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").rglob("result.json")}
    second = run(*arguments, "model.hidden_dim=8,16,4", "sweep.resume=true")
    assert second.returncode == 0, second.stderr
    assert all(path.stat().st_mtime_ns == written for path, written in results.items())
    assert second.stdout.count("is finished already") == 4
    assert len(json.loads((tmp_path / "sweep" / "summary.json").read_text())) == 3


def test_resuming_with_other_settings_is_refused(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "model.hidden_dim=8").returncode == 0
    other = run(*QUICK, "model.hidden_dim=9", "sweep.resume=true")
    assert other.returncode != 0
    assert "holds the result of other settings: choose another hydra.sweep.dir" in other.stdout + other.stderr
    assert "Run the rest with: python -m src.train -m" in other.stdout


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray cluster with two cores, on this machine."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # no key in the home folder
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=2",
        "--include-dashboard=false", "--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}",
        "--object-store-memory=100000000", "--disable-usage-stats",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert any("Ray runtime started" in line for line in process.stdout)
    yield address
    process.terminate()
    process.communicate(timeout=60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it may have left of its group


def check_parallel(run: Run, sweep_dir: Path, *launcher: str) -> int:
    """Run two jobs, one of which fails, see that the sweep ends as any other, and return the threads of the other."""
    outcome = run(*QUICK, "model.hidden_dim=8,-1", *launcher)
    assert outcome.returncode == 1, outcome.stderr
    finished, failed = json.loads((sweep_dir / "summary.json").read_text())
    assert (finished["setting"], finished["runs"], finished["failed"]) == ("model.hidden_dim=8", 1, 0)
    assert (failed["setting"], failed["runs"], failed["failed"]) == ("model.hidden_dim=-1", 0, 1)
    ((folder, error),) = failed["errors"].items()
    assert "hidden_dim is -1; it must be at least 1" in error
    assert f"{folder}: {error}" in outcome.stdout
    return json.loads((Path(*finished["folders"]) / "result.json").read_text())["device"]["threads"]


def test_jobs_in_parallel_share_the_threads(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = check_parallel(run, tmp_path / "sweep", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert threads == max(1, joblib.cpu_count() // 2)


def test_jobs_on_a_ray_cluster(run: Run, tmp_path: Path, ray_cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launcher = ("hydra/launcher=ray_cluster", f"hydra.launcher.ray.init.address={ray_cluster}")
    assert check_parallel(run, tmp_path / "sweep", *launcher) == 1


def test_jobs_submitted_as_to_slurm(run: Run, tmp_path: Path) -> None:
    check_parallel(run, tmp_path / "sweep", "hydra/launcher=submitit_local")


def test_optuna_goes_on_with_its_study(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra 'optuna'")
    study = f"hydra.sweeper.storage=sqlite:///{tmp_path}/study.db"
    for count in (1, 2):
        outcome = run(
            "sweep=optuna", *QUICK[1:], "hydra.sweeper.n_trials=2", study, f"hydra.sweep.dir={tmp_path}/sweep{count}"
        )
        assert outcome.returncode == 0, outcome.stderr
        assert len(json.loads((tmp_path / f"sweep{count}" / "summary.json").read_text())) == 2
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as connection:
        values = [value for (value,) in connection.execute("select value from trial_values")]
    accuracies = [row["val_accuracy"][0] for count in (1, 2) for row in json.loads(
        (tmp_path / f"sweep{count}" / "summary.json").read_text())]  # fmt: skip
    assert sorted(values) == pytest.approx(sorted(accuracies))


def test_a_mistyped_sweep(run: Run) -> None:
    outcome = run("sweep=gird")
    assert outcome.returncode != 0
    assert "There is no sweep 'gird'; it can be grid, optuna, seeds" in outcome.stderr


def test_the_command_line_replaces_what_a_sweep_lists() -> None:
    arguments = expand_sweep(["sweep=seeds", "dataset=cora"])
    assert arguments == ["-m", "dataset=cora", "seed=0,1,2,3,4"]
    assert expand_sweep(["-m", "sweep=seeds", "seed=7"]) == ["-m", "seed=7"]
    assert expand_sweep(["dataset=cora"]) == ["dataset=cora"]
