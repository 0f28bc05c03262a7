"""Every dataset: the published graph, its split and its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor
from torch_geometric.data import Data

from src.command import PROJECT_ROOT
from src.data import GraphDataModule, InMemoryDataModule
from src.graph import Batch
from src.ops.sparse import SparseMatrix

CONF = PROJECT_ROOT / "conf" / "dataset"
NAMES = sorted(str(path.relative_to(CONF).with_suffix("")) for path in CONF.rglob("*.yaml"))
Make = Callable[..., GraphDataModule]


@pytest.mark.parametrize("name", NAMES)
def test_graph_is_symmetric_finite_and_as_published(make_datamodule: Make, name: str) -> None:
    datamodule = make_datamodule(name)
    datamodule.setup()  # checks the counts
    graph, labels = datamodule.graph, datamodule.labels
    adjacency = graph.adjacency
    torch.testing.assert_close(adjacency.values[adjacency.mirror], adjacency.values)
    assert torch.isfinite(adjacency.values).all()
    assert int((adjacency.rows == adjacency.columns).sum()) == graph.num_nodes
    features = graph.features.values if isinstance(graph.features, SparseMatrix) else graph.features
    assert torch.isfinite(features).all()
    if labels is not None:
        assert torch.cat([labels.train, labels.validation, labels.test]).unique().numel() == sum(labels.sizes)


@pytest.mark.parametrize(
    ("name", "sizes"), [("cora", [140, 500, 1000]), ("citeseer", [120, 500, 1000]), ("pubmed", [60, 500, 1000])]
)
def test_public_splits(make_datamodule: Make, name: str, sizes: list[int]) -> None:
    datamodule = make_datamodule(name)
    datamodule.setup()
    assert datamodule.labels.sizes == sizes


@pytest.mark.parametrize(("name", "nodes"), [("computers", 13_381), ("photo", 7_487)])
def test_largest_component_of_the_amazon_graphs(make_datamodule: Make, name: str, nodes: int) -> None:
    datamodule = make_datamodule(name, largest_component=True)
    datamodule.setup()
    assert datamodule.graph.num_nodes == nodes == sum(datamodule.labels.sizes)
    assert datamodule.describe_options()["largest_component"] is True


def test_nothing_is_written_beside_the_raw_files(make_datamodule: Make, tmp_path: Path) -> None:
    make_datamodule("citeseer").setup()
    assert not (tmp_path / "data").exists()


def steps(datamodule: GraphDataModule, first: int, number: int) -> list[Batch]:
    """The steps that a trainer is served which has done ``first`` of them."""
    datamodule.setup()
    datamodule.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    datamodule.trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = first
    assert datamodule.trainer.global_step == first
    return list(itertools.islice(datamodule.train_dataloader(), number))


def test_full_loader_serves_the_whole_graph_again_and_again(make_datamodule: Make) -> None:
    datamodule = make_datamodule("synthetic/tiny")
    batches = steps(datamodule, 0, 3)
    assert all(batch.graph is datamodule.graph and batch.targets is None for batch in batches)
    assert len({batch.seed for batch in batches}) == 3


@pytest.mark.parametrize("loader", ["full", "rows"])
def test_dense_features_lie_as_their_steps_read_them(make_datamodule: Make, loader: str) -> None:
    datamodule = make_datamodule("citeseer", loader=loader, feature_storage="dense")
    datamodule.setup()
    features = datamodule.graph.features
    assert isinstance(features, Tensor)
    assert features.T.is_contiguous() == (loader == "full")
    assert features.is_contiguous() == (loader == "rows")


def test_rows_loader_passes_over_all_nodes_in_random_orders(make_datamodule: Make) -> None:
    batches = steps(make_datamodule("synthetic/tiny", loader="rows", batch_size=150), 0, 6)
    targets = [batch.targets for batch in batches if batch.targets is not None]
    assert [len(nodes) for nodes in targets] == [150, 150, 100] * 2
    first, second = torch.cat(targets[:3]), torch.cat(targets[3:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(400))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("loader", ["full", "rows"])
def test_steps_follow_from_seed_and_number_alone(make_datamodule: Make, loader: str) -> None:
    def served(first: int, number: int, seed: int = 0) -> list[tuple[int, list[int] | None]]:
        datamodule = make_datamodule("synthetic/tiny", loader=loader, batch_size=150, seed=seed)
        batches = steps(datamodule, first, number)
        return [(batch.seed, None if batch.targets is None else batch.targets.tolist()) for batch in batches]

    assert served(0, 8)[4:] == served(4, 4)
    assert not {seed for seed, _ in served(0, 8)} & {seed for seed, _ in served(0, 8, seed=1)}


def test_processes_share_the_nodes_of_a_step(make_datamodule: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 133 nodes; the last of a pass has one, which both processes take."""
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # Lightning sets it for all that the process does later, too

    def served(devices: int, rank: int) -> list[Batch]:
        datamodule = make_datamodule("synthetic/tiny", loader="rows", batch_size=133)
        datamodule.setup()
        trainer = pl.Trainer(accelerator="cpu", devices=devices, strategy="ddp_spawn", logger=False)
        trainer.strategy.cluster_environment.set_global_rank(rank)  # type: ignore[attr-defined]
        datamodule.trainer = trainer
        return list(itertools.islice(datamodule.train_dataloader(), 4))

    whole, first, second = served(1, 0), served(2, 0), served(2, 1)
    sizes = []
    for batch, *parts in zip(whole, first, second, strict=True):
        assert {part.seed for part in parts} == {batch.seed}
        assert batch.targets is not None
        taken = [part.targets.tolist() for part in parts if part.targets is not None]
        sizes.append([len(nodes) for nodes in taken])
        assert sorted({node for nodes in taken for node in nodes}) == sorted(batch.targets.tolist())
    assert sizes == [[67, 66]] * 3 + [[1, 1]]


class Given(InMemoryDataModule):
    """A dataset of a test's own."""

    def __init__(self, data: Data, **changes: object) -> None:
        shared = {
            "name": "given",
            "counts": {},
            "split": "random",
            "split_seed": 0,
            "feature_scaling": "row",
            "feature_storage": "auto",
        }
        shared |= {"largest_component": False, "loader": "full", "batch_size": 4, "num_neighbors": 12, "num_hops": 1}
        shared |= {"sampler": "auto", "num_workers": 0, "seed": 0}
        super().__init__(**(shared | changes))  # type: ignore[arg-type]
        self.data = data

    def load(self) -> Data:
        return self.data


@pytest.fixture
def data(edges: Tensor) -> Data:
    return Data(x=torch.rand(7, 3), edge_index=edges, y=torch.zeros(7, dtype=torch.long))


def test_counts_that_differ_from_the_published_ones(data: Data) -> None:
    with pytest.raises(ValueError, match="given is not the graph that was published: it has 7 nodes instead of 8"):
        Given(data, counts={"nodes": 8, "edges": 6}).setup()


def test_an_empty_graph(data: Data) -> None:
    data.x = torch.empty(0, 3)
    with pytest.raises(ValueError, match=r"given is empty: its features have shape \(0, 3\)"):
        Given(data).setup()


def test_an_edge_to_a_node_that_is_not_there(data: Data) -> None:
    data.edge_index[0, 0] = 9
    with pytest.raises(ValueError, match=r"edge_index names nodes 1\.\.9, but the graph has nodes 0\.\.6"):
        Given(data).setup()


def test_not_a_number(data: Data) -> None:
    data.x[4, 1] = torch.nan
    with pytest.raises(ValueError, match="the first at node 4, column 1"):
        Given(data, split="per_class").setup()


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [("loader", "rowz", "it can be 'full', 'rows', 'neighbor'"), ("batch_size", 0, "at least 1")],
)
def test_settings_out_of_range(data: Data, setting: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Given(data, **{setting: value})
