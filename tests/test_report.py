"""``python -m src.report``: what the page says is what the runs left; checked in a browser where there is one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from src import charts
from src.command import PROJECT_ROOT
from src.report import COLUMNS, node_classes, project_latest, read_curves, read_runs, render
from tests.conftest import Run, dataset_config

Driver = webdriver.Chrome

FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "enable-unsafe-swiftshader", "disable-dev-shm-usage", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync", "window-size=1400,1000",
)  # fmt: skip


def write_run(folder: Path, age: float = 0, **changes: Any) -> Path:
    """Leave a finished run's result, written ``age`` seconds ago."""
    folder.mkdir(parents=True)
    result = {
        "status": "finished",
        "dataset": "cora",
        "model": "ggd",
        "seed": 0,
        "val_accuracy": 0.8,
        "test_accuracy": 0.79,
        "references": None,
        "timing": {"fit_seconds": 3.5, "step_ms_median": 12.25},
        "memory": {"peak_rss_mb": 600.4},
        "hyperparameters": {
            "learning_rate": 0.001, "hidden_dim": 32, "num_layers": 1, "projector_layers": 1, "aggregation": "sum",
        },
    }  # fmt: skip
    path = folder / "result.json"
    path.write_text(json.dumps(result | changes))
    os.utime(path, (1e9 - age, 1e9 - age))
    return folder


def write_losses(folder: Path, losses: list[float]) -> None:
    """Leave the losses as Lightning's logger does."""
    (folder / "csv").mkdir()
    lines = [f"0,{loss},{step}\n" for step, loss in enumerate(losses)]
    (folder / "csv" / "metrics.csv").write_text("epoch,loss,step\n" + "".join(lines))


def page_of(folder: Path) -> str:
    runs = read_runs(folder)
    return render(runs, read_curves(runs, 9, 9), project_latest(runs, 9, 9), folder, folder / "report.html")


def test_runs_are_read_latest_first_and_broken_ones_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path / "old", age=60)
    write_run(tmp_path / "new", status="failed", error="ValueError: no")
    for name, text in (("half", '{"status": "fini'), ("list", "[1]"), ("bare", '{"status": "failed"}'), ("empty", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    runs = read_runs(tmp_path)
    assert [folder.name for folder in runs["folder"]] == ["new", "old"]
    for name in ("half", "list", "bare", "empty"):
        assert f"Left out {tmp_path / name / 'result.json'}" in caplog.text


@pytest.mark.parametrize("name", ["empty", "not_there"])
def test_no_runs_is_an_error_that_names_the_folder_and_the_next_step(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"{name} holds no result of a run: make one with python -m src.train"):
        read_runs(tmp_path / name)


def test_curves_are_thinned_and_only_the_latest_are_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for age, name in enumerate(("broken", "new", "old")):
        write_losses(write_run(tmp_path / name, age), [1 / (step + 1) for step in range(1001)])
    (tmp_path / "broken" / "csv" / "metrics.csv").write_text("")
    curves = read_curves(read_runs(tmp_path), max_curves=2, max_points=11)
    assert list(curves["step"]) == list(range(0, 1001, 100))
    assert list(curves["loss"]) == pytest.approx([1 / (step + 1) for step in curves["step"]])
    assert set(curves["name"]) == {"ggd, seed 0, new"}
    assert f"Left out {tmp_path / 'broken' / 'csv' / 'metrics.csv'}" in caplog.text
    assert "latest 2 of 3 loss curves" in caplog.text


def test_classes_come_from_the_dataset_or_are_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = dataset_config("synthetic/tiny") | {"split_seed": 0, "seed": 0, "num_hops": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"dataset": dataset}))
    classes = node_classes(tmp_path, 400)
    assert classes is not None
    assert np.bincount(classes).tolist() == [100] * 4
    assert node_classes(tmp_path, 399) is None
    assert node_classes(tmp_path / "elsewhere", 400) is None
    assert "the dataset has 400 nodes, the embeddings 399" in caplog.text
    assert f"Classes of {tmp_path / 'elsewhere'} are unknown" in caplog.text


def test_the_page_escapes_what_the_runs_say_and_loads_nothing(tmp_path: Path) -> None:
    write_losses(write_run(tmp_path / "a", model="</script><b>"), [1.0, 0.5])
    write_run(tmp_path / "b", status="failed", error="<i>no</i>")
    write_run(tmp_path / "c", status="interrupted", timing={}, memory={}, hyperparameters={}, val_accuracy=None)
    page = page_of(tmp_path)
    assert "</script><b>" not in page
    assert "&lt;i&gt;no&lt;/i&gt;" in page
    assert page.count("<script") == page.count("</script>") == 3
    assert "<script src" not in page
    assert "<link" not in page


def test_charts_draw_what_the_runs_have(tmp_path: Path) -> None:
    rivals = {name: {"test_accuracy": value} for name, value in (("raw", 0.5), ("untrained", 0.6))}
    write_run(tmp_path / "a", references=rivals)
    write_run(tmp_path / "b", references={"raw": {"test_accuracy": 0.7}})
    write_run(tmp_path / "c", model="dgi_bce", hyperparameters={"learning_rate": 0.1, "hidden_dim": 8})
    write_run(tmp_path / "d", status="running", test_accuracy=None)
    runs = read_runs(tmp_path)
    seconds = charts.accuracy_against_seconds(runs, charts.method_colours(runs["model"]))
    assert {trace.name: len(trace.x) for trace in seconds.data} == {"ggd": 2, "dgi_bce": 1}
    assert {line.name: line.y0 for line in seconds.layout.shapes} == pytest.approx(
        {"raw X: 60.0%": 0.6, "untrained H: 60.0%": 0.6}
    )
    (lines,) = charts.parallel_coordinates(runs).data
    assert [axis.label for axis in lines.dimensions] == [
        "learning rate", "hidden size", "layers", "projector layers", "aggregation", "validation accuracy",
    ]  # fmt: skip
    assert list(lines.dimensions[0]["values"]) == pytest.approx([-3] * 3)  # of a, b and d; c lacks three of them
    assert lines.dimensions[4].ticktext == ("sum",)


def test_help_waits_for_no_heavy_import() -> None:
    program = (
        "import sys, src.report\n"
        "try: src.report.main()\n"
        "finally: print({'torch', 'pandas', 'plotly', 'sklearn'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, "--help"]
    outcome = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.endswith("set()\n")
    for part in ("outputs_dir:", "max_projections: 12", "Examples:"):
        assert part in outcome.stdout


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Driver]:
    """Chromium without a window and without a network."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser: install chromium and chromedriver (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as started:
        yield started


def visible_rows(browser: Driver) -> list[WebElement]:
    return [row for row in browser.find_elements(By.CSS_SELECTOR, "#runs tbody tr") if row.is_displayed()]


def column(browser: Driver, heading: str) -> list[str]:
    """Values of a column of the table, from top to bottom."""
    place = list(COLUMNS).index(heading) + 1
    return [
        str(cell.get_attribute("data-value"))
        for cell in browser.find_elements(By.CSS_SELECTOR, f"#runs tbody td:nth-child({place})")
    ]


def count(browser: Driver, selector: str) -> int:
    return len(browser.find_elements(By.CSS_SELECTOR, selector))


@pytest.mark.command
def test_the_page_in_a_browser(browser: Driver, run: Run, tmp_path: Path) -> None:
    """Two methods, each with a run that finishes and one that fails."""
    settings = ("model=ggd,dgi_bce", "model.hidden_dim=32,-1", "trainer.max_steps=20", "evaluation.references=false")
    run("-m", "dataset=synthetic/tiny", *settings)
    results = {path.parent: json.loads(path.read_text()) for path in (tmp_path / "sweep").rglob("result.json")}
    assert sorted(result["status"] for result in results.values()) == ["failed"] * 2 + ["finished"] * 2
    finished = {folder: result for folder, result in results.items() if result["status"] == "finished"}
    with_reference, result = next(iter(finished.items()))
    result["references"] = {"raw": {"test_accuracy": 0.5}}
    (with_reference / "result.json").write_text(json.dumps(result))
    outcome = run(f"outputs_dir={tmp_path}", "max_projected_nodes=100", module="src.report")
    assert outcome.returncode == 0, outcome.stderr
    assert f"Report of 4 runs: {tmp_path / 'report.html'}" in outcome.stdout
    browser.get((tmp_path / "report.html").as_uri())

    # The table says what result.json says.
    for row in visible_rows(browser):
        cells = row.find_elements(By.TAG_NAME, "td")
        folder, _, error = cells[-1].text.partition("\n")
        result = results.pop(tmp_path / folder)
        shown = dict(zip(COLUMNS, (cell.text for cell in cells), strict=False))
        assert [shown[key] for key in ("dataset", "model", "seed", "status")] == [
            "synthetic/tiny", result["model"], "0", result["status"],
        ]  # fmt: skip
        if result["status"] == "failed":
            assert "hidden_dim is -1; it must be at least 1" in error
            assert "failed" in str(row.get_attribute("class"))
            continue
        assert error == ""
        assert shown["validation"] == f"{result['val_accuracy']:.2%}"
        assert float(cells[5].get_attribute("data-value") or "nan") == result["test_accuracy"]
        assert shown["fit seconds"] == f"{result['timing']['fit_seconds']:.2f}"
        assert shown["ms/step"] == f"{result['timing']['step_ms_median']:.2f}"
        assert shown["peak memory MB"] == f"{result['memory']['peak_rss_mb']:,.0f}"
        assert [shown[key] for key in ("learning rate", "hidden size", "layers")] == ["0.001", "32", "1"]
    assert not results

    # A click on a heading sorts, another one turns the order round; what is missing comes last.
    accuracies = sorted(result["test_accuracy"] for result in finished.values())
    heading = browser.find_element(By.XPATH, "//th[text()='test']")
    for order in (accuracies, accuracies[::-1]):
        heading.click()
        assert [float(text) for text in column(browser, "test")[:2]] == order
        assert column(browser, "test")[2:] == ["", ""]
    browser.find_element(By.XPATH, "//th[text()='model']").click()
    assert column(browser, "model") == ["dgi_bce", "dgi_bce", "ggd", "ggd"]

    # The filter keeps the rows that hold all words.
    box = browser.find_element(By.ID, "filter")
    for words, rows in (("dgi_bce failed", 1), ("nothing like this", 0), ("", 4)):
        box.clear()
        box.send_keys(words + " ")
        assert len(visible_rows(browser)) == rows
        assert browser.find_element(By.ID, "shown").text == f"{rows} of 4 rows"

    # Each chart is drawn.
    traces = (
        "return Object.fromEntries([...document.querySelectorAll('.js-plotly-plot')].map(c => [c.id, c.data.length]))"
    )
    assert browser.execute_script(traces) == {"loss": 2, "seconds": 2, "hyperparameters": 1, "embeddings": 8}
    assert count(browser, "#loss .scatterlayer path.js-line") == 2
    assert count(browser, "#seconds .scatterlayer path.point") == 2
    assert count(browser, "#seconds .shapelayer path") == 1
    assert count(browser, "#hyperparameters canvas") >= 1
    assert count(browser, "#hyperparameters .parcoords .axis") == 6
    assert count(browser, "#embeddings .scatterlayer path.point") == 2 * 100
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
