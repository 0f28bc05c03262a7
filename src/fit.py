"""Training by a Lightning Trainer: from a checkpoint if there is one, to the last step or an interrupt."""

from __future__ import annotations

import contextlib
import logging
import signal
import warnings
from collections.abc import Iterator
from types import FrameType

import pytorch_lightning as pl
import torch

from src.data import GraphDataModule
from src.models import Method

log = logging.getLogger(__name__)


def fit(trainer: pl.Trainer, model: Method, datamodule: GraphDataModule, ckpt_path: str | None) -> None:
    """Train, from a checkpoint if one is given."""
    if ckpt_path is not None:
        done = torch.load(ckpt_path, weights_only=True, map_location="cpu")["global_step"]
        if trainer.max_steps <= done:
            log.info(
                "This checkpoint has its %s steps: nothing is left to train. Raise trainer.max_steps to go on.", done
            )
        else:
            log.info("Going on from step %s of %s", done, ckpt_path)
    with warnings.catch_warnings(), no_lost_interrupt(trainer):
        for harmless in ("does not have many workers", "LeafSpec", "dirpath has changed", "callbacks used to create"):
            warnings.filterwarnings("ignore", message=f".*{harmless}.*")
        trainer.fit(model, datamodule, ckpt_path=ckpt_path, weights_only=True)


@contextlib.contextmanager
def no_lost_interrupt(trainer: pl.Trainer) -> Iterator[None]:
    """Let Ctrl-C end training at the end of a step, if it did not at once.

    Python drops an exception in a function that C code calls, such as those that LLVM calls while a kernel is compiled.
    """
    interrupted = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = trainer.should_stop = True
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupted:
        raise KeyboardInterrupt
