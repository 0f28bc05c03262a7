"""What every method must keep, found by themselves: one test run for each ``conf/model/*.yaml``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

from src.command import PROJECT_ROOT
from src.graph import Batch, Graph
from src.models import Method
from src.models.encoders import ENCODERS
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix

NAMES = sorted(path.stem for path in (PROJECT_ROOT / "conf" / "model").glob("*.yaml"))
Make = Callable[..., Method]


@pytest.fixture(params=NAMES)
def make_model(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Build a method from its settings, 32 wide."""
    settings = OmegaConf.load(PROJECT_ROOT / "conf" / "model" / f"{request.param}.yaml")
    config = OmegaConf.create({"model": settings, "data_dir": str(tmp_path)})

    def make(num_features: int = 24, **changes: object) -> Method:
        return instantiate(config.model, num_features=num_features, **({"hidden_dim": 32} | changes), _convert_="all")

    return make


def relabelled(graph: Graph, order: Tensor) -> Graph:
    """The same graph with node ``order[i]`` called i."""
    dense = graph.adjacency.to_dense()[order][:, order]
    return Graph(graph.features[order], normalised_adjacency(dense.nonzero().T, graph.num_nodes))


def test_the_loss_reaches_every_parameter(make_model: Make, small_graph: Graph) -> None:
    model = make_model(num_layers=2)
    model.loss(small_graph).backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_the_loss_falls_in_training(make_model: Make, small_graph: Graph) -> None:
    model = make_model(learning_rate=1e-2)
    optimizer = model.configure_optimizers()
    losses = []
    for _ in range(150):
        loss = model.loss(small_graph)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])


def test_embedding_is_finite_deterministic_and_one_row_per_node(make_model: Make, small_graph: Graph) -> None:
    model = make_model(hidden_dim=17)
    first, second = model.embed(small_graph), model.embed(small_graph)
    assert first.shape == (60, 17)
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)


def test_embedding_follows_a_relabelling_of_the_nodes(make_model: Make, small_graph: Graph) -> None:
    model = make_model()
    order = torch.randperm(60)
    torch.testing.assert_close(model.embed(relabelled(small_graph, order)), model.embed(small_graph)[order])


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_every_encoder_serves_every_method(make_model: Make, small_graph: Graph, encoder: str, num_layers: int) -> None:
    views = {"top_k": 60} if "top_k" in make_model().hparams else {}  # all entries, so that no tie is cut by order
    model = make_model(encoder=encoder, num_layers=num_layers, **views)
    model.loss(small_graph).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()] == []
    sparse = Graph(SparseMatrix.from_dense(small_graph.features), small_graph.adjacency)
    torch.testing.assert_close(model.embed(sparse), model.embed(small_graph))
    order = torch.randperm(60)
    torch.testing.assert_close(
        model.embed(relabelled(small_graph, order)), model.embed(small_graph)[order], atol=1e-4, rtol=1e-4
    )


def test_a_graph_without_edges_and_features_stays_finite(make_model: Make) -> None:
    graph = Graph(torch.zeros(5, 24), normalised_adjacency(torch.empty(2, 0, dtype=torch.long), 5))
    model = make_model()
    loss = model.loss(graph)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(model.embed(graph)).all()


def test_settings_are_left_to_the_command_to_log(make_model: Make) -> None:
    assert not make_model()._log_hyperparams, "call save_hyperparameters(logger=False)"


def test_a_checkpoint_rebuilds_the_model_by_itself(make_model: Make, small_graph: Graph, tmp_path: Path) -> None:
    model = make_model()
    trainer = pl.Trainer(
        max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(model, DataLoader([Batch(small_graph, None, seed) for seed in range(2)], batch_size=None))
    path = tmp_path / "model.ckpt"
    trainer.save_checkpoint(path)
    torch.load(path, weights_only=True)  # plain containers only
    loaded = type(model).load_from_checkpoint(path, weights_only=True)
    assert torch.equal(loaded.embed(small_graph), model.embed(small_graph))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("encoder", "gnc", "encoder is 'gnc'; it can be 'gcn', 'gat'"),
        ("optimizer", "sgdd", "it can be 'adam', 'adamw'"),
        ("hidden_dim", -1, "hidden_dim is -1; it must be at least 1"),
        ("num_layers", 0, "num_layers is 0; it must be at least 1"),
        ("learning_rate", -1e-3, "learning_rate is -0.001; it must be at least 0"),
    ],
)
def test_settings_out_of_range(make_model: Make, setting: str, value: object, message: str) -> None:
    with pytest.raises(Exception, match=message):  # Hydra wraps the ValueError and keeps its message
        make_model(**{setting: value})
