"""python -m src.train: train one method on one graph, embed the graph, and judge the embedding."""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from src.command import command

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.loggers import Logger

    from src.data import GraphDataModule
    from src.models import Method

log = logging.getLogger(__name__)

REFERENCES_UP_TO = 50_000_000
"""Entries of the dense feature matrix up to which ``evaluation.references=auto`` probes the reference rows."""

OUT_OF_MEMORY = (
    "Out of memory. What takes less: batches of nodes, by dataset.loader=neighbor (or rows) and a smaller "
    "dataset.batch_size or dataset.num_neighbors; a smaller model.hidden_dim; for graphs on disk a smaller "
    "dataset.memory_mb; on a GPU trainer.precision=bf16-mixed, or trainer=cpu."
)


@command("train")
def main(cfg: DictConfig) -> float:
    """Run one job and return what a sweep may maximise."""
    from hydra.core.hydra_config import HydraConfig

    from src.result import print_result

    hydra_cfg = HydraConfig.get()
    choices, run_dir = hydra_cfg.runtime.choices, Path(hydra_cfg.runtime.output_dir)
    rank, processes = launched()
    if processes > 1 and not any(text.startswith("hydra.run.dir=") for text in hydra_cfg.overrides.hydra):
        raise ValueError(
            f"this is one of {processes} processes, which need one folder: give hydra.run.dir=<a folder that all see>"
        )
    if rank > 0:  # trains with the first process, which does all else
        logging.getLogger().setLevel(logging.WARNING)
        run(cfg, run_dir, {"dataset": choices["dataset"], "model": choices["model"]})
        return float("nan")
    if (run_dir / "result.json").exists():
        done = finished_before(cfg, run_dir)
        if done is not None:
            log.info("%s is finished already", run_dir)
            return score(done)
    try:
        result = record(cfg, run_dir, choices["dataset"], choices["model"])
    except BaseException:
        checkpoint = run_dir / "checkpoints" / "last.ckpt"
        if checkpoint.exists():
            overrides = [text for text in hydra_cfg.overrides.task if not text.startswith("ckpt_path=")]
            log.info("Go on with: python -m src.train %s", shlex.join([*overrides, f"ckpt_path={checkpoint}"]))
        raise
    print_result(result, run_dir)
    return score(result)


def score(result: dict[str, Any]) -> float:
    """Return what a sweep may maximise: the validation accuracy, or nan without labels."""
    return float("nan") if result["val_accuracy"] is None else result["val_accuracy"]


def launched() -> tuple[int, int]:
    """Return rank and number of the processes that torchrun or Slurm started with this command."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    return int(rank), int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1")))


def finished_before(cfg: DictConfig, run_dir: Path) -> dict[str, Any] | None:
    """Return the result of the same job, if an earlier sweep finished it; None if it did not.

    Raises:
        FileExistsError: If the folder's result is that of another job, or ``sweep.resume`` is not asked for.
    """
    result = json.loads((run_dir / "result.json").read_text())
    if not cfg.sweep.resume:
        raise FileExistsError(
            f"{run_dir} holds a result already: choose another hydra.run.dir, or go on with a sweep: sweep.resume=true"
        )
    settings = []
    for config in (cfg, OmegaConf.load(run_dir / "config.yaml")):
        plain = OmegaConf.to_container(config, resolve=True)
        settings.append({key: value for key, value in plain.items() if key != "sweep"})  # type: ignore[union-attr]
    if settings[0] != settings[1]:
        raise FileExistsError(f"{run_dir} holds the result of other settings: choose another hydra.sweep.dir")
    return result if result["status"] == "finished" else None


def record(cfg: DictConfig, run_dir: Path, dataset: str, model: str) -> dict[str, Any]:
    """Run one job, and write what is known of it into its folder, however it ends. Return the result."""
    from src.result import versions, write_result

    OmegaConf.save(cfg, run_dir / "config.yaml", resolve=True)
    result = {"status": "running", "dataset": dataset, "model": model, "seed": cfg.seed, "versions": versions()}
    write_result(result, run_dir)  # what a run leaves that is killed
    try:
        run(cfg, run_dir, result)
        result["status"] = "finished"
    except (KeyboardInterrupt, SystemExit):  # Lightning turns Ctrl-C into an exit
        result["status"] = "interrupted"
        raise
    except BaseException as error:
        if out_of_memory(error):
            log.error(OUT_OF_MEMORY)
        result |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        write_result(result, run_dir)
    return result


def run(cfg: DictConfig, run_dir: Path, result: dict[str, Any]) -> None:
    """Do what ``cfg`` says, and let the loggers know how it ends; fill in ``result`` as its parts come to be known."""
    started = time.perf_counter()
    cfg.ckpt_path = find_checkpoint(cfg.ckpt_path, run_dir, result["dataset"], result["model"])
    # Imported here, since these take seconds that --help and a mistyped name need not wait for.
    from hydra.utils import instantiate

    from src.loggers import logged

    named = {} if cfg.logger is None else {key: node for key, node in cfg.logger.items() if key != "online_every"}
    loggers = [instantiate(node, _convert_="all") for node in named.values()]
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    with logged(loggers, settings):
        train_and_judge(cfg, run_dir, result, loggers, started)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the machine, or of a device, did not suffice."""
    # The words of CUDA, of PyTorch on the CPU, and of the system.
    words = "out of memory", "can't allocate memory", "Cannot allocate memory"
    return isinstance(error, MemoryError) or any(text in str(error) for text in words)


def find_checkpoint(ckpt_path: str | None, run_dir: Path, dataset: str, model: str) -> str | None:
    """Return the path of the checkpoint to go on from, if there is one to.

    Args:
        ckpt_path: A path, None for none, or ``last``: of the newest of the runs beside ``run_dir`` that are of this
            dataset and method and left one.

    Raises:
        FileNotFoundError: If it is not there.
    """
    if ckpt_path == "last":
        paths = run_dir.parent.glob("*/checkpoints/last.ckpt")
        results = {path: json.loads((path.parents[1] / "result.json").read_text()) for path in paths}
        found = [path for path, left in results.items() if (left["dataset"], left["model"]) == (dataset, model)]
        if not found:
            raise FileNotFoundError(
                f"ckpt_path=last: no run of {model} on {dataset} left {run_dir.parent}/*/checkpoints/last.ckpt; "
                "name a checkpoint, ckpt_path=<path>, or train first"
            )
        return str(max(found, key=lambda path: path.stat().st_mtime))
    if ckpt_path is not None and not Path(ckpt_path).is_file():
        raise FileNotFoundError(
            f"ckpt_path={ckpt_path} is not a file; it can be <run>/checkpoints/last.ckpt, or last for the newest run's"
        )
    return ckpt_path


def train_and_judge(
    cfg: DictConfig, run_dir: Path, result: dict[str, Any], loggers: list[Logger], started: float
) -> None:
    """Train, embed and evaluate; ``started`` is when the run began, by ``time.perf_counter``."""
    timing: dict[str, float | None] = {}
    import numpy as np
    import torch
    from hydra.utils import instantiate
    from pytorch_lightning import seed_everything

    from src.callbacks import OnlineProbe, StepTimer
    from src.evaluation.references import reference_results
    from src.fit import fit
    from src.loggers import report
    from src.measure import peak_gpu_mb, peak_rss_mb, reset_peak, stopwatch
    from src.ops.blocks import MappedMatrix
    from src.ops.sparse import load_kernels
    from src.result import describe_device

    reset_peak()
    datamodule: GraphDataModule = instantiate(cfg.dataset, _convert_="all")
    probe = instantiate(cfg.evaluation.probe, _convert_="all")
    timer = StepTimer()
    callbacks: list[pl.Callback] = [timer]
    if cfg.logger is not None and cfg.logger.online_every is not None:
        callbacks.append(OnlineProbe(cfg.logger.online_every, probe, datamodule, timer))
    trainer = make_trainer(cfg, callbacks, loggers)
    datamodule.setup()

    def new_model() -> Method:
        seed_everything(cfg.seed, workers=True, verbose=False)
        return instantiate(cfg.model, num_features=datamodule.graph.num_features, _convert_="all")

    model = new_model()
    device = trainer.strategy.root_device
    home = device if datamodule.whole_on_device else torch.device("cpu")  # of the graph, and of the embedding
    num_entries = datamodule.graph.num_nodes * datamodule.graph.num_features
    with_references = wants_references(cfg.evaluation.references, num_entries)
    result["split"] = datamodule.describe_split()
    result["hyperparameters"] = dict(model.hparams) | datamodule.describe_options() | describe_trainer(cfg.trainer)
    result["device"] = describe_device(device)
    if isinstance(datamodule.graph.adjacency, MappedMatrix):  # a layer and the next, before hours of training
        datamodule.graph.adjacency.check_room(cfg.model.hidden_dim, 2)
    graph = datamodule.graph = datamodule.graph.to(home)
    with torch.no_grad():
        result["statistics"] = {"untrained": model.to(home).statistics(graph)}
    if home.type == "cpu":
        load_kernels()
    timing["prepare_seconds"] = time.perf_counter() - started

    fit(trainer, model, datamodule, cfg.ckpt_path)
    if trainer.global_rank > 0:
        return
    timing |= StepTimer.measured(trainer)
    result["loss"] = trainer.callback_metrics["loss"].item() if "loss" in trainer.callback_metrics else None

    with stopwatch(timing, "embed_seconds"), torch.no_grad():
        embeddings = model.to(home).embed(graph).cpu()
        result["statistics"]["trained"] = model.statistics(graph)
    if cfg.keep_artifacts:
        np.save(run_dir / "embeddings.npy", embeddings.numpy())
        if datamodule.node_names is not None:
            (run_dir / "nodes.txt").write_text("".join(f"{name}\n" for name in datamodule.node_names))

    labels = datamodule.labels
    result |= {"test_accuracy": None, "val_accuracy": None, "probe": None, "references": None}
    with stopwatch(timing, "probe_seconds"):
        if labels is not None:
            probed = probe.evaluate(embeddings, labels)
            result |= {"test_accuracy": probed.test_accuracy, "val_accuracy": probed.val_accuracy}
            result["probe"] = probed.as_dict()

    with stopwatch(timing, "references_seconds"), torch.no_grad():
        if labels is not None and with_references:
            untrained = new_model().to(home).encode(graph)
            rows = reference_results(graph, labels, untrained, probe, lambda name: log.info("reference: %s", name))
            result["references"] = {name: row.as_dict() for name, row in rows.items()}
    timing["wall_seconds"] = time.perf_counter() - started
    result["timing"] = timing
    result["memory"] = {"peak_rss_mb": peak_rss_mb(), "peak_gpu_mb": peak_gpu_mb()}
    report(loggers, result, embeddings, None if labels is None else labels.classes, run_dir)


def make_trainer(cfg: DictConfig, callbacks: list[pl.Callback], loggers: list[Logger]) -> pl.Trainer:
    """Build the Trainer of ``cfg.trainer`` with the callbacks given, then those of ``cfg.callbacks``.

    Raises:
        ValueError: If it would never end, or asks for what the device or a sweep can't do.
    """
    import torch
    from hydra.utils import instantiate
    from pytorch_lightning.callbacks import ModelCheckpoint

    # Its notes on hardware found, with tips; the result names the device.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    settings = cfg.trainer
    accelerator = settings.accelerator
    if accelerator == "auto" and not torch.cuda.is_available():
        accelerator = "cpu"
        if torch.backends.mps.is_available():
            log.info("Training on the CPU: this machine's accelerator (MPS) has no sparse products.")
    if accelerator == "cpu" and settings.precision == "16-mixed":
        raise ValueError("trainer.precision=16-mixed needs a GPU; on the CPU it can be 32-true or bf16-mixed")
    callbacks = [*callbacks, *(instantiate(node, _convert_="all") for node in (cfg.callbacks or {}).values())]
    if not cfg.keep_artifacts:
        callbacks = [callback for callback in callbacks if not isinstance(callback, ModelCheckpoint)]
    trainer = instantiate(
        settings,
        accelerator=accelerator,
        logger=loggers or False,
        callbacks=callbacks,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        _convert_="all",
    )
    _, processes = launched()
    if trainer.world_size > 1 and processes == 1 and not settings.strategy.startswith("ddp_spawn"):
        raise ValueError(
            f"trainer.devices={settings.devices} with trainer.strategy={settings.strategy} would start this command "
            "again for each device, and with -m all jobs: choose trainer=ddp, or trainer.devices=1"
        )
    if processes > 1 and (trainer.world_size != processes or settings.strategy.startswith("ddp_spawn")):
        raise ValueError(
            f"{processes} processes were started, and trainer.devices={settings.devices} on trainer.num_nodes="
            f"{trainer.num_nodes} with trainer.strategy={settings.strategy} are {trainer.world_size}: set "
            "trainer=ddp trainer.strategy=ddp, and as many devices and nodes as there are processes"
        )
    if trainer.max_steps < 0:
        raise ValueError("training would never end: set trainer.max_steps")
    return trainer


def describe_trainer(trainer: DictConfig) -> dict[str, Any]:
    """The trainer's settings that the numbers depend on."""
    return {key: trainer[key] for key in ("max_steps", "precision", "devices", "gradient_clip_val")}


def wants_references(setting: bool | str, num_entries: int) -> bool:
    """Whether ``evaluation.references`` asks for the reference rows on a graph with so many feature entries.

    Raises:
        ValueError: If the setting is not true, false or auto.
    """
    if setting not in (True, False, "auto"):
        raise ValueError(f"evaluation.references is {setting!r}; it can be true, false or auto")
    return num_entries <= REFERENCES_UP_TO if setting == "auto" else bool(setting)


if __name__ == "__main__":
    main()
