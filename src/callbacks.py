"""Lightning callbacks: progress that counts steps, and the time that each step takes."""

from __future__ import annotations

import logging
import statistics
import sys
import time
from typing import Any

import pytorch_lightning as pl
from tqdm.auto import tqdm

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

    @property
    def step_ms_median(self) -> float | None:
        """Median milliseconds of a step; None before the first."""
        return 1000 * statistics.median(self.step_seconds) if self.step_seconds else None

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
        self.fit_seconds = time.perf_counter() - self.fit_started
