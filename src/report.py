"""python -m src.report: one HTML page about all runs, which needs no network to be viewed."""

from __future__ import annotations

import functools
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from src.command import command

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

COLUMNS = {
    "dataset": ("dataset", "{}"),
    "model": ("model", "{}"),
    "seed": ("seed", "{}"),
    "status": ("status", "{}"),
    "validation": ("val_accuracy", "{:.2%}"),
    "test": ("test_accuracy", "{:.2%}"),
    "fit seconds": ("timing.fit_seconds", "{:,.2f}"),
    "ms/step": ("timing.step_ms_median", "{:,.2f}"),
    "peak memory MB": ("memory.peak_rss_mb", "{:,.0f}"),
    "learning rate": ("hyperparameters.learning_rate", "{:.3g}"),
    "hidden size": ("hyperparameters.hidden_dim", "{:g}"),
    "layers": ("hyperparameters.num_layers", "{:g}"),
    "projector layers": ("hyperparameters.projector_layers", "{:g}"),
    "aggregation": ("hyperparameters.aggregation", "{}"),
}
"""Heading of the page's table to a dotted path in ``result.json``, and how its value is shown."""

NEEDED = {"status", "dataset", "model", "seed"}
"""What any ``result.json`` holds, however its run ended."""


@command("report")
def main(cfg: DictConfig) -> None:
    """Read all runs, draw them, and write the page."""
    from src.ops.checks import check_range

    for limit in ("max_curves", "max_curve_points", "max_projections", "max_projected_nodes"):
        check_range(limit, cfg[limit], 1)
    outputs_dir, file = Path(cfg.outputs_dir).resolve(), Path(cfg.file).resolve()
    runs = read_runs(outputs_dir)
    curves = read_curves(runs, cfg.max_curves, cfg.max_curve_points)
    projections = project_latest(runs, cfg.max_projections, cfg.max_projected_nodes)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(runs, curves, projections, outputs_dir, file), encoding="utf-8")
    log.info("Report of %s runs: %s", len(runs), file)


def read_runs(outputs_dir: Path) -> pd.DataFrame:
    """Return a row for each run below a folder, the latest first; one that can't be read is named and left out.

    Returns:
        ``folder``, ``written`` (seconds since 1970), ``name``, and a column for each dotted path in a ``result.json``;
        those of ``COLUMNS`` are always there.
    Raises:
        FileNotFoundError: If there is none.
    """
    import pandas as pd

    results = []
    for path in outputs_dir.rglob("result.json"):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(result, dict) or not result.keys() >= NEEDED:
                raise ValueError(f"it must hold {', '.join(sorted(NEEDED))}")
            results.append(result | {"folder": path.parent, "written": path.stat().st_mtime})
        except (OSError, ValueError) as error:
            log.warning("Left out %s: %s", path, error)
    if not results:
        raise FileNotFoundError(
            f"{outputs_dir} holds no result of a run: make one with python -m src.train, or name another folder with "
            "outputs_dir=<folder>"
        )
    runs = pd.json_normalize(results).sort_values("written", ascending=False, ignore_index=True)
    missing = {"error", *(place for place, _ in COLUMNS.values())} - set(runs)
    runs = runs.reindex(columns=[*runs, *sorted(missing)])
    for place, form in COLUMNS.values():
        if form != "{}":
            runs[place] = pd.to_numeric(runs[place], errors="coerce")
    runs["name"] = [f"{run.model}, seed {run.seed}, {run.folder.relative_to(outputs_dir)}" for run in runs.itertuples()]
    return runs


def read_curves(runs: pd.DataFrame, max_curves: int, max_points: int) -> pd.DataFrame:
    """Return the loss at evenly spaced steps of each dataset's latest runs that logged it.

    Returns:
        ``step``, ``loss``, and ``dataset``, ``model`` and ``name`` of the run.
    """
    import numpy as np
    import pandas as pd

    logged = runs[[(folder / "csv" / "metrics.csv").exists() for folder in runs["folder"]]]
    latest = logged.groupby("dataset").head(max_curves)
    if len(latest) < len(logged):
        log.info("Drawing the latest %s of %s loss curves: max_curves is %s", len(latest), len(logged), max_curves)
    curves = [pd.DataFrame(columns=["step", "loss", "dataset", "model", "name"])]
    for run in latest.itertuples():
        path = run.folder / "csv" / "metrics.csv"
        try:
            curve = pd.read_csv(path, usecols=["step", "loss"], dtype=float).dropna()
        except (OSError, ValueError) as error:
            log.warning("Left out %s: %s", path, error)
            continue
        places = np.linspace(0, len(curve) - 1, min(len(curve), max_points)).round().astype(int)
        curves.append(curve.iloc[places].assign(dataset=run.dataset, model=run.model, name=run.name))
    return pd.concat(curves[1:] or curves, ignore_index=True)


def project_latest(runs: pd.DataFrame, max_projections: int, max_nodes: int) -> pd.DataFrame:
    """Return the embedding of the latest run of each dataset and model in two dimensions.

    Returns:
        ``x``, ``y`` and ``class`` of each node drawn, ``dataset`` of its run, and ``panel``, a title.
    """
    import numpy as np
    import pandas as pd

    from src.evaluation.projection import project

    kept = runs[[(folder / "embeddings.npy").exists() for folder in runs["folder"]]]
    latest = kept.drop_duplicates(["dataset", "model"]).head(max_projections)
    drawn = [pd.DataFrame(columns=["x", "y", "class", "dataset", "panel"])]
    for number, run in enumerate(latest.itertuples(), start=1):
        log.info("[%s/%s] embedding of %s on %s, %s", number, len(latest), run.model, run.dataset, run.folder)
        try:
            embeddings = np.load(run.folder / "embeddings.npy", mmap_mode="r")
            nodes, points = project(embeddings, max_nodes)
        except (OSError, ValueError) as error:
            log.warning("Left out %s: %s", run.folder / "embeddings.npy", error)
            continue
        classes = node_classes(run.folder, len(embeddings))
        names = ["unknown"] * len(nodes) if classes is None else [str(label) for label in classes[nodes]]
        panel = f"{run.model}, seed {run.seed}: {len(nodes):,} of {len(embeddings):,} nodes"
        columns = {"x": points[:, 0], "y": points[:, 1], "class": names, "dataset": run.dataset, "panel": panel}
        drawn.append(pd.DataFrame(columns))
    return pd.concat(drawn[1:] or drawn, ignore_index=True)


def node_classes(folder: Path, num_nodes: int) -> np.ndarray | None:
    """Return the class of each node, shape (N,), from the dataset of a run; None where it can't be had from here."""
    try:
        dataset = OmegaConf.load(folder / "config.yaml").dataset
        classes = rebuild_classes(OmegaConf.to_yaml(dataset))
        if classes is not None and len(classes) != num_nodes:
            raise ValueError(f"the dataset has {len(classes):,} nodes, the embeddings {num_nodes:,}")
    except Exception as error:  # of any dataset's own: without its classes the page is still worth having
        log.warning("Classes of %s are unknown: %s", folder, error)
        return None
    return classes


@functools.cache
def rebuild_classes(settings: str) -> np.ndarray | None:
    """Return the class of each node, if known, of the dataset that these settings (yaml) make, without a download."""
    from hydra.utils import instantiate

    dataset = OmegaConf.create(settings)
    if "download" in dataset:
        dataset.download = False
    datamodule = instantiate(dataset, _convert_="all")
    datamodule.setup()
    return None if datamodule.labels is None else datamodule.labels.classes.numpy()


def render(runs: pd.DataFrame, curves: pd.DataFrame, projections: pd.DataFrame, outputs_dir: Path, file: Path) -> str:
    """Return the page: a row of the table for each run, and four charts for each dataset."""
    import jinja2
    import pandas as pd
    from plotly.io.json import to_json_plotly
    from plotly.offline import get_plotlyjs

    from src import charts

    def cell(value: Any, form: str) -> dict[str, Any]:
        return {"text": "", "value": ""} if pd.isna(value) else {"text": form.format(value), "value": value}

    paths, forms = zip(*COLUMNS.values(), strict=True)
    rows = [
        {
            "cells": [cell(value, form) for value, form in zip(values, forms, strict=True)],
            "failed": run.status == "failed",
            "folder": str(run.folder.relative_to(outputs_dir)),
            "link": Path(os.path.relpath(run.folder, file.parent)).as_posix(),
            "error": "" if pd.isna(run.error) else run.error,
        }
        for run, values in zip(runs.itertuples(), runs[list(paths)].astype(object).to_numpy().tolist(), strict=True)
    ]
    colours = charts.method_colours(runs["model"])
    figures = {
        dataset: {
            "loss": charts.loss_curves(curves[curves["dataset"] == dataset], colours),
            "seconds": charts.accuracy_against_seconds(own, colours),
            "hyperparameters": charts.parallel_coordinates(own),
            "embeddings": charts.projections(projections[projections["dataset"] == dataset]),
        }
        for dataset, own in runs.groupby("dataset")
    }
    source = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
    return template.render(
        folder=outputs_dir.name,
        headings=list(COLUMNS),
        rows=rows,
        counts=runs["status"].value_counts().to_dict(),
        datasets=list(figures),
        latest=runs["dataset"].iloc[0],
        figures=to_json_plotly(figures),
        plotly=get_plotlyjs(),
    )


if __name__ == "__main__":
    main()
