"""Lightning callbacks that count steps rather than epochs, and a probe during training."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import sys
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numba.core.event
import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from tqdm.auto import tqdm

from src.data import GraphDataModule
from src.evaluation.probe import LinearProbe
from src.models import Method
from src.models.discriminator import GroupDiscriminator
from src.models.encoders import GCNLayer, PyGEncoder
from src.ops.checks import check_choice, check_range

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


class Compilation(numba.core.event.Listener):
    """Seconds that numba compiles kernels, which it does once in a copy of the project, and a line that says so.

    Where ``Compile`` is among the callbacks, those of ``torch.compile`` too.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.depth = 0  # a kernel may need another

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Count what is compiled in this context."""
        compiler = torch._dynamo.callback.callback_handler
        compiler.register_start_callback(self.on_start)
        compiler.register_end_callback(self.on_end)
        try:
            with numba.core.event.install_listener("numba:compile", self):
                yield
        finally:
            compiler.remove_start_callback(self.on_start)
            compiler.remove_end_callback(self.on_end)

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            if self.seconds == 0:
                log.info("Compiling kernels, which the next run finds: some seconds, which are not counted as training")
            self.started = time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.perf_counter() - self.started


class StepTimer(pl.Callback):
    """Seconds of each step (forward, backward, update), and of training as a whole, but for compiling kernels.

    A GPU is waited for at the end alone, so that there a step's seconds are those of handing it over.
    """

    def __init__(self) -> None:
        self.step_seconds: list[float] = []
        self.paused_seconds = 0.0  # what others did meanwhile, which is no training
        self.compilation = Compilation()
        self.listening = contextlib.ExitStack()

    def elapsed(self) -> float:
        """Seconds of training so far."""
        return time.perf_counter() - self.fit_started - self.paused_seconds - self.compilation.seconds

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.listening.enter_context(self.compilation.listen())
        self.fit_started = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.step_started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.step_seconds.append(time.perf_counter() - self.step_started)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.listening.close()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.listening.close()
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        measured = {
            "steps": trainer.global_step,
            "fit_seconds": self.elapsed(),
            "step_ms_median": 1000 * statistics.median(self.step_seconds),
        }
        meanwhile = {"online_probe_seconds": self.paused_seconds, "compile_seconds": self.compilation.seconds}
        measured |= {name: seconds for name, seconds in meanwhile.items() if seconds}
        # Where training has processes of its own, this is what Lightning hands on to the one that started them.
        trainer.callback_metrics.update({name: torch.as_tensor(np.asarray(value)) for name, value in measured.items()})

    @staticmethod
    def measured(trainer: pl.Trainer) -> dict[str, float | None]:
        """Return what was measured of a training: no seconds, and no median step, where nothing was left to do."""
        names = ("steps", "fit_seconds", "step_ms_median", "online_probe_seconds", "compile_seconds")
        measured = {name: trainer.callback_metrics[name].item() for name in names if name in trainer.callback_metrics}
        return {"fit_seconds": 0.0, "step_ms_median": None} | measured


class Compile(pl.Callback):
    """``torch.compile`` of what is plain PyTorch in a model, while it trains. Without a compiler, a line says so.

    That is PyG's convolutions, heads that are not linear, and activations between layers, unless kernels make them.

    Args:
        mode: Of ``torch.compile``.
    """

    PARTS: ClassVar[dict[type, str]] = {PyGEncoder: "forward", GCNLayer: "activate", GroupDiscriminator: "plain"}

    def __init__(self, mode: str) -> None:
        check_choice("callbacks.compile.mode", mode, ["default", "reduce-overhead", "max-autotune"])
        self.mode = mode

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.compiled: list[tuple[torch.nn.Module, str]] = []
        try:
            torch.compile(torch.neg)(torch.ones(8, device=pl_module.device))
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            log.warning("callbacks.compile: nothing is compiled, since torch.compile fails here: %s", reason)
            return
        for module in pl_module.modules():
            for kind, method in self.PARTS.items():
                if isinstance(module, kind):
                    setattr(module, method, torch.compile(getattr(module, method), mode=self.mode))
                    self.compiled.append((module, method))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for module, method in self.compiled:  # embedding, without gradients, would be compiled anew
            delattr(module, method)


class Checkpoint(pl.callbacks.ModelCheckpoint):
    """Lightning's, but it makes its key once, and not for each of a dozen hooks in a step."""

    @cached_property
    def state_key(self) -> str:
        return super().state_key


class LastCheckpoint(Checkpoint):
    """Saves the end of training too, whenever that is."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.format_checkpoint_name({}))


class EarlyStopping(pl.callbacks.EarlyStopping):
    """Lightning's, which looks at the last logged loss after each step: here an epoch is the whole of training."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Nothing: the last step has been looked at."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.monitor in trainer.callback_metrics:
            self._run_early_stopping_check(trainer)


class OnlineProbe(pl.Callback):
    """Log the probe's validation accuracy during training, which takes no notice of it.

    Neither the random numbers nor the model change, and the timer pauses. Nothing here reads a test node.

    Args:
        every: Steps from one probe to the next, at least 1.
        probe: The probe that judges the trained embeddings.
        datamodule: Holds the labels and the graph, in training on the device of the model.
        timer: Counts the seconds of training.
    """

    def __init__(self, every: int, probe: LinearProbe, datamodule: GraphDataModule, timer: StepTimer) -> None:
        check_range("logger.online_every", every, 1)
        self.every, self.probe, self.datamodule, self.timer = every, probe, datamodule, timer

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.datamodule.labels is None:
            raise ValueError("logger.online_every probes validation nodes, and no classes are known: set it to null")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every:
            return
        assert isinstance(pl_module, Method)
        assert self.datamodule.labels is not None
        trained = self.timer.elapsed()
        labels = dataclasses.replace(self.datamodule.labels, test=self.datamodule.labels.validation)
        pl_module.eval()
        with isolate_rng(), torch.no_grad():
            accuracy = self.probe.evaluate(pl_module.embed(self.datamodule.graph), labels).val_accuracy
        pl_module.train()
        metrics = {"online_val_accuracy": accuracy, "online_fit_seconds": trained}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)  # as the loss's is
        self.timer.paused_seconds += self.timer.elapsed() - trained
