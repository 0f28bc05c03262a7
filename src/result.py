"""The result of a run: ``result.json`` in its folder, and a table on the console."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "pytorch-lightning", "torch-geometric", "hydra-core", "scikit-learn", "numpy", "scipy")

REFERENCE_NAMES = {
    "raw": "raw X",
    "smoothed_power": "X + A^n X",
    "smoothed_ppr": "PageRank of X",
    "smoothed_mean": "mean of A^k X",
    "untrained": "untrained H",
    "untrained_power": "untrained H + A^n H",
}
"""What the reference rows are called in tables; ``src.evaluation.references`` says what they are."""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the numbers depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def describe_device(device: torch.device) -> dict[str, Any]:
    """Kind and name of the device, and the number of CPU threads."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"type": device.type, "name": name, "threads": torch.get_num_threads()}


def write_result(result: dict[str, Any], run_dir: Path) -> Path:
    """Write ``result.json`` into the run's folder and return its path. A reader meets it whole, old or new."""
    path = run_dir / "result.json"
    path.with_suffix(".tmp").write_text(json.dumps(result, indent=2) + "\n")
    return path.with_suffix(".tmp").replace(path)


def print_result(result: dict[str, Any], run_dir: Path) -> None:
    """Print accuracies, or the loss without labels, seconds and memory of a finished run, and where its files are."""
    title = f"{result['model']} on {result['dataset']}, seed {result['seed']}"
    if result["hyperparameters"].get("largest_component"):
        title += ", largest component"
    table = Table(title=title, title_justify="left")
    for heading in ("accuracy in %", "validation", "test", "chosen on validation"):
        table.add_column(heading, justify="right" if heading in ("validation", "test") else "left")
    rows = {result["model"]: result["probe"]} if result["probe"] else {}
    rows |= {REFERENCE_NAMES[name]: row for name, row in (result["references"] or {}).items()}
    for name, row in rows.items():
        style = "bold" if name == result["model"] else None
        table.add_row(
            name, f"{100 * row['val_accuracy']:.1f}", f"{100 * row['test_accuracy']:.1f}", chosen(row), style=style
        )
    console = Console(width=None if Console().is_terminal else 100)
    if rows:
        console.print(table)
    else:
        loss = "" if result["loss"] is None else f": loss {result['loss']:.3f} in the end; {math.log(2):.3f} is chance"
        console.print(title + loss, highlight=False)
    timing = result["timing"]
    step = timing["step_ms_median"]
    console.print(
        f"seconds: prepare {timing['prepare_seconds']:.1f}, fit {timing['fit_seconds']:.1f}"
        + (f" ({step:.1f} ms a step)" if step else "")
        + (f", compile {timing['compile_seconds']:.1f}" if "compile_seconds" in timing else "")
        + f", embed {timing['embed_seconds']:.1f}, probe {timing['probe_seconds']:.1f}, "
        f"references {timing['references_seconds']:.1f}, wall {timing['wall_seconds']:.1f}; "
        f"peak memory {result['memory']['peak_rss_mb']:,.0f} MB",
        highlight=False,
    )
    console.print(f"files: {run_dir}", highlight=False, soft_wrap=True)


def chosen(row: dict[str, Any]) -> str:
    """What the validation nodes chose for a row, in words."""
    parts = [row["candidate"]] if row["candidate"] else []
    if row["l2_normalize"]:
        parts.append("rows of length 1")
    parts.append(f"C={row['C']:g}" + ("" if row["converged"] else " (not converged)"))
    return ", ".join(parts)
