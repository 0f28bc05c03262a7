"""Training: its seconds, and its end at Ctrl-C, whatever runs when it comes."""

from __future__ import annotations

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

from src.callbacks import LastCheckpoint, StepTimer
from src.data import GraphDataModule
from src.fit import fit
from src.models import DGIBCE
from tests.conftest import SHARED


class CompilingBetweenSteps(pl.Callback):
    """Compiles a kernel that no cache has, after the second step."""

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == 2:
            numba.njit(lambda x: np.sort(x) + np.cumsum(x))(np.ones(3))


def test_what_is_compiled_meanwhile_is_told_and_no_training(
    make_datamodule: Callable[..., GraphDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    datamodule = make_datamodule("synthetic/tiny")
    datamodule.setup()

    def train(*callbacks: pl.Callback) -> tuple[dict[str, float | None], float]:
        timer = StepTimer()
        trainer = pl.Trainer(max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False,
                             enable_model_summary=False, enable_checkpointing=False,
                             callbacks=[timer, *callbacks])  # fmt: skip
        model = DGIBCE(aggregation="sum", num_features=datamodule.graph.num_features, **SHARED)
        started = time.perf_counter()
        fit(trainer, model, datamodule, None)
        return StepTimer.measured(trainer), time.perf_counter() - started

    train()  # compiles the method's own kernels, if no cache has them
    caplog.clear()
    measured, _ = train()
    assert "compile_seconds" not in measured
    with caplog.at_level(logging.INFO):
        measured, seconds = train(CompilingBetweenSteps())
    assert measured["compile_seconds"] > 0.01
    assert measured["fit_seconds"] + measured["compile_seconds"] < seconds
    assert caplog.text.count("Compiling kernels") == 1
    numba.njit(lambda x: np.sort(x) - 1)(np.ones(3))  # after training, nobody listens
    assert caplog.text.count("Compiling kernels") == 1


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
