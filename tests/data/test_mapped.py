"""Graphs on disk: made once, opened by maps, embedded in bounded memory, and shared by processes."""

from __future__ import annotations

import csv
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from src.data import GraphDataModule, TwinDataModule
from tests.conftest import Run

Make = Callable[..., GraphDataModule]


def test_a_store_is_made_once(make_datamodule: Make) -> None:
    first, again, other = (make_datamodule("synthetic/products", graph_seed=seed) for seed in (0, 0, 1))
    assert isinstance(first, TwinDataModule)
    assert isinstance(other, TwinDataModule)
    first.setup()
    made = (first.folder / "store.json").stat().st_mtime_ns
    again.setup()
    assert (first.folder / "store.json").stat().st_mtime_ns == made
    assert torch.equal(first.graph.features, again.graph.features)
    assert other.folder != first.folder


def test_other_processes_open_the_maps_themselves(make_datamodule: Make) -> None:
    datamodule = make_datamodule("synthetic/products", batch_size=500)
    datamodule.setup()
    pickled = pickle.dumps(datamodule)
    assert len(pickled) < 5000
    copy = pickle.loads(pickled)
    copy.setup()
    for one, other in zip(*(itertools.islice(d.train_dataloader(), 2) for d in (datamodule, copy)), strict=True):
        assert torch.equal(one.graph.features, other.graph.features)


def test_half_precision_is_for_samples_only(make_datamodule: Make) -> None:
    datamodule = make_datamodule("synthetic/products", feature_dtype="float16")
    datamodule.setup()
    assert datamodule.graph.features.dtype is torch.float16  # type: ignore[union-attr]
    batch = next(iter(datamodule.train_dataloader()))
    assert batch.graph.features.dtype is torch.float32  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"works with dataset\.loader=neighbor, and this is full: set dataset\.feat"):
        make_datamodule("synthetic/products", feature_dtype="float16", loader="full")


@pytest.mark.command
def test_two_processes_train_on_samples_of_one_map(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "dataset=synthetic/papers100m", "dataset.scale=0.0002", "dataset.batch_size=1000",
        "dataset.feature_dtype=float16", "dataset.memory_mb=1", "model.num_layers=2", "model.hidden_dim=16",
        "trainer=ddp", "trainer.accelerator=cpu", "trainer.max_steps=4", "trainer.log_every_n_steps=1",
        f"data_dir={tmp_path}/data",
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert len(list(csv.DictReader((tmp_path / "run" / "csv" / "metrics.csv").open()))) == 4, "one process logs"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["timing"]["steps"] == 4
    assert result["split"]["name"] == "official"
    kept = {path.name for path in (tmp_path / "data" / "synthetic" / "papers100m").iterdir()}
    assert {name.split("-")[0] for name in kept} == {"store"}, (
        "blocks that did not fit into 1 MB lay in files meanwhile"
    )
