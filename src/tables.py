"""A table of results beside the paper's: its cells, their verdicts, and the files that show them."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from src.markdown import fill_marked_places, pipe_table

PAPER_RUNS = 5
"""Runs behind each figure of the paper."""


@dataclass(frozen=True)
class Measure:
    """What is read from each result.

    Attributes:
        path: Place in ``result.json``, with dots.
        unit: Of the numbers shown, after multiplying by ``scale``.
        digits: Decimals shown.
        better: ``higher`` or ``lower``, for a verdict; None for a figure that is shown without one.
        log: Whether the figure's axis is logarithmic.
    """

    path: str
    unit: str
    scale: float
    digits: int
    better: str | None
    log: bool = False


@dataclass(frozen=True)
class Row:
    """One setting.

    Attributes:
        overrides: Of the command line of ``src.train``, besides those of the table.
        paper: For each measure, one [mean, deviation], [mean] or None for each dataset.
        path: In place of the measures' own, for rows that are read from another place.
        skipped: Dataset to the reason why it is not run.
    """

    overrides: Sequence[str]
    paper: Mapping[str, Sequence[Sequence[float] | None]] = field(default_factory=dict)
    path: str | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Settings (rows) on datasets (columns), each with every seed; one of ``conf/table/``.

    Attributes:
        timed: Whether its runs must have the machine to themselves.
    """

    name: str
    title: str
    text: str
    timed: bool
    datasets: Sequence[str]
    seeds: Sequence[int]
    overrides: Sequence[str]
    measures: Mapping[str, Measure]
    rows: Mapping[str, Row]

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any]) -> Table:
        """Build from the plain contents of a yaml file.

        Raises:
            TypeError: If it lacks a key or has one too many.
            ValueError: If a row states figures of the paper for other than the table's measures and datasets.
        """
        rows = {title: Row(**row) for title, row in config["rows"].items()}
        measures = {title: Measure(**measure) for title, measure in config["measures"].items()}
        for title, row in rows.items():
            for measure, figures in row.paper.items():
                if measure not in measures or len(figures) != len(config["datasets"]):
                    raise ValueError(
                        f"table {name}, row {title!r}: the paper's figures for {measure!r} are {len(figures)}; there "
                        f"must be one for each of {config['datasets']}, and a measure of {list(measures)}"
                    )
        return cls(name, **(dict(config) | {"rows": rows, "measures": measures}))


@dataclass(frozen=True)
class Cell:
    """One setting on one dataset by one measure.

    Attributes:
        values: One for each finished run.
        paper: Mean and deviation of the paper's; the deviation may be missing, or both.
        reason: Why there are no values, or fewer than there should be.
    """

    row: str
    dataset: str
    measure: Measure
    values: Sequence[float]
    paper: Sequence[float] | None
    reason: str

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float:
        """Population standard deviation."""
        return statistics.pstdev(self.values)

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return self.mean - self.paper[0] if self.values and self.paper else None

    @property
    def verdict(self) -> str:
        """``agrees``: within two standard errors of the difference; else ``better`` or ``worse``; or ``not run``."""
        if not self.values:
            return "not run"
        if self.paper is None or self.difference is None or self.measure.better is None:
            return ""
        variances = [self.deviation**2 / max(len(self.values) - 1, 1)]
        variances += [deviation**2 / (PAPER_RUNS - 1) for deviation in self.paper[1:]]
        if abs(self.difference) <= 2 * math.sqrt(sum(variances)):
            return "agrees"
        return "better" if (self.difference > 0) == (self.measure.better == "higher") else "worse"

    def show(self, mean: float, *deviation: float) -> str:
        """Format a figure with the decimals of the measure."""
        digits = self.measure.digits
        return " ± ".join(f"{number:,.{digits}f}" for number in (mean, *deviation))

    @property
    def text(self) -> str:
        """Ours, and below it the paper's, the difference and the verdict."""
        if not self.values:
            return f"not run: {self.reason}" + (f"<br>*paper {self.show(*self.paper)}*" if self.paper else "")
        ours = self.show(self.mean, self.deviation) + (f" ({self.reason})" if self.reason else "")
        if self.paper is None or self.difference is None:
            return ours
        parts = [f"paper {self.show(*self.paper)}", f"{self.difference:+,.{self.measure.digits}f}", self.verdict]
        return f"{ours}<br>*{', '.join(part for part in parts if part)}*"


Results = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""Row, dataset and seed to the result of the run."""


def cells(table: Table, results: Results) -> dict[str, list[Cell]]:
    """Return the cells by measure, row by row."""
    return {
        title: [make_cell(table, name, dataset, title, results) for name in table.rows for dataset in table.datasets]
        for title in table.measures
    }


def make_cell(table: Table, row_name: str, dataset: str, title: str, results: Results) -> Cell:
    """Read one cell from the results of all seeds."""
    row, measure = table.rows[row_name], table.measures[title]
    found = [results.get((row_name, dataset, seed), {"status": "not run yet"}) for seed in table.seeds]
    finished = [result for result in found if result["status"] == "finished"]
    values = [look_up(result, row.path or measure.path) * measure.scale for result in finished]
    reason = row.skipped.get(dataset, "")
    if len(finished) < len(found) and not reason:
        first = next(result for result in found if result["status"] != "finished")
        reason = first.get("error", first["status"]).splitlines()[0]
        reason = f"{len(finished)} of {len(found)} runs: {reason}" if finished else reason
    paper = row.paper.get(title, [None] * len(table.datasets))[list(table.datasets).index(dataset)]
    return Cell(row_name, dataset, measure, values, paper, reason)


def look_up(result: Mapping[str, Any], path: str) -> float:
    """Return the number at a dotted path.

    Raises:
        KeyError: If there is none.
    """
    try:
        return float(reduce(lambda place, key: place[key], path.split("."), result))  # type: ignore[arg-type]
    except (KeyError, TypeError):
        raise KeyError(f"{path} is not in the result of {result['model']} on {result['dataset']}") from None


def markdown(table: Table, measure: str, shown: Sequence[Cell]) -> str:
    """Return one measure of a table as Markdown."""
    unit = f" in {table.measures[measure].unit}" if table.measures[measure].unit else ""
    rows = ([name, *(cell.text for cell in shown if cell.row == name)] for name in table.rows)
    return pipe_table([measure + unit, *table.datasets], rows)


def write_csv(table: Table, by_measure: Mapping[str, Sequence[Cell]], path: Path) -> None:
    """Write one line for each cell."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["row", "dataset", "measure", "unit", "mean", "deviation", "runs", "paper_mean", "paper_deviation",
             "difference", "verdict", "reason"]
        )  # fmt: skip
        for title, shown in by_measure.items():
            for cell in shown:
                ours = [cell.mean, cell.deviation] if cell.values else ["", ""]
                paper = [*(cell.paper or []), "", ""][:2]
                writer.writerow(
                    [cell.row, cell.dataset, title, cell.measure.unit, *ours, len(cell.values), *paper,
                     "" if cell.difference is None else cell.difference, cell.verdict, cell.reason]
                )  # fmt: skip


def draw(table: Table, by_measure: Mapping[str, Sequence[Cell]], path: Path) -> None:
    """Draw ours and the paper's, mean ± standard deviation: a line of panels for each measure, a panel per dataset."""
    columns = len(table.datasets)
    width, height = max(3.0, 0.45 * len(table.rows) + 1.2), 2.7 + 0.07 * max(map(len, table.rows))
    size = (width * columns, height * len(by_measure))
    figure, axes = plt.subplots(len(by_measure), columns, figsize=size, squeeze=False, layout="constrained")
    places = {name: place for place, name in enumerate(table.rows)}
    for line, (title, shown) in zip(axes, by_measure.items(), strict=True):
        for axis, dataset in zip(line, table.datasets, strict=True):
            panel = [cell for cell in shown if cell.dataset == dataset]
            ours = [(places[cell.row] - 0.12, cell.mean, cell.deviation) for cell in panel if cell.values]
            paper = [(places[cell.row] + 0.12, *[*cell.paper, 0.0][:2]) for cell in panel if cell.paper]
            for points, label, style in (
                (ours, "ours", {"fmt": "o", "color": "tab:blue"}),
                (paper, "the paper", {"fmt": "D", "color": "tab:orange", "markerfacecolor": "white"}),
            ):
                if points:
                    x, y, error = zip(*points, strict=True)
                    axis.errorbar(x, y, error, label=label, capsize=3, markersize=5, **style)
            axis.set_title(dataset)
            axis.set_xticks(range(len(places)), places, rotation=90)
            axis.set_xlim(-0.6, len(places) - 0.4)
            axis.grid(axis="y", alpha=0.3)
            if table.measures[title].log:
                axis.set_yscale("log")
        unit = table.measures[title].unit
        line[0].set_ylabel(title + (f" in {unit}" if unit else ""))
    axes[0][0].legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


LEGEND = (
    "Each cell: our mean ± population standard deviation over the seeds; below it the paper's, the difference, and a "
    "verdict: *agrees* within two standard errors of the difference, else *better* or *worse*. The figures are drawn "
    "from the same numbers.\n"
)


def write_report(tables: Mapping[str, Table], results: Mapping[str, Results], folder: Path) -> None:
    """Write each table as ``<name>.md``, ``.csv``, ``.png``, and a section of ``report.md``, which keeps all others."""
    folder.mkdir(parents=True, exist_ok=True)
    sections: dict[str, str] = {}
    for name, table in tables.items():
        by_measure = cells(table, results[name])
        write_csv(table, by_measure, folder / f"{name}.csv")
        draw(table, by_measure, folder / f"{name}.png")
        parts = [markdown(table, measure, shown) for measure, shown in by_measure.items()]
        seeds = f"Seeds {', '.join(map(str, table.seeds))}.\n"
        body = "\n".join([f"{table.text}\n", *parts, seeds, f"![{table.title}]({name}.png)\n"])
        (folder / f"{name}.md").write_text(f"# {table.title}\n\n{LEGEND}\n{body}")
        sections[f"section {name}"] = f"## {table.title}\n\n`python -m src.reproduce table={name}`\n\n{body}"
    path = folder / "report.md"
    report = path.read_text() if path.exists() else f"# The paper's tables, and ours\n\n{LEGEND}"
    new = [f"\n<!-- {mark} -->\n<!-- end -->\n" for mark in sections if f"<!-- {mark} -->" not in report]
    path.write_text(report + "".join(new))
    fill_marked_places(path, sections)


def marked_texts(tables: Mapping[str, Table], results: Mapping[str, Results]) -> dict[str, str]:
    """Return each measure of each table as Markdown, under the mark ``table <name>: <measure>``."""
    return {
        f"table {name}: {measure}": markdown(table, measure, shown)
        for name, table in tables.items()
        for measure, shown in cells(table, results[name]).items()
    }
