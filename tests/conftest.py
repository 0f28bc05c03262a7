"""Shared fixtures: a small graph, the benchmark graphs where they are at hand, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from src import data
from src.command import PROJECT_ROOT
from src.data import GraphDataModule
from src.graph import Graph
from src.ops.propagation import normalised_adjacency

MIRROR = Path(os.environ.get("GGD_DATA_MIRROR") or PROJECT_ROOT.parent / "shared" / "data")

SHARED: dict[str, Any] = {
    "encoder": "gcn",
    "hidden_dim": 16,
    "num_layers": 1,
    "activation": "prelu",
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
}
"""Settings that every method takes."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def edges() -> torch.Tensor:
    """A path 0-1-2-3, a triangle 3-4-5, and a node 6 without edges; each edge is listed in one direction."""
    return torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 3]])


@pytest.fixture
def small_graph() -> Graph:
    """A random graph of 60 nodes with 24 dense features."""
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(60, (2, 150), generator=generator)
    return Graph(torch.rand(60, 24, generator=generator), normalised_adjacency(edge_index, 60))


def dataset_config(name: str) -> dict[str, Any]:
    """The settings of ``conf/dataset/<name>.yaml`` and of the loader, without their interpolations."""
    parts = (
        yaml.safe_load((PROJECT_ROOT / "conf" / f"{part}.yaml").read_text())
        for part in ("loader/default", f"dataset/{name}")
    )
    config = {key: value for part in parts for key, value in part.items()}
    del config["defaults"]
    return config


@pytest.fixture
def make_datamodule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GraphDataModule]:
    """Build a dataset as the command does, with an empty data folder, no downloads, and the mirror if there is one."""
    monkeypatch.setenv("GGD_DATA_MIRROR", str(MIRROR))

    def make(name: str, **changes: Any) -> GraphDataModule:
        config = dataset_config(name)
        target = getattr(data, config.pop("_target_").rpartition(".")[2])
        if "data_dir" in config:
            config["data_dir"] = str(tmp_path / "data")
        if name == "custom" and "edges" not in changes:
            np.save(tmp_path / "edges.npy", np.array([[0, 1, 2, 3], [1, 2, 0, 4]]))
            config["edges"] = str(tmp_path / "edges.npy")
        if "scale" in config:
            config["scale"] = 6000 / config["num_nodes"]
        if "download" in config:
            config["download"] = False
            folder = config.get("folder", config["name"].replace("-", "_"))
            if folder != "CiteSeer" and not (MIRROR / folder).is_dir():
                pytest.skip(f"{folder} is not embedded: set GGD_DATA_MIRROR to a folder with {folder}/raw")
        seeds = {key: 0 for key in ("split_seed", "seed") if key in config}
        return target(**(config | seeds | {"num_hops": 2} | changes))

    return make


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``python -m <module> <arguments>`` from the project's root as a user would, with outputs in ``tmp_path``."""

    def run_command(*arguments: str, module: str = "src.train", **environment: str) -> subprocess.CompletedProcess[str]:
        where = f"hydra.sweep.dir={tmp_path}/sweep" if "-m" in arguments else f"hydra.run.dir={tmp_path}/run"
        placed = [] if any(a.startswith(("hydra.run.dir", "hydra.sweep.dir", "--")) for a in arguments) else [where]
        return subprocess.run(
            [sys.executable, "-m", module, *arguments, *placed],
            cwd=PROJECT_ROOT,
            env=os.environ | {"WANDB_MODE": "offline"} | environment,  # no test uploads anything
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run_command
