"""The charts of ``src.report``, by Plotly: tables of runs in, figures out; a title tells what a figure leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import plotly.express as px
from plotly.graph_objects import Figure, Parcoords

from src.result import REFERENCE_NAMES

TEMPLATE = "plotly_white"

HEIGHT = 420
"""Of a chart, in pixels."""

MARGIN = {"l": 70, "r": 20, "t": 60, "b": 50}

REFERENCE_COLOURS = dict(
    zip(REFERENCE_NAMES, ("#111827", "#6b7280", "#0e7490", "#4d7c0f", "#b45309", "#be185d"), strict=True)
)

LABELS = {
    "val_accuracy": "validation accuracy",
    "test_accuracy": "test accuracy",
    "timing.fit_seconds": "fit seconds",
    "hyperparameters.learning_rate": "learning rate",
    "hyperparameters.hidden_dim": "hidden size",
    "hyperparameters.num_layers": "layers",
    "hyperparameters.projector_layers": "projector layers",
    "hyperparameters.aggregation": "aggregation",
}


def method_colours(models: Iterable[str]) -> dict[str, str]:
    """One colour for each method, the same in every chart; the eleventh is that of the first."""
    palette = px.colors.qualitative.D3
    return {model: palette[place % len(palette)] for place, model in enumerate(sorted(set(models)))}


def empty(reason: str) -> Figure:
    """A figure that only says why nothing is drawn."""
    figure = Figure(layout={"template": TEMPLATE, "title": reason, "height": 120})
    return figure.update_xaxes(visible=False).update_yaxes(visible=False)


def loss_curves(curves: pd.DataFrame, colours: Mapping[str, str]) -> Figure:
    """Loss against step, a line for each run; columns as ``src.report.read_curves`` returns them."""
    if curves.empty:
        return empty("no run has a csv/metrics.csv")
    figure = px.line(
        curves, x="step", y="loss", color="model", line_group="name", hover_name="name", render_mode="svg",
        color_discrete_map=colours, template=TEMPLATE, title=f"latest runs: {curves['name'].nunique()}",
        height=HEIGHT,
    )  # fmt: skip
    buttons = [{"label": kind, "method": "relayout", "args": [{"yaxis.type": kind}]} for kind in ("linear", "log")]
    place = {"x": 1, "y": 1.02, "xanchor": "right", "yanchor": "bottom"}
    figure.update_traces(line_width=1.3, opacity=0.8)
    figure.for_each_trace(lambda trace: trace.update(hovertext=trace.hovertext[0]))  # once, not at each point
    menu = {"type": "buttons", "direction": "right", "buttons": buttons} | place
    return figure.update_layout(updatemenus=[menu], margin=MARGIN)


def accuracy_against_seconds(runs: pd.DataFrame, colours: Mapping[str, str]) -> Figure:
    """Test accuracy against seconds of training (log), a point for each run; the rivals' means as horizontal lines."""
    done = runs.dropna(subset=["test_accuracy", "timing.fit_seconds"])
    if done.empty:
        return empty("no run has finished")
    figure = px.scatter(
        done, x="timing.fit_seconds", y="test_accuracy", color="model", hover_name="name", render_mode="svg",
        hover_data={"val_accuracy": ":.2%", "test_accuracy": ":.2%", "timing.fit_seconds": ":.2f"}, log_x=True,
        color_discrete_map=colours, labels=LABELS, template=TEMPLATE,
    )  # fmt: skip
    figure.update_traces(marker={"size": 9, "opacity": 0.8, "line": {"width": 0.5, "color": "white"}})
    figure.update_xaxes(tickformat="~g").update_yaxes(tickformat=".1%")
    probed = 0
    for key, name in REFERENCE_NAMES.items():
        path = f"references.{key}.test_accuracy"
        values = done[path].dropna() if path in done else pd.Series()
        if len(values):
            probed = max(probed, len(values))
            figure.add_hline(
                values.mean(), name=f"{name}: {values.mean():.1%}", showlegend=True, layer="below",
                line={"dash": "dot" if key.startswith("untrained") else "dash", "color": REFERENCE_COLOURS[key]},
            )  # fmt: skip
    lines = f"; lines: references, means over runs: {probed}" if probed else ""
    return figure.update_layout(title=f"runs: {len(done)}{lines}", height=HEIGHT, margin=MARGIN)


def parallel_coordinates(runs: pd.DataFrame) -> Figure:
    """A line for each run through its hyperparameters (rate and size: log) and its validation accuracy."""
    paths = [path for path in LABELS if path.startswith("hyperparameters.")]
    done = runs.dropna(subset=["val_accuracy", *paths])
    if done.empty:
        return empty(f"no finished run has {', '.join(LABELS[path] for path in paths)}")
    dimensions = [axis(done[path], LABELS[path], log=path.endswith(("learning_rate", "hidden_dim"))) for path in paths]
    accuracy = done["val_accuracy"]
    dimensions.append({"label": LABELS["val_accuracy"], "values": accuracy, "tickformat": ".1%"})
    bar = {"tickformat": ".1%", "title": {"text": "validation"}}
    line = {"color": accuracy, "colorscale": "Viridis", "showscale": accuracy.nunique() > 1, "colorbar": bar}
    title = f"runs: {len(done)} ({', '.join(sorted(done['model'].unique()))}); drag along an axis to select"
    fonts = {"labelfont": {"size": 13}, "tickfont": {"size": 12}}
    figure = Figure(Parcoords(dimensions=dimensions, line=line, **fonts))
    return figure.update_layout(title=title, template=TEMPLATE, height=HEIGHT, margin=MARGIN | {"t": 110})


def axis(values: pd.Series, label: str, log: bool) -> dict[str, object]:
    """A dimension of parallel coordinates: a tick for each value if they are few, words as 0, 1, ..."""
    if values.dtype == object or isinstance(values.dtype, pd.StringDtype):
        codes, words = pd.factorize(values, sort=True)
        return {"label": label, "values": codes, "tickvals": list(range(len(words))), "ticktext": list(words)}
    places = np.log10(values) if log else values
    dimension = {"label": label, "values": places}
    if values.nunique() <= 10:
        return dimension | {"tickvals": places.unique(), "ticktext": [f"{value:g}" for value in values.unique()]}
    if not log:
        return dimension
    powers = np.arange(np.floor(places.min()), np.ceil(places.max()) + 1)
    texts = [f"{10**power:g}" for power in powers]
    return dimension | {"tickvals": powers, "ticktext": texts, "range": [powers[0], powers[-1]]}


def projections(points: pd.DataFrame) -> Figure:
    """A panel for each embedding, a colour for each class; columns as ``src.report.project_latest`` returns them."""
    if points.empty:
        return empty("no run keeps its embeddings (keep_artifacts=true), or others are later: max_projections")
    columns = min(3, points["panel"].nunique())
    lines = -(-points["panel"].nunique() // columns)
    names = sorted(points["class"].unique(), key=lambda name: (len(name), name))
    palette = px.colors.qualitative.D3 if len(names) <= 10 else px.colors.qualitative.Dark24
    colours = {name: palette[place % len(palette)] for place, name in enumerate(names)} | {"unknown": "#7f7f7f"}
    figure = px.scatter(
        points, x="x", y="y", color="class", facet_col="panel", facet_col_wrap=columns, render_mode="svg",
        category_orders={"class": names}, color_discrete_map=colours, template=TEMPLATE,
        facet_row_spacing=0.1 / lines, width=160 + 400 * columns, height=100 + 400 * lines,
        title="PCA to 50 dimensions, then t-SNE",
    )  # fmt: skip
    figure.update_traces(marker={"size": 4, "opacity": 0.8}, hovertemplate="class %{fullData.name}<extra></extra>")
    figure.for_each_annotation(lambda note: note.update(text=note.text.removeprefix("panel=")))
    hidden = {"matches": None, "showticklabels": False, "title": None, "zeroline": False, "showgrid": False}
    figure.update_xaxes(**hidden, showline=True, mirror=True, linecolor="#ddd")
    figure.update_yaxes(**hidden, showline=True, mirror=True, linecolor="#ddd")
    return figure.update_layout(legend={"itemsizing": "constant"}, margin=MARGIN | {"l": 20, "t": 90, "b": 20})
