"""python -m src.benchmark: milliseconds, memory and accuracy, beside those of rivals measured in the same run."""

from __future__ import annotations

import csv
import gc
import logging
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from src.command import PROJECT_ROOT, command

if TYPE_CHECKING:
    from src.benchmarks.contenders import Actions
    from src.graph import Graph
    from src.models import Method

log = logging.getLogger(__name__)

TIMED = ("step", "prepare", "embed", "power")
"""Actions whose milliseconds can be asked for."""


@dataclass(frozen=True)
class Pair:
    """A graph and a method, with the settings of ``src.train`` for each of the three that are measured.

    Attributes:
        name: Of the graph, as the benchmark calls it.
        arguments: Of ``python -m src.train`` for the pair.
        method: The method's plain settings, for ours.
        rivals: Those of GGD, which the rivals take over.
        training: What ``src.train`` does by default for the pair.
    """

    name: str
    model: str
    arguments: list[str]
    method: DictConfig
    rivals: DictConfig
    training: DictConfig


@command("benchmark")
def main(cfg: DictConfig) -> None:
    """Measure pair after pair, write what is known after each, and end with an error if one failed."""
    from hydra.core.hydra_config import HydraConfig

    from src.benchmarks.report import markdown, paper_figures, tell, write_report
    from src.markdown import fill_marked_places

    hydra_cfg = HydraConfig.get()
    name, folder = hydra_cfg.runtime.choices["benchmark"], Path(hydra_cfg.runtime.output_dir)
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    del settings["data_dir"]  # says nothing to others, for whom it may be published
    rows: list[dict[str, Any]] = []
    report = {"name": name, "status": "running", "machine": describe_machine(), "settings": settings, "rows": rows}
    os.environ["TQDM_DISABLE"] = "1"
    pairs = list(list_pairs(cfg, folder))
    try:
        for number, pair in enumerate(pairs, 1):
            row: dict[str, Any] = {"dataset": pair.name, "model": pair.model}
            row |= paper_figures(settings["paper"], pair.model, pair.name)
            rows.append(row)
            label = f"[{number}/{len(pairs)}] {pair.model} on {pair.name}"
            try:
                for found in measure(pair, cfg, folder):
                    row |= found
                    if told := tell(found):
                        log.info("%s: %s", label, told)
            except Exception as error:  # such as a process killed for its memory
                row["error"] = f"{type(error).__name__}: {error}"
                log.error("%s failed: %s", label, row["error"])
            write_report(report, folder / "benchmark")
        report["status"] = "finished"
    except KeyboardInterrupt:
        report["status"] = "interrupted"
        raise SystemExit(f"Stopped. What was measured: {folder / 'benchmark.md'}") from None
    finally:
        write_report(report, folder / "benchmark")
    log.info("Benchmark: %s", folder / "benchmark.md")
    if cfg.publish:
        write_report(report, PROJECT_ROOT / "docs" / "results" / f"benchmark_{name}")
        fill_marked_places(PROJECT_ROOT / "README.md", {f"benchmark {name}": markdown(report)})
    failed = [row for row in rows if "error" in row]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(rows)} pairs failed; the first: {failed[0]['error']}")


def list_pairs(cfg: DictConfig, folder: Path) -> Iterator[Pair]:
    """Compose the settings of each graph with each method.

    Raises:
        ValueError: If ``only`` names a graph that the benchmark does not have.
    """
    from hydra import compose

    from src.ops.checks import check_choice

    for name in cfg.only or ():
        check_choice("only", name, cfg.graphs)
    for name in cfg.only or cfg.graphs:
        graph = [text for text in cfg.graphs[name] if text.startswith("dataset")]
        for model in cfg.models:
            plain = ["~tuned@_global_", *cfg.graphs[name], *cfg.overrides]
            configs = [
                compose("train", [f"model={model}", *plain]),
                compose("train", ["model=ggd", *plain]),
                compose("train", [f"model={model}", "logger=csv", *graph, *cfg.training]),
            ]
            for config in configs:  # not as overrides, in which a comma of a path would mean a sweep
                config.data_dir = cfg.data_dir
            configs[-1].logger.csv.save_dir = f"{folder}/runs/{name}/{model}"
            yield Pair(name, model, [f"model={model}", *graph], *configs)


def measure(pair: Pair, cfg: DictConfig, folder: Path) -> Iterator[dict[str, Any]]:
    """Give the figures of a pair, part by part, each from a fresh process."""
    actions = [action for action in TIMED if cfg[action]]
    if actions:
        yield in_fresh_process(race, pair, cfg, actions)
    if cfg.profile:
        yield in_fresh_process(profile, pair, cfg.profile)
    if cfg.memory:
        for who in ("", *cfg.rivals):
            yield in_fresh_process(peak_memory, pair, who)
    if pair.name in cfg.lightning.graphs:
        yield in_fresh_process(lightning_share, pair, cfg.lightning.steps)
    if cfg.command:
        yield whole_command(pair, cfg.data_dir)
    if cfg.accuracy:
        yield in_fresh_process(train, pair, folder / "runs" / pair.name / pair.model, cfg.checkpoints)


def in_fresh_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a function gives in a process that has done nothing before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def race(pair: Pair, cfg: DictConfig, actions: list[str]) -> dict[str, Any]:
    """Return the milliseconds of ours and of the rivals, which take turns, and how many times ours a rival takes."""
    from src.benchmarks.timing import Turns, summary

    graph = load_graph(pair)
    contenders = {who: build(pair, who, graph, cfg.hops) for who in ("", *cfg.rivals)}
    found: dict[str, Any] = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "hidden_dim": pair.method.model.hidden_dim,
    }
    for action in actions:
        able = {who: does[action] for who, does in contenders.items() if action in does}
        spent = Turns(**cfg.turns).time(able)
        for who, milliseconds in spent.items():
            found |= summary(column(who, action), milliseconds)
            if who:
                ratio = statistics.median(milliseconds) / statistics.median(spent[""])
                found[column(who, action, "ratio")] = ratio
    return found


def profile(pair: Pair, calls: int) -> dict[str, Any]:
    """Return the milliseconds of each operation of a step, over so many steps."""
    from src.benchmarks.timing import parts

    return {"parts": parts(build(pair, "", load_graph(pair), 0)["step"], calls)}


def column(who: str, action: str, unit: str = "ms") -> str:
    """Name a figure: ``step_ms`` of ours, ``pyg_ms`` of a rival's step, ``pyg_embed_ms`` of its other actions."""
    return "_".join([*([who] if who else []), *([] if who and action == "step" else [action]), unit])


def peak_memory(pair: Pair, who: str) -> dict[str, Any]:
    """Return the peak of a process that does some steps, in MB, and how much it is more than for three nodes."""
    import torch

    from src.graph import Graph
    from src.measure import peak_gpu_mb, peak_rss_mb, reset_peak
    from src.ops.propagation import normalised_adjacency
    from src.ops.sparse import SparseMatrix

    adjacency, eye = normalised_adjacency(torch.tensor([[0], [1]]), 3), torch.eye(3)
    for features in (eye, SparseMatrix.from_dense(eye)):  # what libraries and compilers take is no memory of the step
        build(pair, who, Graph(features, adjacency), 0)["step"]()
    gc.collect()
    reset_peak()
    before_mb = peak_rss_mb()
    step = build(pair, who, load_graph(pair), 0)["step"]
    gc.collect()
    reset_peak()
    for _ in range(3):  # from the second on, Adam's moments and whatever is kept for the next step are there
        step()
    prefix = f"{who}_" if who else ""
    found = {f"{prefix}peak_rss_mb": peak_rss_mb(), f"{prefix}memory_mb": peak_rss_mb() - before_mb}
    gpu = peak_gpu_mb()
    return found if gpu is None else found | {f"{prefix}peak_gpu_mb": gpu}


def load_graph(pair: Pair) -> Graph:
    """Return the graph of a pair, on the GPU if there is one."""
    import torch
    from hydra.utils import instantiate

    datamodule = instantiate(pair.method.dataset, _convert_="all")
    datamodule.setup()
    return datamodule.graph.to("cuda" if torch.cuda.is_available() else "cpu")


def build(pair: Pair, who: str, graph: Graph, hops: int) -> Actions:
    """Return the actions of a rival, or of ours where none is named."""
    from src.benchmarks.contenders import RIVALS, ours
    from src.ops.checks import check_choice

    if not who:
        return ours(new_model(pair, graph), graph, hops)
    check_choice("rivals", who, RIVALS)
    return RIVALS[who](graph, OmegaConf.to_container(pair.rivals.model, resolve=True), hops)  # type: ignore[arg-type]


def new_model(pair: Pair, graph: Graph) -> Method:
    """Return the pair's method with the weights of its seed."""
    import torch
    from hydra.utils import instantiate

    torch.manual_seed(pair.method.seed)
    return instantiate(pair.method.model, num_features=graph.num_features, _convert_="all").to(graph.device)


def lightning_share(pair: Pair, steps: int) -> dict[str, Any]:
    """Return the share of ``trainer.fit`` that is not loss, gradient and update, in percent, and both in seconds.

    Once as a run of ``src.train`` is, and once (``lightning_alone``) without callbacks, checkpoints and logger.
    """
    from hydra.utils import instantiate
    from pytorch_lightning.loggers import CSVLogger

    from src.benchmarks.timing import Beside
    from src.callbacks import StepTimer
    from src.fit import fit
    from src.train import make_trainer

    cfg = pair.method.copy()
    found: dict[str, Any] = {}
    cfg.trainer.max_steps = steps
    datamodule = instantiate(cfg.dataset, _convert_="all")
    datamodule.setup()
    for name in ("lightning", "lightning_alone"):
        with tempfile.TemporaryDirectory() as folder:
            bare = Beside(build(pair, "", datamodule.graph, 0)["step"])
            if name == "lightning":
                cfg.callbacks.last.dirpath = f"{folder}/checkpoints"
                trainer = make_trainer(cfg, [StepTimer(), bare], [CSVLogger(folder, "", "csv")])
            else:
                cfg.callbacks = None
                trainer = make_trainer(cfg, [bare], [])
            model = new_model(pair, datamodule.graph)
            started = time.perf_counter()
            fit(trainer, model, datamodule, None)
            seconds = time.perf_counter() - started - bare.seconds
        found |= {
            f"{name}_share": 100 * (1 - bare.seconds / seconds),
            f"{name}_fit_seconds": seconds,
            f"{name}_bare_seconds": bare.seconds,
        }
    return found


def whole_command(pair: Pair, data_dir: str) -> dict[str, Any]:
    """Return the seconds of ``python -m src.train`` for the pair, from start to result, reference rows included."""
    from hydra.core.override_parser.types import Quote, QuotedString

    with tempfile.TemporaryDirectory() as folder:
        paths = [
            f"{key}={QuotedString(path, Quote.single).with_quotes()}"
            for key, path in (("data_dir", data_dir), ("hydra.run.dir", folder))
        ]
        arguments = [sys.executable, "-m", "src.train", *pair.arguments, *paths]
        started = time.perf_counter()
        done = subprocess.run(arguments, cwd=PROJECT_ROOT, capture_output=True, text=True)
        seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"python -m src.train {' '.join(pair.arguments)} failed: {done.stderr[-500:]}")
    return {"command_seconds": seconds}


def train(pair: Pair, folder: Path, checkpoints: int) -> dict[str, Any]:
    """Run ``src.train`` for the pair; return its seconds, accuracies, and validation accuracy along its way."""
    from src.train import record

    folder.mkdir(parents=True)
    cfg = pair.training
    cfg.callbacks.last.dirpath = str(folder / "checkpoints")
    cfg.logger.online_every = max(1, cfg.trainer.max_steps // checkpoints)
    result = record(cfg, folder, pair.name, pair.model)
    timing = result["timing"]
    others = sum(timing[f"{part}_seconds"] for part in ("prepare", "embed", "probe"))
    with (folder / "csv" / "metrics.csv").open() as file:
        curve = [
            {"seconds": float(line["online_fit_seconds"]), "val_accuracy": float(line["online_val_accuracy"])}
            for line in csv.DictReader(file)
            if line["online_val_accuracy"]
        ]
    references = {name: row["val_accuracy"] for name, row in (result["references"] or {}).items()}
    return {
        "seconds": timing["fit_seconds"] + others,
        "fit_seconds": timing["fit_seconds"],
        "other_seconds": others,
        "test_accuracy": result["test_accuracy"],
        "val_accuracy": result["val_accuracy"],
        "curve": curve,
        "references": references,
    }


def describe_machine() -> dict[str, Any]:
    """Processor, cores, threads, GPU, how busy it is, and the versions that the numbers depend on."""
    import torch

    from src.result import versions

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": os.getloadavg()[0],
        "versions": versions(),
    }


if __name__ == "__main__":
    main()
