"""python -m src.dashboard: a workspace of Weights & Biases over the runs that were logged there."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from src.command import command

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

log = logging.getLogger(__name__)


@command("dashboard")
def main(cfg: DictConfig) -> None:
    """Save the workspace, or write what would be saved.

    Raises:
        SystemExit: If there is no API key.
    """
    import wandb

    if cfg.dry_run:
        # The package has no public way to the JSON that it sends.
        view = build_workspace(cfg.entity or "", cfg.project, cfg.name, cfg.hyperparameters)._to_model()
        spec = view.model_dump(by_alias=True, exclude_none=True, mode="json")
        Path(cfg.spec_file).write_text(json.dumps(spec, indent=2) + "\n")
        log.info("Nothing was saved online. The workspace: %s", cfg.spec_file)
        return
    if not wandb.login(prompt=False, verify=False):
        raise SystemExit(
            "No API key of Weights & Biases was found, and a workspace lives on its server: set WANDB_API_KEY or run "
            "wandb login. dry_run=true writes the workspace as JSON instead."
        )
    entity = cfg.entity or wandb.Api().default_entity
    build_workspace(str(entity), cfg.project, cfg.name, cfg.hyperparameters).save()  # prints its address


def build_workspace(entity: str, project: str, name: str, hyperparameters: Sequence[str]) -> Workspace:
    """Build a workspace of five panels.

    Args:
        entity: Team or user.
        project: Where the runs were logged.
        name: Of the view.
        hyperparameters: Dotted keys of the settings.
    """
    from wandb_workspaces.reports.v2 import (
        BarPlot,
        Config,
        LinePlot,
        ParallelCoordinatesPlot,
        ParallelCoordinatesPlotColumn,
        ScatterPlot,
        SummaryMetric,
    )
    from wandb_workspaces.workspaces import Section, Workspace

    accuracy = SummaryMetric("val_accuracy")
    columns = [
        ParallelCoordinatesPlotColumn(Config(key), log=key.endswith("learning_rate") or None) for key in hyperparameters
    ]
    sections: dict[str, list[Any]] = {
        "Accuracy": [
            ScatterPlot(
                title="Test accuracy against seconds of training",
                x=SummaryMetric("fit_seconds"),
                y=SummaryMetric("test_accuracy"),
                log_x=True,
            ),
        ],
        "Convergence": [
            LinePlot(title="Loss", x="trainer/global_step", y=["loss"]),
            LinePlot(title="Validation accuracy during training", x="trainer/global_step", y=["online_val_accuracy"]),
        ],
        "Hyperparameters": [
            ParallelCoordinatesPlot(
                title="Hyperparameters and validation accuracy",
                columns=[*columns, ParallelCoordinatesPlotColumn(accuracy)],
            ),
        ],
        "Memory": [
            BarPlot(
                title="Peak memory in MB, by graph",
                metrics=["peak_rss_mb"],
                groupby=Config("dataset.name"),
                groupby_aggfunc="max",
            ),
        ],
    }
    return Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[Section(name, panels=panels, is_open=True) for name, panels in sections.items()],
    )


if __name__ == "__main__":
    main()
