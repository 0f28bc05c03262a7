"""The table at the end of a sweep."""

from __future__ import annotations

import atexit
import csv
import json
import logging
import shlex
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from src.command import PROJECT_ROOT
from src.markdown import pipe_table
from src.result import REFERENCE_NAMES

log = logging.getLogger(__name__)


class SweepSummary(Callback):
    """Show each failure of a multirun at once, and at the end a table: mean and deviation over the seeds of a setting.

    The table is made when the process ends, since Hydra skips the end of a multirun in which a job failed.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Promise the table, and a word on how to go on, should it end early."""
        sweep_dir = Path(config.hydra.sweep.dir)
        go_on = [f"hydra.sweep.dir={sweep_dir}", "sweep.resume=true"]
        stated = [text for text in sys.argv[1:] if text not in go_on]
        self.hint = f"Run the rest with: python -m src.train {shlex.join([*stated, *go_on])}"
        atexit.register(self.finish, sweep_dir)
        self.ended = False

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Show a failure."""
        error = job_return._return_value
        if job_return.status is JobStatus.FAILED and config.hydra.mode is RunMode.MULTIRUN:
            log.error("Job %s failed: %s", config.hydra.job.num, error, exc_info=error)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Note that no job is missing."""
        self.ended = True

    def finish(self, sweep_dir: Path) -> None:
        """Write the table of what there is."""
        write_summary(sweep_dir)
        if not self.ended:
            print(self.hint)


@dataclass(frozen=True)
class Setting:
    """The jobs of a sweep that differ in nothing but the seed.

    Attributes:
        overrides: What was set on the command line, but the seed.
    """

    dataset: str
    model: str
    overrides: dict[str, str]
    folders: list[Path]


def read_settings(sweep_dir: Path) -> list[Setting]:
    """Return the settings of all jobs that were started, in order of their numbers."""
    settings: dict[tuple[str, ...], Setting] = {}
    jobs = [
        (OmegaConf.load(path.with_name("hydra.yaml")).hydra, path)
        for path in sweep_dir.glob("**/.hydra/overrides.yaml")
    ]
    for hydra, path in sorted(jobs, key=lambda job: job[0].job.num):
        choices = hydra.runtime.choices
        pairs = (text.partition("=") for text in map(str, OmegaConf.load(path)))
        overrides = {key: value for key, _, value in pairs if key not in ("seed", "sweep.resume")}
        key = (choices.dataset, choices.model, *(f"{k}={v}" for k, v in overrides.items()))
        settings.setdefault(key, Setting(choices.dataset, choices.model, overrides, [])).folders.append(path.parents[1])
    return list(settings.values())


def write_summary(sweep_dir: Path) -> None:
    """Tell a sweep's settings in one table: on the console, as ``summary.json``, ``.md``, ``.csv`` and ``.png``.

    Overrides that all settings share are left out. The best setting of each pair of method and graph, by validation
    accuracy, becomes a file for ``conf/tuned/``.
    """
    settings = read_settings(sweep_dir)
    if not settings:
        return
    shared = set.intersection(*(set(setting.overrides.items()) for setting in settings))
    rows = [summarise(setting, shared) for setting in settings]
    (sweep_dir / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")
    write_csv(rows, sweep_dir / "summary.csv")

    headings = ["setting", "runs", "failed", "validation", "test", "loss", "fit seconds"]
    references = [name for name in REFERENCE_NAMES if any(name in row["references"] for row in rows)]
    cells = [
        [
            row["setting"],
            str(row["runs"]),
            str(row["failed"]),
            percent(row["val_accuracy"]),
            percent(row["test_accuracy"]),
            "{:.3f} ± {:.3f}".format(*row["loss"]) if row["loss"] else "-",
            seconds(row["fit_seconds"]),
            *(percent(row["references"].get(name)) for name in references),
        ]
        for row in rows
    ]
    with_references = headings + [REFERENCE_NAMES[name] for name in references]
    (sweep_dir / "summary.md").write_text(pipe_table(with_references, cells))
    table = Table(*headings, title="accuracy in %: mean ± standard deviation over the runs", title_justify="left")
    for row in cells:
        table.add_row(*map(escape, row[: len(headings)]))
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    for folder, error in (pair for row in rows for pair in row["errors"].items()):
        console.print(f"{folder}: {error}", highlight=False, markup=False, soft_wrap=True)
    for path in write_tuned(settings, rows, sweep_dir / "tuned"):
        console.print(f"best on validation: {path}, a file for conf/tuned/", highlight=False, soft_wrap=True)
    draw(settings, rows, dict(shared), sweep_dir / "summary.png")
    console.print(f"files: {sweep_dir}", highlight=False, soft_wrap=True)


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a line for each setting, with a column for each override."""
    keys = list(dict.fromkeys(key for row in rows for key in row["overrides"]))
    figures = ("val_accuracy", "test_accuracy", "loss", "fit_seconds")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = [f"{name}_{part}" for name in figures for part in ("mean", "deviation")]
        writer.writerow(["dataset", "model", *keys, "runs", "failed", *columns])
        for row in rows:
            numbers = [number for name in figures for number in row[name] or ["", ""]]
            overrides = [row["overrides"].get(key, "") for key in keys]
            writer.writerow([row["dataset"], row["model"], *overrides, row["runs"], row["failed"], *numbers])


def write_tuned(settings: list[Setting], rows: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
    """Write the best of several settings of a method on a graph, and give the path.

    The file holds what ``conf/tuned/`` says of the pair already, and what the sweep set, each as the best runs had it.
    """
    pairs: dict[tuple[str, str], list[int]] = {(setting.dataset, setting.model): [] for setting in settings}
    for place, setting in enumerate(settings):
        if rows[place]["val_accuracy"]:
            pairs[setting.dataset, setting.model].append(place)
    for (dataset, model), places in pairs.items():
        if len(places) < 2:
            continue
        best = max(places, key=lambda place: rows[place]["val_accuracy"][0])
        row, config = rows[best], OmegaConf.load(settings[best].folders[0] / "config.yaml")
        known = PROJECT_ROOT / "conf" / "tuned" / f"{model}_{dataset}.yaml"
        groups = OmegaConf.load(known).items() if known.exists() else ()
        keys = [f"{part!s}.{key!s}" for part, group in groups for key in group]
        tuned = OmegaConf.create()
        for key in dict.fromkeys([*keys, *settings[best].overrides]):
            if key.startswith(("dataset.", "model.", "trainer.")):
                OmegaConf.update(tuned, key, OmegaConf.select(config, key))
        path = folder / known.relative_to(PROJECT_ROOT / "conf" / "tuned")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"# {model} on {dataset}. Expect {percent(row['test_accuracy'])} % over {row['runs']} runs (validation "
            f"{percent(row['val_accuracy'])}),\n# {seconds(row['fit_seconds'])} s of training: the best of "
            f"{len(places)} settings on validation.\n#   python -m src.train -m dataset={dataset} model={model} "
            f"seed=0,1,2,3,4\n{OmegaConf.to_yaml(tuned)}"
        )
        yield path


def draw(settings: list[Setting], rows: list[dict[str, Any]], shared: dict[str, str], path: Path) -> None:
    """Draw validation accuracy against each override that varies: a dot for each setting, mean ± deviation."""
    keys = [key for key in dict.fromkeys(k for s in settings for k in s.overrides) if key not in shared]
    finished = [(setting, row) for setting, row in zip(settings, rows, strict=True) if row["val_accuracy"]]
    if not keys or not finished:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(keys), figsize=(3.2 * len(keys), 3.4), squeeze=False, sharey=True, layout="constrained"
    )
    pairs = list(dict.fromkeys((setting.dataset, setting.model) for setting in settings))
    for axis, key in zip(axes[0], keys, strict=True):
        values = sorted({setting.overrides.get(key, "") for setting in settings}, key=as_number)
        for color, pair in enumerate(pairs):
            shown = [(s, row) for s, row in finished if (s.dataset, s.model) == pair]
            x = [values.index(setting.overrides.get(key, "")) + 0.08 * (color - len(pairs) / 2) for setting, _ in shown]
            mean, deviation = zip(*(row["val_accuracy"] for _, row in shown), strict=True) if shown else ((), ())
            percents = [100 * number for number in mean], [100 * number for number in deviation]
            axis.errorbar(x, *percents, fmt="o", markersize=4, capsize=2, alpha=0.6, label=f"{pair[1]} on {pair[0]}")
        axis.set_xticks(range(len(values)), values, rotation=90 if max(map(len, values)) > 6 else 0)
        axis.set_xlabel(key)
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("validation accuracy in %")
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def as_number(text: str) -> tuple[float, str]:
    """Sort numbers as numbers, and words after them."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def summarise(setting: Setting, shared: set[tuple[str, str]]) -> dict[str, Any]:
    """Return a row: counts of runs, their seeds, errors, and [mean, population deviation] of the numbers."""
    own = [f"{key}={value}" for key, value in setting.overrides.items() if (key, value) not in shared]
    name = " ".join(own or [f"{key}={value}" for key, value in setting.overrides.items()]) or "as configured"
    results = {folder: read_result(folder) for folder in setting.folders}
    finished = [result for result in results.values() if result["status"] == "finished"]
    failed = {str(folder): result for folder, result in results.items() if result["status"] != "finished"}
    names = finished[0]["references"] or {} if finished else {}
    return {
        "setting": name,
        "dataset": setting.dataset,
        "model": setting.model,
        "overrides": setting.overrides,
        "runs": len(finished),
        "failed": len(failed),
        "errors": {name: " ".join(result.get("error", result["status"]).split()) for name, result in failed.items()},
        "seeds": [result["seed"] for result in finished],
        "val_accuracy": spread([result["val_accuracy"] for result in finished]),
        "test_accuracy": spread([result["test_accuracy"] for result in finished]),
        "loss": spread([result.get("loss") for result in finished]),
        "fit_seconds": spread([result["timing"]["fit_seconds"] for result in finished]),
        "wall_seconds": spread([result["timing"]["wall_seconds"] for result in finished]),
        "references": {
            name: spread([result["references"][name]["test_accuracy"] for result in finished]) for name in names
        },
        "folders": [str(folder) for folder in setting.folders],
    }


def read_result(folder: Path) -> dict[str, Any]:
    """Return what a job's ``result.json`` holds; a job that never came to write one has the status ``not started``."""
    path = folder / "result.json"
    return json.loads(path.read_text()) if path.exists() else {"status": "not started"}


def spread(values: list[float | None]) -> list[float] | None:
    """Mean and population standard deviation of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return [statistics.mean(known), statistics.pstdev(known)] if known else None


def percent(mean_and_deviation: list[float] | None) -> str:
    """Format a pair of shares in percent."""
    return "{:.1f} ± {:.1f}".format(*(100 * x for x in mean_and_deviation)) if mean_and_deviation else "-"


def seconds(mean_and_deviation: list[float] | None) -> str:
    """Format a pair of seconds by its mean."""
    return f"{mean_and_deviation[0]:.1f}" if mean_and_deviation else "-"
