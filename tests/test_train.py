"""``python -m src.train`` end to end, as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from src.command import PROJECT_ROOT
from src.models import GGD
from src.train import make_trainer, wants_references
from tests.conftest import MIRROR, Run

pytestmark = pytest.mark.command

METHODS = sorted(path.stem for path in (PROJECT_ROOT / "conf" / "model").glob("*.yaml"))
TINY = ("dataset=synthetic/tiny", "model.hidden_dim=32")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def wait_for(text: str, log: Path) -> None:
    """Return when a run has printed a text."""
    deadline = time.monotonic() + 240
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < deadline, f"{log} has no {text!r} after four minutes"
        time.sleep(0.005)


def test_a_run_leaves_everything_that_it_should(run: Run, tmp_path: Path) -> None:
    outcome = run(*TINY, "trainer.max_steps=20", "seed=3")
    assert outcome.returncode == 0, outcome.stderr
    folder = tmp_path / "run"
    found = result(folder)
    known = [found[key] for key in ("status", "dataset", "model", "seed")]
    assert known == ["finished", "synthetic/tiny", "ggd", 3]
    assert found["split"]["sizes"] == [80, 120, 200]
    assert len(found["split"]["fingerprint"]) == 16
    assert found["hyperparameters"]["hidden_dim"] == 32
    assert found["hyperparameters"]["largest_component"] is False
    assert 0 <= found["val_accuracy"] <= 1
    assert found["test_accuracy"] == found["probe"]["test_accuracy"]
    assert {"C", "converged"} <= set(found["probe"])
    assert list(found["references"]) == [
        "raw", "smoothed_power", "smoothed_ppr", "smoothed_mean", "untrained", "untrained_power"
    ]  # fmt: skip
    timing = found["timing"]
    parts = ("prepare_seconds", "fit_seconds", "embed_seconds", "probe_seconds", "references_seconds")
    assert timing["step_ms_median"] > 0
    assert sum(timing[part] for part in parts) <= timing["wall_seconds"]
    assert found["memory"]["peak_rss_mb"] > 100
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"]["type"] in ("cpu", "cuda")

    embeddings = np.load(folder / "embeddings.npy", allow_pickle=False)
    assert embeddings.shape == (400, 32)
    assert len(list(csv.DictReader((folder / "csv" / "metrics.csv").open()))) == 4  # every fifth step
    assert OmegaConf.load(folder / "config.yaml").dataset.split_seed == 3
    checkpoint = folder / "checkpoints" / "last.ckpt"
    assert GGD.load_from_checkpoint(checkpoint, weights_only=True).hparams["hidden_dim"] == 32
    assert not [path for path in folder.rglob("*") if "=" in path.name]

    for part in ("step 20 of 20, loss", "raw X", "untrained H + A^n H", f"files: {folder}"):
        assert part in outcome.stdout
    assert "warn" not in outcome.stderr.lower()


def test_a_run_can_keep_results_only(run: Run, tmp_path: Path) -> None:
    outcome = run(*TINY, "model=dgi", "trainer.max_steps=20", "keep_artifacts=false", "evaluation.references=false")
    assert outcome.returncode == 0, outcome.stderr
    assert not [path for path in (tmp_path / "run").rglob("*") if path.suffix in (".npy", ".ckpt")]
    statistics = result(tmp_path / "run")["statistics"]
    for moment in ("untrained", "trained"):
        assert list(statistics[moment]) == ["summary_mean", "summary_std", "summary_range"]
    assert statistics["untrained"] != statistics["trained"]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of one run can be measured on Linux only")
@pytest.mark.parametrize("serving", [("dataset.loader=full", "model.top_k=0"), ("dataset.loader=rows",)])
def test_two_views_of_pubmed_take_less_than_2_gb(run: Run, tmp_path: Path, serving: tuple[str, ...]) -> None:
    """The dense diffusion alone would take 1.6 GB, and its inverse several times as much."""
    if not (MIRROR / "PubMed").is_dir():
        pytest.skip("PubMed is not embedded: set GGD_DATA_MIRROR to a folder with PubMed/raw")
    outcome = run(
        "dataset=pubmed", "model=mvgrl_bce", "trainer.max_steps=2", "evaluation.references=false", *serving,
        f"model.cache_dir={tmp_path}/cache", GGD_DATA_MIRROR=str(MIRROR),
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert result(tmp_path / "run")["memory"]["peak_rss_mb"] < 2000


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(run: Run, tmp_path: Path) -> None:
    def embeddings(name: str, *arguments: str) -> np.ndarray:
        folder = tmp_path / name
        quick = ("trainer.max_steps=10", "evaluation.references=false", f"hydra.run.dir={folder}")
        outcome = run(*TINY, *quick, *arguments)
        assert outcome.returncode == 0, outcome.stderr
        return np.load(folder / "embeddings.npy")

    first = embeddings("first", "seed=0", "dataset.loader=rows")
    again = embeddings("again", "seed=0", "dataset.loader=rows", "trainer.deterministic=true")
    other = embeddings("other", "seed=1", "dataset.loader=rows")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_method_learns_as_well_in_bf16(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "-m", "dataset=citeseer", f"model={','.join(METHODS)}", "trainer.precision=32-true,bf16-mixed", "trainer=cpu",
        "trainer.max_steps=30", "model.hidden_dim=64", "model.learning_rate=1e-3", "dataset.loader=rows",
        "evaluation.references=false", "keep_artifacts=false",
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    found = [result(path.parent) for path in (tmp_path / "sweep").rglob("result.json")]
    accuracies = {(each["model"], each["hyperparameters"]["precision"]): each["test_accuracy"] for each in found}
    for method in METHODS:
        # Three times the largest difference (2.2 %) among five methods and three seeds.
        assert accuracies[method, "bf16-mixed"] == pytest.approx(accuracies[method, "32-true"], abs=0.066)


def test_callbacks_are_chosen_by_name(run: Run, tmp_path: Path) -> None:
    """No loss is smaller by 1 than the first, so training stops after that and the three steps of patience."""
    outcome = run(
        *TINY, "evaluation.references=false", "callbacks=[default,early_stopping,timer,lr_monitor,device_stats]",
        "callbacks.early_stopping.patience=3", "callbacks.early_stopping.min_delta=1", "model.learning_rate=0.25",
        "trainer.log_every_n_steps=1",
        "callbacks.last.train_time_interval=null", "callbacks.last.every_n_train_steps=3",
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert result(tmp_path / "run")["timing"]["steps"] == 4
    rows = list(csv.DictReader((tmp_path / "run" / "csv" / "metrics.csv").open()))
    assert [row["lr-Adam"] for row in rows if row["lr-Adam"]] == ["0.25"] * 4
    assert any("cpu_percent" in name for name in rows[0])
    steps = {
        name: torch.load(tmp_path / "run" / "checkpoints" / f"{name}.ckpt", weights_only=True)["global_step"]
        for name in ("best", "last")
    }
    assert steps == {"best": 3, "last": 4}


def test_a_finished_run_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    quick = (*TINY, "trainer.max_steps=2", "evaluation.references=false")
    assert run(*quick).returncode == 0
    before = (tmp_path / "run" / "result.json").read_text()
    again = run(*quick)
    assert again.returncode != 0
    assert "holds a result already: choose another hydra.run.dir" in again.stderr
    assert (tmp_path / "run" / "result.json").read_text() == before


def test_interrupted_saves_and_says_how_to_go_on(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "interrupted"
    command = [sys.executable, "-m", "src.train", *TINY, "trainer.max_steps=1000000", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)
    wait_for("step ", folder / "train.log")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert result(folder)["status"] == "interrupted"
    checkpoint = folder / "checkpoints" / "last.ckpt"
    arguments = shlex.join([*TINY, "trainer.max_steps=1000000", f"ckpt_path={checkpoint}"])
    assert f"Go on with: python -m src.train {arguments}" in output

    done = torch.load(checkpoint, weights_only=True)["global_step"]
    resumed = run(*TINY, f"trainer.max_steps={done + 5}", "evaluation.references=false", f"ckpt_path={checkpoint}")
    assert resumed.returncode == 0, resumed.stderr
    assert f"Going on from step {done}" in resumed.stdout
    assert len(list(csv.DictReader((tmp_path / "run" / "csv" / "metrics.csv").open()))) == 1  # every fifth step

    nothing_left = run(
        *TINY, f"trainer.max_steps={done}", "evaluation.references=false", f"ckpt_path={checkpoint}",
        f"hydra.run.dir={tmp_path}/rest",
    )  # fmt: skip
    assert nothing_left.returncode == 0, nothing_left.stderr
    assert "nothing is left to train" in nothing_left.stdout


@pytest.mark.parametrize(
    "serving",
    [
        ("dataset.loader=full", "model.edge_drop=0.1"),
        ("dataset.loader=neighbor", "dataset.batch_size=150", "dataset.num_neighbors=3", "model.num_layers=2"),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits(run: Run, tmp_path: Path, serving: tuple[str, ...]) -> None:
    arguments = (
        *TINY, *serving, "trainer=cpu", "trainer.max_steps=500", "evaluation.references=false",
        "callbacks.last.train_time_interval=null", "callbacks.last.every_n_train_steps=100",
    )  # fmt: skip
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "src.train", *arguments, f"hydra.run.dir={killed}"]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("step 250 of 500", killed / "train.log")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert result(killed)["status"] == "running"

    resumed = run(*arguments, "ckpt_path=last")
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(rf"Going on from step [2-4]00 of {killed}", resumed.stdout)
    whole = tmp_path / "elsewhere" / "whole"
    assert run(*arguments, f"hydra.run.dir={whole}").returncode == 0
    ends = []
    for folder in (tmp_path / "run", whole):
        losses = list(csv.DictReader((folder / "csv" / "metrics.csv").open()))
        ends.append((losses[-1], np.load(folder / "embeddings.npy")))
    assert ends[0][0] == ends[1][0]
    assert np.array_equal(ends[0][1], ends[1][1])


def test_two_processes_compute_the_gradients_of_one(run: Run, tmp_path: Path) -> None:
    """In a sweep, in one layer and in two, on the whole graph and on batches, of which each process takes half; and
    started by torchrun."""
    shared = (
        *TINY, "dataset.batch_size=100", "trainer.max_steps=6",
        "trainer.accelerator=cpu", "trainer.log_every_n_steps=1", "evaluation.references=false",
    )  # fmt: skip
    for name, processes in (("one", ()), ("two", ("trainer=ddp", "trainer.devices=2"))):
        jobs = "model.num_layers=2,1", "dataset.loader=full,rows"
        outcome = run("-m", *jobs, *shared, *processes, f"hydra.sweep.dir={tmp_path}/{name}")
        assert outcome.returncode == 0, outcome.stderr
    for job in ("0", "1", "2", "3"):
        one, two = (tmp_path / name / "synthetic" / "tiny" / "ggd" / job for name in ("one", "two"))
        assert result(two)["timing"]["steps"] == 6
        assert len(list(csv.DictReader((two / "csv" / "metrics.csv").open()))) == 6, "one process logs"
        parameters = [
            torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for folder in (one, two)
        ]
        torch.testing.assert_close(parameters[0], parameters[1], atol=1e-5, rtol=1e-4)

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "src.train"]
    started = subprocess.run(
        [
            *torchrun, *shared, "dataset.loader=rows", "trainer=ddp", "trainer.strategy=ddp",
            f"hydra.run.dir={tmp_path}/run",
        ],
        cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    assert started.stdout.count("files: ") == 1, "the first process alone tells of the result"
    rows = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    torch.testing.assert_close(parameters[0], rows, atol=1e-5, rtol=1e-4)


def test_started_processes_must_be_those_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer = {"_target_": "pytorch_lightning.Trainer", "accelerator": "cpu", "devices": 1, "strategy": "auto"}
    settings = {"precision": "32-true", "max_steps": 1, "enable_progress_bar": False, "enable_model_summary": False}
    cfg = OmegaConf.create({"trainer": trainer | settings, "callbacks": None, "keep_artifacts": False})
    with pytest.raises(ValueError, match=r"2 processes were started, and trainer\.devices=1 on trainer\.num_nodes=1"):
        make_trainer(cfg, [], [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.hidden_dim=-1",), "hidden_dim is -1; it must be at least 1"),
        (("dataset.split=stratified",), "it can be 'public', 'random', 'per_class'"),
        (("dataset.loader=rows", "model=mvgrl"), "set model.top_k=32, or dataset.loader=full"),
        (("dataset.loader=neighbor", "model=mvgrl"), "set dataset.loader=full or rows"),
        (("evaluation.references=maybe",), "it can be true, false or auto"),
        (("ckpt_path=nowhere.ckpt",), "ckpt_path=nowhere.ckpt is not a file"),
        (("ckpt_path=last",), "no run of ggd on synthetic/tiny left "),
        (("trainer.devices=2", "trainer.accelerator=cpu"), "choose trainer=ddp, or trainer.devices=1"),
        (("trainer=cpu", "trainer.precision=16-mixed"), "on the CPU it can be 32-true or bf16-mixed"),
        (("trainer.max_steps=-1",), "training would never end"),
    ],
)
def test_bad_settings_end_with_a_clear_error(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = run(*TINY, "trainer.max_steps=2", *arguments)
    assert outcome.returncode != 0
    assert message in outcome.stderr
    assert result(tmp_path / "run")["status"] == "failed"
    assert message in result(tmp_path / "run")["error"]
    if "ckpt_path" in message or "trainer" in message:
        assert "400 nodes" not in outcome.stdout, "noticed only when the graph was prepared"


def test_offline_without_the_raw_files(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "dataset=cora", f"data_dir={tmp_path}/data", "dataset.url=http://127.0.0.1:9", GGD_DATA_MIRROR=str(tmp_path)
    )
    assert outcome.returncode != 0
    for part in ("ind.cora.allx", "http://127.0.0.1:9/ind.cora.allx", f"{tmp_path}/data/Cora/raw", "GGD_DATA_MIRROR"):
        assert part in outcome.stderr


def test_the_command_works_from_any_folder(tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "src.train", *TINY, "trainer.max_steps=2", "evaluation.references=false",
         f"hydra.run.dir={tmp_path}/run"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_tuned_settings_are_defaults_and_the_command_line_wins(run: Run) -> None:
    tuned = OmegaConf.create(run("dataset=citeseer", "--cfg", "job").stdout)
    overruled = OmegaConf.create(run("dataset=citeseer", "model.learning_rate=1", "--cfg", "job").stdout)
    assert (tuned.model.learning_rate, tuned.dataset.loader) == (5e-4, "rows")
    assert overruled.model.learning_rate == 1


def test_the_embedded_graph_beats_its_raw_features(run: Run, tmp_path: Path) -> None:
    outcome = run("dataset=citeseer", f"data_dir={tmp_path}/none")
    assert outcome.returncode == 0, outcome.stderr
    found = result(tmp_path / "run")
    # Three standard deviations (1.1) under the mean of five seeds (72.6); raw features reach 61.5.
    assert found["test_accuracy"] > 0.693
    assert found["test_accuracy"] > found["references"]["raw"]["test_accuracy"] + 0.05
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(not (MIRROR / "Cora").is_dir(), reason="Cora is not embedded: set GGD_DATA_MIRROR to test it")
def test_cora_from_the_mirror(run: Run, tmp_path: Path) -> None:
    outcome = run("dataset=cora", "evaluation.references=false", GGD_DATA_MIRROR=str(MIRROR))
    assert outcome.returncode == 0, outcome.stderr
    # Three standard deviations (1.0) under the mean of five seeds.
    assert result(tmp_path / "run")["test_accuracy"] > 0.805


def test_references_auto_depends_on_the_size() -> None:
    assert wants_references("auto", 10_000_000)
    assert not wants_references("auto", 200_000_000)
    assert wants_references(True, 200_000_000)
    assert not wants_references(False, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process can be bounded on Linux only")
def test_out_of_memory_names_what_takes_less(tmp_path: Path) -> None:
    """The embedding of 20,000 nodes is 8 GB, and the process may have 3."""
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_DATA, (3 * 10**9,) * 2); "
        "runpy.run_module('src.train', run_name='__main__')"
    )
    outcome = subprocess.run(
        [
            sys.executable, "-c", limited, "dataset=synthetic/random", "dataset.num_nodes=20000",
            "model.hidden_dim=100000",
            "trainer=cpu", "trainer.max_steps=1", f"hydra.run.dir={tmp_path}/run",
        ],
        cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert outcome.returncode != 0
    assert "by dataset.loader=neighbor (or rows) and a smaller dataset.batch_size" in outcome.stdout
    assert result(tmp_path / "run")["status"] == "failed"
