"""Ctrl-C ends training, whatever runs when it comes."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from src.callbacks import LastCheckpoint
from src.data import GraphDataModule
from src.fit import fit
from src.models import DGIBCE
from tests.conftest import SHARED


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
