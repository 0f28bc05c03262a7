"""Training: its seconds, what is compiled for it, and its end at Ctrl-C, whatever runs when it comes."""

from __future__ import annotations

import copy
import ctypes
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from src.callbacks import Compile, LastCheckpoint, StepTimer
from src.data import GraphDataModule
from src.fit import fit
from src.models import DGIBCE, GGD, Method
from tests.conftest import SHARED


class CompilingBetweenSteps(pl.Callback):
    """Compiles a kernel that no cache has, after the second step."""

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == 2:
            numba.njit(lambda x: np.sort(x) + np.cumsum(x))(np.ones(3))


def train(model: Method, datamodule: GraphDataModule, *callbacks: pl.Callback) -> dict[str, float | None]:
    trainer = pl.Trainer(max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False,
                         enable_model_summary=False, enable_checkpointing=False,
                         callbacks=[StepTimer(), *callbacks])  # fmt: skip
    fit(trainer, model, datamodule, None)
    return StepTimer.measured(trainer)


def test_what_is_compiled_meanwhile_is_told_and_no_training(
    make_datamodule: Callable[..., GraphDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    datamodule = make_datamodule("synthetic/tiny")
    datamodule.setup()

    def train_three_steps(*callbacks: pl.Callback) -> tuple[dict[str, float | None], float]:
        model = DGIBCE(aggregation="sum", num_features=datamodule.graph.num_features, **SHARED)
        started = time.perf_counter()
        return train(model, datamodule, *callbacks), time.perf_counter() - started

    train_three_steps()  # compiles the method's own kernels, if no cache has them
    caplog.clear()
    measured, _ = train_three_steps()
    assert "compile_seconds" not in measured
    with caplog.at_level(logging.INFO):
        measured, seconds = train_three_steps(CompilingBetweenSteps())
    assert measured["compile_seconds"] > 0.01
    assert measured["fit_seconds"] + measured["compile_seconds"] < seconds
    assert caplog.text.count("Compiling kernels") == 1
    numba.njit(lambda x: np.sort(x) - 1)(np.ones(3))  # after training, nobody listens
    assert caplog.text.count("Compiling kernels") == 1


@pytest.fixture
def datamodule_and_twins(make_datamodule: Callable[..., GraphDataModule]) -> tuple[GraphDataModule, GGD, GGD]:
    """A small graph, and two equal models with parts that PyTorch may compile."""
    datamodule = make_datamodule("synthetic/tiny", loader="full")
    datamodule.setup()
    layers = {"num_layers": 2, "activation": "sigmoid", "projector_layers": 2, "projector_activation": "relu"}
    rest = {"aggregation": "sum", "feature_drop": 0.2, "edge_drop": 0.0, "hops": 1}
    model = GGD(num_features=datamodule.graph.num_features, **SHARED | layers | rest)
    return datamodule, model, copy.deepcopy(model)


def test_compiled_parts_train_as_plain_ones_do(datamodule_and_twins: tuple[GraphDataModule, GGD, GGD]) -> None:
    datamodule, model, plain = datamodule_and_twins
    callback = Compile("default")
    assert train(model, datamodule, callback)["compile_seconds"]
    assert [method for _, method in callback.compiled] == ["activate", "activate", "plain"]
    assert not any(method in vars(module) for module, method in callback.compiled)
    train(plain, datamodule)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # Adam turns a last bit into a hundredth of 1e-3


def test_without_a_compiler_training_says_so_and_goes_on(
    datamodule_and_twins: tuple[GraphDataModule, GGD, GGD],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    datamodule, model, plain = datamodule_and_twins
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, "no-such-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    train(model, datamodule, Compile("default"))
    assert "nothing is compiled, since torch.compile fails here: InvalidCxxCompiler: No working C++" in caplog.text
    train(plain, datamodule)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class InterruptedInC(pl.Callback):
    """Sends the interrupt of the third step while C code calls Python, where no exception can be handed on."""

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        if trainer.global_step == 2:
            ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_ends_training_after_the_step(
    make_datamodule: Callable[..., GraphDataModule], tmp_path: Path
) -> None:
    datamodule = make_datamodule("synthetic/tiny")
    datamodule.setup()
    trainer = pl.Trainer(
        max_steps=10, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[InterruptedInC(), LastCheckpoint(tmp_path, "last")],
    )  # fmt: skip
    before = signal.getsignal(signal.SIGINT)
    model = DGIBCE(aggregation="sum", num_features=datamodule.graph.num_features, **SHARED)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, model, datamodule, None)
    assert trainer.global_step == 3
    assert (tmp_path / "last.ckpt").exists()
    assert signal.getsignal(signal.SIGINT) is before
