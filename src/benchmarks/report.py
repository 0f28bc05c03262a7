"""What a benchmark found, as JSON, CSV, Markdown and a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from src.markdown import pipe_table
from src.result import REFERENCE_NAMES

Row = Mapping[str, Any]

RIVAL_NAMES = {"as_published": "as published", "pyg": "PyG's DeepGraphInfomax"}

FIGURES = {
    "step_ms": "a step, ms",
    "prepare_ms": "adjacency from edges, ms",
    "embed_ms": "embedding, ms",
    "power_ms": "A^n H, ms",
    "memory_mb": "memory of a step, MB",
    "fit_seconds": "default run: training, s",
    "other_seconds": "default run: all else, s",
    "command_seconds": "default run: the whole command with reference rows, s",
    "test_accuracy": "default run: test accuracy",
    "lightning_share": "Lightning's share of training, %",
    "lightning_alone_share": "the same without callbacks and logger, %",
}
"""Figures shown, in order, and what they are called."""


def paper_figures(paper: Mapping[str, Mapping[str, Row]], model: str, dataset: str) -> dict[str, float]:
    """Return what the paper states of a pair, as ``paper_<figure>``."""
    stated = paper.get(model, {})
    return {f"paper_{figure}": by_name[dataset] for figure, by_name in stated.items() if dataset in by_name}


def tell(found: Row) -> str:
    """Say the figures of one part in a line."""
    told = {name: value for name, value in found.items() if isinstance(value, float)}
    return ", ".join(f"{name} {show(value)}" for name, value in told.items() if not name.endswith(("_min", "_max")))


def show(value: float) -> str:
    """Format a number with three figures, or more before the decimal point."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits)}f}"


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write ``path`` with the suffixes .json, .csv, .md, and .png if there is something to draw."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = draw(report, path.with_suffix(".png"))
    flat = pd.DataFrame(report["rows"]).drop(columns=["curve", "references", "parts"], errors="ignore")
    path.with_suffix(".csv").write_text(flat.to_csv(index=False))
    path.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    settings, figure = report["settings"], f"\n![{report['settings']['title']}]({path.name}.png)\n" if drawn else ""
    path.with_suffix(".md").write_text(
        f"# {settings['title']}\n\n`python -m src.benchmark benchmark={report['name']}`\n\n{settings['text']}\n\n"
        f"{markdown(report)}\n{describe(report)}{figure}{profile(report)}"
    )


def markdown(report: Mapping[str, Any]) -> str:
    """Return the table: a column for each graph, and for each method a line for each figure."""
    rows, settings = report["rows"], report["settings"]
    graphs = list(dict.fromkeys(row["dataset"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    at = {(row["model"], row["dataset"]): row for row in rows}
    lines: list[list[str]] = []

    def add(title: str, cells: Sequence[str]) -> None:
        if any(cells):
            lines.append([title, *cells])

    for model in models:
        own = [at.get((model, graph), {}) for graph in graphs]
        for figure, title in FIGURES.items():
            add(f"{model}: {title}", [cell(row, figure) for row in own])
            for rival, name in RIVAL_NAMES.items():
                step = figure.replace("step_", "")  # the name of a rival's step
                add(f"{name}: {title}", [cell(row, f"{rival}_{step}") for row in own])
            add(f"the paper on {settings['paper_machine']}: {title}", [cell(row, f"paper_{figure}") for row in own])
        add(f"{model}: failed", [row.get("error", "").replace("\n", " ") for row in own])
    for model, stated in settings["paper"].items():
        for figure, by_name in stated.items() if model not in models else ():
            title = f"the paper on {settings['paper_machine']}, {model}: {FIGURES[figure]}"
            add(title, [show(by_name[graph]) if graph in by_name else "" for graph in graphs])
    return pipe_table(["", *graphs], lines)


def profile(report: Mapping[str, Any]) -> str:
    """Return a table of the operations that take a twentieth or more of a step: a column for each pair."""
    rows = [row for row in report["rows"] if row.get("parts")]
    if not rows:
        return ""
    large = [{name for name, ms in row["parts"].items() if ms > 0.05 * sum(row["parts"].values())} for row in rows]
    names = [name for name in dict.fromkeys(name for row in rows for name in row["parts"]) if name in set.union(*large)]
    lines = [[f"`{name}`", *(show(row["parts"].get(name, 0)) for row in rows)] for name in names]
    rest = [sum(ms for name, ms in row["parts"].items() if name not in names) for row in rows]
    lines.append(["all others", *map(show, rest)])
    table = pipe_table(["ms", *(f"{row['model']}, {row['dataset']}" for row in rows)], lines)
    return f"\n## Where a step's time goes\n\nIn PyTorch's profiler, by what the operations take themselves.\n\n{table}"


def cell(row: Row, figure: str) -> str:
    """Format one figure, with its range if it has one, or with how many times ours it is."""
    if figure not in row:
        return ""
    if figure.endswith("accuracy"):
        return f"{100 * row[figure]:.1f} %"
    notes = []
    if f"{figure}_min" in row:
        notes.append(f"{show(row[figure + '_min'])}–{show(row[figure + '_max'])}")
    if (ratio := row.get(figure.removesuffix("_ms") + "_ratio")) is not None:
        notes.append(f"{show(ratio)} ×")
    return show(row[figure]) + (f" ({', '.join(notes)})" if notes else "")


def describe(report: Mapping[str, Any]) -> str:
    """Say how and where it was measured."""
    machine, settings = report["machine"], report["settings"]
    turns = settings["turns"]
    exponents = "".join(
        f"Milliseconds grow with {axis.replace('num_', '')} to the power of "
        + ", ".join(f"{value:.2f} ({name})" for name, value in by_name.items())
        + ".\n"
        for axis, by_name in fitted_exponents(report).items()
    )
    return (
        f"{exponents}Milliseconds are medians (smallest–largest) of {turns['blocks']} blocks of up to {turns['calls']} "
        f"calls or {turns['seconds']:g} s, after {turns['warmup']} calls to warm up; ours and the rivals take turns, "
        "block by block. × is how many times ours a rival takes. Memory is the peak of a process of its own, less that "
        f"of the same on three nodes.\n\nMachine: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} "
        f"threads, GPU: {machine['gpu'] or 'none'}, load {machine['load']:.1f} at the start. "
        f"{', '.join(f'{name} {version}' for name, version in machine['versions'].items())}.\n"
    )


def fitted_exponents(report: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the slopes of log milliseconds over log size, by axis and contender."""
    exponents: dict[str, dict[str, float]] = {}
    for axis, graphs in report["settings"]["scaling"].items():
        for name, (sizes, milliseconds) in series(report, axis, graphs).items():
            if len(sizes) > 1:
                slope = np.polyfit(np.log(sizes), np.log(milliseconds), 1)[0]
                exponents.setdefault(axis, {})[name] = float(slope)
    return exponents


def series(report: Mapping[str, Any], axis: str, graphs: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Return sizes and milliseconds of a step for each contender, over the given graphs."""
    rows = [row for row in report["rows"] if row["dataset"] in graphs and "step_ms" in row]
    lines: dict[str, tuple[list[float], list[float]]] = {}
    rivals = {name: f"{rival}_ms" for rival, name in RIVAL_NAMES.items()}
    for row in rows:
        for name, figure in ({row["model"]: "step_ms"} | rivals).items():
            if figure in row:
                sizes, milliseconds = lines.setdefault(name, ([], []))
                sizes.append(row[axis])
                milliseconds.append(row[figure])
    return lines


def draw(report: Mapping[str, Any], path: Path) -> bool:
    """Draw milliseconds against size, or accuracy against seconds; return whether there was something to draw."""
    scaling = {axis: series(report, axis, graphs) for axis, graphs in report["settings"]["scaling"].items()}
    curves = [row for row in report["rows"] if row.get("curve")]
    panels = [axis for axis, lines in scaling.items() if lines] or list(dict.fromkeys(row["dataset"] for row in curves))
    if not panels:
        return False
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.6), squeeze=False, layout="constrained")
    for axis, panel in zip(axes[0], panels, strict=True):
        if panel in scaling:
            exponents = fitted_exponents(report).get(panel, {})
            for name, (sizes, milliseconds) in scaling[panel].items():
                label = f"{name}, exponent {exponents[name]:.2f}" if name in exponents else name
                axis.loglog(sizes, milliseconds, "o-", label=label)
            axis.set(xlabel=panel.replace("num_", ""), ylabel="ms a step")
        else:
            draw_curves(axis, [row for row in curves if row["dataset"] == panel])
            axis.set(title=panel, xlabel="seconds of training", ylabel="validation accuracy in %")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def draw_curves(axis: plt.Axes, rows: Sequence[Row]) -> None:
    """Draw a line for each method, and dotted ones for what needs no training."""
    for row in rows:
        points = [(point["seconds"], 100 * point["val_accuracy"]) for point in row["curve"]]
        axis.plot(*zip(*points, strict=True), ".-", label=row["model"])
    for place, (name, accuracy) in enumerate(rows[0]["references"].items()):
        axis.axhline(100 * accuracy, color=plt.get_cmap("Dark2")(place), linestyle=":", label=REFERENCE_NAMES[name])
