"""What Lightning's loggers leave to do: the settings before a run, its numbers after it, and how it ended.

wandb is imported only where a run goes to it, since that takes a second.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from torch import Tensor

from src.ops.checks import check_choice, check_range

log = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")


class WandbLogger(pl.loggers.WandbLogger):
    """Lightning's logger to Weights & Biases, which never asks for a key and works without a network.

    Args:
        mode: One of ``MODES``; ``auto`` is what ``WANDB_MODE`` says, else online if there is a key and a server that
            takes the run, else offline.
        projection_nodes: Nodes in the picture of the embedding; 0 for none.
        artifacts: Upload the checkpoint and the embeddings too.
        ckpt_path: The checkpoint that the run goes on from; the W&B run of its folder, if there is one, goes on too.
        arguments: Of Lightning's logger and of ``wandb.init``.
    """

    def __init__(
        self, mode: str, projection_nodes: int, artifacts: bool, ckpt_path: str | None, **arguments: Any
    ) -> None:
        import wandb

        check_choice("logger.wandb.mode", mode, MODES)
        check_range("logger.wandb.projection_nodes", projection_nodes, 0)
        self.projection_nodes, self.artifacts, self.may_choose = projection_nodes, artifacts, mode == "auto"
        mode, self.reason = choose_mode(mode)
        settings = wandb.Settings(silent=True)  # of what it would print, start() says what matters, in one line
        super().__init__(mode=mode, settings=settings, id=ckpt_path and run_id_of(ckpt_path), **arguments)
        self._wandb_init.pop("anonymous", None)  # Lightning passes it on, and wandb warns of it

    def start(self, settings: dict[str, Any]) -> None:
        """Open the run, say where it goes, and log its settings.

        Raises:
            ValueError: If files are asked for that the run will not keep.
        """
        import wandb

        if self.artifacts and not settings["keep_artifacts"]:
            raise ValueError("logger.wandb.artifacts=true uploads files that keep_artifacts=false leaves out")
        try:
            run = self.experiment
        except wandb.errors.CommError as error:
            if not self.may_choose:
                raise
            self.reason, self._wandb_init["mode"] = str(error), "offline"
            run = self.experiment
        self.log_hyperparams(settings)
        if run.disabled:
            return
        if run.offline:
            log.info("W&B is offline (%s). To upload: wandb sync %s", self.reason, Path(run.dir).parent)
        else:
            log.info("W&B: %s", run.url)

    def report(self, numbers: dict[str, float], embeddings: Tensor, classes: Tensor | None, run_dir: Path) -> None:
        """Log the final numbers as the summary, and the picture and the files that are asked for."""
        import wandb

        from src.evaluation.projection import draw, project

        run = self.experiment
        run.summary.update(numbers)
        if self.projection_nodes:
            nodes, places = project(embeddings.numpy(), self.projection_nodes)
            self.log_image("projection", [draw(places, None if classes is None else classes[nodes].numpy())])
        if self.artifacts:
            for kind, file in (("model", "checkpoints/last.ckpt"), ("embeddings", "embeddings.npy")):
                artifact = wandb.Artifact(f"{kind}-{run.id}", kind)
                artifact.add_file(str(run_dir / file))
                run.log_artifact(artifact)


def choose_mode(mode: str) -> tuple[str, str]:
    """Return the mode for ``wandb.init``, and the reason for it."""
    import requests
    import wandb

    settings = wandb.setup().settings
    if mode != "auto":
        return mode, f"logger.wandb.mode={mode}"
    if settings.mode != "online":
        return settings.mode, "WANDB_MODE"
    if not wandb.login(prompt=False, verify=False):
        return "offline", "no API key: set WANDB_API_KEY or run wandb login"
    try:
        requests.head(settings.base_url, timeout=5)
    except requests.RequestException:
        return "offline", f"{settings.base_url} does not answer"
    return "online", "a key and a network"


def run_id_of(ckpt_path: str) -> str | None:
    """Return the id of the W&B run in the folder that holds ``checkpoints/<checkpoint>``; None if there is none."""
    names = [folder.name.partition("run-")[2] for folder in Path(ckpt_path).resolve().parents[1].glob("wandb/*run-*-*")]
    return max(names).rpartition("-")[2] if names else None  # <time>-<id>


@contextlib.contextmanager
def logged(loggers: Sequence[Logger], settings: dict[str, Any]) -> Iterator[None]:
    """Log the settings, and end W&B's run with the block: as failed if it raises, or is interrupted."""
    exit_code = 1
    try:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.start(settings)
            else:
                logger.log_hyperparams(settings)
        yield
        exit_code = 0
    finally:
        if any(isinstance(logger, WandbLogger) for logger in loggers):
            import wandb

            wandb.finish(exit_code)  # the next job of a sweep needs a run of its own


def report(
    loggers: Sequence[Logger], result: dict[str, Any], embeddings: Tensor, classes: Tensor | None, run_dir: Path
) -> None:
    """Log what is known at the end of a run.

    Args:
        loggers: Those that keep final numbers do; a CSV file holds steps only.
        result: What ``result.json`` holds.
        embeddings: Shape (N, D').
        classes: Class of each node, int64, shape (N,), if it is known.
        run_dir: Where checkpoint and embeddings lie.
    """
    numbers = final_numbers(result)
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(logger.hparams, numbers)
        elif isinstance(logger, WandbLogger):
            logger.report(numbers, embeddings, classes, run_dir)


def final_numbers(result: dict[str, Any]) -> dict[str, float]:
    """The numbers of a result by name: accuracies in [0, 1], seconds, MB, and the test accuracy of each reference."""
    numbers = {name: result[name] for name in ("val_accuracy", "test_accuracy")} | result["timing"] | result["memory"]
    numbers |= {f"references/{name}": row["test_accuracy"] for name, row in (result["references"] or {}).items()}
    return {name: number for name, number in numbers.items() if number is not None}
