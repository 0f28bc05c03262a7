"""Lightning callbacks: progress that counts steps, the time that each step takes, and a probe during training."""

from __future__ import annotations

import dataclasses
import logging
import statistics
import sys
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from tqdm.auto import tqdm

from src.data import GraphDataModule
from src.evaluation.probe import LinearProbe
from src.models import Method
from src.ops.checks import check_range

log = logging.getLogger(__name__)


class Progress(pl.Callback):
    """A bar over all optimiser steps on a terminal; elsewhere a plain line each tenth, and at least each ten seconds.

    Lightning's own bar starts anew with each epoch, and on a full graph an epoch is a single step.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.total = int(trainer.estimated_stepping_batches)
        self.interval = max(1, self.total // 10)
        self.last_line = time.monotonic()
        self.bar = tqdm(
            total=self.total, initial=trainer.global_step, desc="training", unit="step", disable=not sys.stderr.isatty()
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        self.bar.update(1)
        if self.bar.disable:
            now = time.monotonic()
            if step % self.interval == 0 or step == self.total or now > self.last_line + 10:
                self.last_line = now
                log.info("step %s of %s, loss %.4f", step, self.total, outputs["loss"].item())
        elif step % 10 == 0:  # reading the loss waits for the device
            self.bar.set_postfix(loss=f"{outputs['loss'].item():.4f}", refresh=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


class StepTimer(pl.Callback):
    """Seconds of each step (forward, backward, update), and of training as a whole."""

    def __init__(self) -> None:
        self.step_seconds: list[float] = []
        self.fit_seconds = 0.0
        self.paused_seconds = 0.0  # what others did meanwhile, which is no training

    @property
    def step_ms_median(self) -> float | None:
        """Median milliseconds of a step; None before the first."""
        return 1000 * statistics.median(self.step_seconds) if self.step_seconds else None

    def elapsed(self) -> float:
        """Seconds of training so far."""
        return time.perf_counter() - self.fit_started - self.paused_seconds

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.fit_started = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.step_started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.step_seconds.append(time.perf_counter() - self.step_started)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.fit_seconds = self.elapsed()


class OnlineProbe(pl.Callback):
    """Log the probe's validation accuracy during training, which takes no notice of it.

    Neither the random numbers nor the model change, and the timer pauses. Nothing here reads a test node.

    Args:
        every: Steps from one probe to the next, at least 1.
        probe: The probe that judges the trained embeddings.
        datamodule: Holds the graph, by then on the device of the model, and the labels.
        timer: Counts the seconds of training.
    """

    def __init__(self, every: int, probe: LinearProbe, datamodule: GraphDataModule, timer: StepTimer) -> None:
        check_range("logger.online_every", every, 1)
        self.every, self.probe, self.datamodule, self.timer = every, probe, datamodule, timer
        self.labels = dataclasses.replace(datamodule.labels, test=datamodule.labels.validation)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every:
            return
        assert isinstance(pl_module, Method)
        started, trained = time.perf_counter(), self.timer.elapsed()
        pl_module.eval()
        with isolate_rng(), torch.no_grad():
            accuracy = self.probe.evaluate(pl_module.embed(self.datamodule.graph), self.labels).val_accuracy
        pl_module.train()
        metrics = {"online_val_accuracy": accuracy, "online_fit_seconds": trained}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)  # as the loss's is
        self.timer.paused_seconds += time.perf_counter() - started
