"""Loggers, read back from what they left on disk; no test here needs a server."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import requests
import torch
import wandb
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from src.callbacks import OnlineProbe, StepTimer
from src.command import PROJECT_ROOT
from src.dashboard import build_workspace
from src.data import GraphDataModule
from src.graph import Labels
from src.loggers import WandbLogger, choose_mode, logged, report, run_id_of
from src.models import GGD
from tests.conftest import SHARED, Run

TINY = ("dataset=synthetic/tiny", "model.hidden_dim=32", "trainer.max_steps=20", "trainer.log_every_n_steps=1")
SWEEP = yaml.safe_load((PROJECT_ROOT / "conf" / "wandb_sweep.yaml").read_text())


def read_wandb(folder: Path) -> list[Record]:
    """Records of the one run that W&B left in a folder, once its service has written them all."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 20
    while not of_kind(records := parse(path.read_bytes()), "exit") and time.monotonic() < deadline:
        time.sleep(0.1)
    return records


def parse(content: bytes) -> list[Record]:
    """Protobuf messages in LevelDB's log format, after a header of 7 bytes: blocks of 32 KiB, parts of messages."""
    position, message, records = 7, b"", []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        message += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole message, or its last part
            records.append(Record.FromString(message))
            message = b""
    return records


def of_kind(records: list[Record], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def without_key(home: Path) -> dict[str, str]:
    home.mkdir()
    return {"WANDB_API_KEY": "", "WANDB_MODE": "online", "NETRC": "", "HOME": str(home)}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Three jobs of one command, without a key, with an empty home and nothing on stdin."""
    folder = tmp_path_factory.mktemp("wandb")
    outcome = subprocess.run(
        [sys.executable, "-m", "src.train", "-m", "seed=0,1,2", "logger=[csv,wandb]", *TINY,
         f"hydra.sweep.dir={folder}/sweep"],
        cwd=PROJECT_ROOT, env=os.environ | without_key(folder / "home"), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    return folder / "sweep" / "synthetic" / "tiny" / "ggd", outcome


@pytest.mark.command
def test_a_sweep_makes_one_group_of_three_runs(sweep: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, outcome = sweep
    ids = set()
    for seed in range(3):
        records = read_wandb(folder / str(seed))
        (run,) = of_kind(records, "run")
        ids.add(run.run_id)
        known = (run.project, run.run_group, run.job_type, run.display_name, list(run.tags))
        name = f"ggd synthetic/tiny seed {seed}"
        assert known == ("group-discrimination", "sweep", "train", name, ["ggd", "synthetic/tiny"])

        (config,) = of_kind(records, "config")
        assert values(config.update) == OmegaConf.to_container(OmegaConf.load(folder / str(seed) / "config.yaml"))
        assert [key for key in values(run.config.update) if key != "_wandb"] == []

        history = [values(step.item) for step in of_kind(records, "history")]
        losses = [(row["trainer/global_step"], row["loss"]) for row in history if "loss" in row]
        assert [step for step, _ in losses] == list(range(20))
        assert np.isfinite([loss for _, loss in losses]).all()
        assert [row["projection/_type"] for row in history if "projection/_type" in row] == ["images/separated"]

        result = json.loads((folder / str(seed) / "result.json").read_text())
        summary: dict[str, Any] = {}
        for record in of_kind(records, "summary"):
            summary |= values(record.update)
        assert summary["test_accuracy"] == result["test_accuracy"]
        assert summary["val_accuracy"] == result["val_accuracy"]
        assert summary["fit_seconds"] == result["timing"]["fit_seconds"]
        assert summary["step_ms_median"] == result["timing"]["step_ms_median"]
        assert summary["peak_rss_mb"] == result["memory"]["peak_rss_mb"]
        for reference, row in result["references"].items():
            assert summary[f"references/{reference}"] == row["test_accuracy"]
        assert not of_kind(records, "artifact")
        assert [record.exit_code for record in of_kind(records, "exit")] == [0]
    assert len(ids) == 3
    assert outcome.stdout.count("To upload: wandb sync") == 3
    assert "wandb:" not in outcome.stdout + outcome.stderr


@pytest.mark.command
def test_a_failing_run_is_marked_failed(run: Run, tmp_path: Path) -> None:
    outcome = run(*TINY, "logger=wandb", "model.hidden_dim=-1", **without_key(tmp_path / "home"))
    assert outcome.returncode != 0
    assert "hidden_dim is -1; it must be at least 1" in outcome.stderr
    records = read_wandb(tmp_path / "run")
    assert of_kind(records, "run")[0].run_group == ""
    assert [record.exit_code for record in of_kind(records, "exit")] == [1]


@pytest.mark.command
def test_tensorboard_and_the_probe_during_training(
    run: Run, tmp_path: Path, sweep: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    outcome = run(*TINY, "logger=tensorboard", "logger.online_every=5")
    assert outcome.returncode == 0, outcome.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(20))
    assert [event.step for event in events.Scalars("online_val_accuracy")] == [4, 9, 14, 19]
    # After the last step it's the accuracy that the run ends with.
    assert events.Scalars("online_val_accuracy")[-1].value == pytest.approx(result["val_accuracy"])
    for name in ("test_accuracy", "val_accuracy"):
        assert events.Scalars(name)[-1].value == pytest.approx(result[name])
    assert events.Scalars("fit_seconds")[-1].value == pytest.approx(result["timing"]["fit_seconds"])
    assert events.Scalars("references/raw")[-1].value == pytest.approx(result["references"]["raw"]["test_accuracy"])
    settings = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"model/hidden_dim" in settings
    hparams = yaml.safe_load((tmp_path / "run" / "tensorboard" / "hparams.yaml").read_text())
    assert hparams == OmegaConf.to_container(OmegaConf.load(tmp_path / "run" / "config.yaml"))

    plain = sweep[0] / "0"  # the same seed, without looking
    assert np.array_equal(np.load(plain / "embeddings.npy"), np.load(tmp_path / "run" / "embeddings.npy"))
    timing = result["timing"]
    assert timing["online_probe_seconds"] > 0
    assert timing["prepare_seconds"] + timing["fit_seconds"] + timing["online_probe_seconds"] < timing["wall_seconds"]
    assert "online_probe_seconds" not in json.loads((plain / "result.json").read_text())["timing"]


def test_the_probe_during_training_leaves_random_numbers_and_test_nodes_alone(
    make_datamodule: Callable[..., GraphDataModule],
) -> None:
    class Gambler:
        """A probe that draws random numbers of every kind, and remembers what it was shown."""

        def evaluate(self, embeddings: torch.Tensor, labels: Labels) -> SimpleNamespace:
            self.labels, self.training = labels, model.training
            time.sleep(0.01)
            return SimpleNamespace(val_accuracy=torch.rand(1).item() + np.random.rand() + random.random())  # noqa: NPY002

    def draw_all() -> tuple[float, float, float]:
        return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

    datamodule = make_datamodule("synthetic/tiny")
    datamodule.setup()
    model = GGD(num_features=120, projector_layers=1, projector_activation="none", aggregation="sum",
                feature_drop=0.2, edge_drop=0.0, hops=5, **SHARED)  # fmt: skip
    probe, timer, logged_metrics = Gambler(), StepTimer(), []
    timer.on_train_start(None, model)  # type: ignore[arg-type]
    callback = OnlineProbe(2, probe, datamodule, timer)  # type: ignore[arg-type]
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged_metrics.append((step, list(metrics))))
    draws = []
    for global_step in (1, 2):  # the probe is due at the second step only
        pl.seed_everything(0, verbose=False)
        trainer = SimpleNamespace(global_step=global_step, loggers=[logger])
        callback.on_train_batch_end(trainer, model, {}, None, 0)  # type: ignore[arg-type]
        draws.append(draw_all())
    assert draws[0] == draws[1]
    assert logged_metrics == [(1, ["online_val_accuracy", "online_fit_seconds"])]
    assert (probe.training, model.training) == (False, True)
    assert torch.equal(probe.labels.test, datamodule.labels.validation)
    assert timer.paused_seconds >= 0.01
    with pytest.raises(ValueError, match=r"logger.online_every is 0; it must be at least 1"):
        OnlineProbe(0, probe, datamodule, timer)  # type: ignore[arg-type]
    datamodule.labels = None
    with pytest.raises(ValueError, match=r"logger.online_every probes validation nodes, and no classes are known"):
        callback.on_fit_start(trainer, model)  # type: ignore[arg-type]


@pytest.mark.command
def test_the_command_of_a_sweeps_agent_runs(run: Run, tmp_path: Path) -> None:
    """Filled in by W&B's own function, as an agent does it, with the last choice of each parameter."""
    chosen = {key: {"value": choice.get("max") or choice["values"][-1]} for key, choice in SWEEP["parameters"].items()}
    filled = create_sweep_command_args({"args": chosen}) | {"env": [], "interpreter": []}
    command = [word for part in SWEEP["command"] for word in filled.get(part[2:-1], [part])]
    assert command[:2] == ["-m", "src.train"]
    quick = ("trainer.max_steps=2", "model.hidden_dim=8")
    outcome = run(*command[2:], *quick, **without_key(tmp_path / "home"))
    assert outcome.returncode == 0, outcome.stderr
    records = read_wandb(tmp_path / "run")
    assert SWEEP["metric"] == {"name": "val_accuracy", "goal": "maximize"}
    assert any("val_accuracy" in values(record.update) for record in of_kind(records, "summary"))
    model = values(of_kind(records, "config")[0].update)["model"]
    assert (model["num_layers"], model["projector_layers"], model["aggregation"]) == (2, 2, "linear")


def test_the_parameters_of_the_sweep_are_settings() -> None:
    with initialize_config_dir(str(PROJECT_ROOT / "conf"), version_base="1.3"):
        settings = compose("train")
    for key in SWEEP["parameters"]:
        assert OmegaConf.select(settings, key) is not None
    names = {key.removeprefix("model.") for key in SWEEP["parameters"]}
    assert names == {"learning_rate", "hidden_dim", "num_layers", "projector_layers", "aggregation"}


@pytest.fixture
def make_logger(tmp_path: Path) -> Any:
    def make(**changes: Any) -> WandbLogger:
        arguments: dict[str, Any] = {
            "mode": "offline", "projection_nodes": 0, "artifacts": False, "ckpt_path": None, "save_dir": tmp_path
        }  # fmt: skip
        return WandbLogger(**(arguments | changes))

    return make


def test_an_interrupted_run_is_marked_failed_and_goes_on_under_its_id(make_logger: Any, tmp_path: Path) -> None:
    first = make_logger()
    with pytest.raises(KeyboardInterrupt), logged([first], {"seed": 0}):
        raise KeyboardInterrupt
    assert wandb.run is None
    assert [record.exit_code for record in of_kind(read_wandb(tmp_path), "exit")] == [1]
    checkpoint = str(tmp_path / "checkpoints" / "last.ckpt")
    assert run_id_of(checkpoint) == first.version
    second = make_logger(ckpt_path=checkpoint, save_dir=tmp_path / "resumed")
    (tmp_path / "resumed").mkdir()
    with logged([second], {"seed": 0}):
        assert second.experiment.id == first.version
    assert run_id_of(str(tmp_path / "elsewhere" / "checkpoints" / "last.ckpt")) is None


def test_artifacts_are_the_checkpoint_and_the_embeddings(
    make_logger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("a checkpoint")
    np.save(tmp_path / "embeddings.npy", np.eye(3))
    result = {"val_accuracy": 0.5, "test_accuracy": 0.4, "timing": {}, "memory": {}, "references": None}
    logger = make_logger(artifacts=True)
    with logged([logger], {"keep_artifacts": True}):
        report([logger], result, torch.eye(3), torch.arange(3), tmp_path)
    artifacts = of_kind(read_wandb(tmp_path), "artifact")
    assert [(artifact.type, artifact.name) for artifact in artifacts] == [
        ("model", f"model-{logger.version}"), ("embeddings", f"embeddings-{logger.version}")
    ]  # fmt: skip
    assert [entry.path for artifact in artifacts for entry in artifact.manifest.contents] == [
        "last.ckpt", "embeddings.npy"
    ]  # fmt: skip


def test_artifacts_need_what_they_upload(make_logger: Any) -> None:
    with (
        pytest.raises(ValueError, match="keep_artifacts=false"),
        logged([make_logger(artifacts=True)], {"keep_artifacts": False}),
    ):
        pass


def test_a_run_is_online_only_with_a_key_and_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise requests.ConnectionError

    monkeypatch.setattr(wandb.setup().settings, "mode", "online")
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    assert choose_mode("auto") == ("offline", "no API key: set WANDB_API_KEY or run wandb login")
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(requests, "head", no_network)
    mode, reason = choose_mode("auto")
    assert mode == "offline"
    assert "does not answer" in reason
    monkeypatch.setattr(requests, "head", lambda *_, **__: None)
    assert choose_mode("auto")[0] == "online"
    assert choose_mode("offline") == ("offline", "logger.wandb.mode=offline")
    with pytest.raises(ValueError, match=r"logger.wandb.mode is 'of'; it can be 'auto', 'online'"):
        WandbLogger("of", 0, False, None)


def test_a_server_that_refuses_a_run_does_not_stop_it(
    make_logger: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init = wandb.init

    def refuse(mode: str, **arguments: Any) -> wandb.Run:
        if mode == "online":
            raise wandb.errors.CommError("no such entity")
        return init(mode=mode, **arguments)

    monkeypatch.setattr(wandb, "init", refuse)
    monkeypatch.setattr(wandb.setup().settings, "mode", "online")
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(requests, "head", lambda *_, **__: None)
    caplog.set_level("INFO", logger="src.loggers")
    with logged([make_logger(mode="auto")], {"seed": 0}):
        pass
    assert "W&B is offline (no such entity). To upload: wandb sync" in caplog.text
    with pytest.raises(wandb.errors.CommError, match="no such entity"), logged([make_logger(mode="online")], {}):
        pass


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
def test_the_workspace_shows_what_the_runs_log() -> None:
    hyperparameters = yaml.safe_load((PROJECT_ROOT / "conf" / "dashboard.yaml").read_text())["hyperparameters"]
    assert sorted(hyperparameters) == sorted(SWEEP["parameters"])
    spec = json.dumps(build_workspace("someone", "p", "n", hyperparameters)._to_model().model_dump(by_alias=True))
    for part in (
        "fit_seconds",
        "test_accuracy",
        '"loss"',
        "online_val_accuracy",
        "peak_rss_mb",
        "Parallel Coordinates",
    ):
        assert part in spec
    for key in hyperparameters:
        assert key.replace("model.", "config:model.value.") in spec


@pytest.mark.command
def test_the_dashboard_without_a_key_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    environment = without_key(tmp_path / "home")
    outcome = run(module="src.dashboard", **environment)
    assert outcome.returncode != 0
    assert "set WANDB_API_KEY or run wandb login. dry_run=true writes" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    dry = run("dry_run=true", module="src.dashboard", **environment)
    assert dry.returncode == 0, dry.stderr
    assert json.loads((tmp_path / "run" / "workspace.json").read_text())["project"] == "group-discrimination"
