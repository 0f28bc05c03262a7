"""The table at the end of a sweep."""

from __future__ import annotations

import atexit
import json
import logging
import statistics
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from src.result import REFERENCE_NAMES

log = logging.getLogger(__name__)


class SweepSummary(Callback):
    """Show each failure of a multirun at once, and at the end a table: mean and deviation over the seeds of a setting.

    The table is made when the process ends, since Hydra skips the end of a multirun in which a job failed.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Promise the table."""
        atexit.register(write_summary, Path(config.hydra.sweep.dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Show a failure."""
        error = job_return._return_value
        if job_return.status is JobStatus.FAILED and config.hydra.mode is RunMode.MULTIRUN:
            log.error("Job %s failed: %s", config.hydra.job.num, error, exc_info=error)


def write_summary(sweep_dir: Path) -> None:
    """Tell a sweep's jobs in one table: on the console, as ``summary.json`` and as ``summary.md``.

    A row is a setting, that is, a set of overrides but the seed; overrides that all jobs share are left out.
    """
    jobs = {
        path.parents[1]: [text for text in map(str, OmegaConf.load(path)) if not text.startswith("seed=")]
        for path in sorted(sweep_dir.glob("**/.hydra/overrides.yaml"))
    }
    if not jobs:
        return
    shared = set.intersection(*map(set, jobs.values()))
    settings: dict[str, list[Path]] = {}
    for folder, overrides in jobs.items():
        setting = " ".join(text for text in overrides if text not in shared) or " ".join(overrides) or "as configured"
        settings.setdefault(setting, []).append(folder)
    rows = [summarise(setting, folders) for setting, folders in settings.items()]
    (sweep_dir / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")

    headings = ["setting", "runs", "failed", "validation", "test", "fit seconds"]
    references = [name for name in REFERENCE_NAMES if any(name in row["references"] for row in rows)]
    cells = [
        [
            row["setting"],
            str(row["runs"]),
            str(row["failed"]),
            percent(row["val_accuracy"]),
            percent(row["test_accuracy"]),
            seconds(row["fit_seconds"]),
            *(percent(row["references"].get(name)) for name in references),
        ]
        for row in rows
    ]
    lines = [headings + [REFERENCE_NAMES[name] for name in references], ["---"] * (6 + len(references)), *cells]
    (sweep_dir / "summary.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
    table = Table(*headings, title="accuracy in %: mean ± standard deviation over the runs", title_justify="left")
    for row in cells:
        table.add_row(*row[: len(headings)])
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print(f"files: {sweep_dir}", highlight=False, soft_wrap=True)


def summarise(setting: str, folders: list[Path]) -> dict[str, Any]:
    """Return a row: counts of runs, their seeds, and [mean, population deviation] of accuracies and seconds."""
    results = [json.loads((f / "result.json").read_text()) for f in folders if (f / "result.json").exists()]
    finished = [result for result in results if result["status"] == "finished"]
    names = finished[0]["references"] or {} if finished else {}
    return {
        "setting": setting,
        "runs": len(finished),
        "failed": len(folders) - len(finished),
        "seeds": [result["seed"] for result in finished],
        "val_accuracy": spread([result["val_accuracy"] for result in finished]),
        "test_accuracy": spread([result["test_accuracy"] for result in finished]),
        "fit_seconds": spread([result["timing"]["fit_seconds"] for result in finished]),
        "wall_seconds": spread([result["timing"]["wall_seconds"] for result in finished]),
        "references": {
            name: spread([result["references"][name]["test_accuracy"] for result in finished]) for name in names
        },
        "folders": [str(folder) for folder in folders],
    }


def spread(values: list[float]) -> list[float] | None:
    """Mean and population standard deviation; None of nothing."""
    return [statistics.mean(values), statistics.pstdev(values)] if values else None


def percent(mean_and_deviation: list[float] | None) -> str:
    """Format a pair of shares in percent."""
    return "{:.1f} ± {:.1f}".format(*(100 * x for x in mean_and_deviation)) if mean_and_deviation else "-"


def seconds(mean_and_deviation: list[float] | None) -> str:
    """Format a pair of seconds by its mean."""
    return f"{mean_and_deviation[0]:.1f}" if mean_and_deviation else "-"
