"""MVGRL and MVGRL_BCE against their published form, with a dense diffusion and one pass for each of four sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from src.graph import Graph
from src.models import MVGRL, MVGRLBCE
from src.models.mvgrl_bce import SAMPLES
from src.models.views import TwoViews
from src.ops.sparse import SparseMatrix
from tests.conftest import SHARED

VIEWS: dict[str, Any] = {"diffusion": "ppr", "strength": 0.2, "tolerance": 1e-7, "top_k": 0}
BCE: dict[str, Any] = VIEWS | {"aggregation": "sum", "left_out": []}


def encode_plainly(model: TwoViews, graph: Graph, seed: int) -> dict[str, Tensor]:
    """The four sets of embeddings, each by a dense pass of its own."""
    adjacency = graph.adjacency.to_dense()
    diffused = 0.2 * torch.linalg.inv(torch.eye(len(adjacency)) - 0.8 * adjacency)
    torch.manual_seed(seed)
    shuffled = graph.features[torch.randperm(len(adjacency))]
    sets = {}
    for name in SAMPLES:
        encoder, operator = (
            (model.diffused_encoder, diffused) if name.endswith("diffused") else (model.encoder, adjacency)
        )
        (layer,) = encoder.layers
        x = shuffled if name.startswith("corrupted") else graph.features
        sets[name] = functional.prelu(operator @ x @ layer.weight + layer.bias, layer.activation.weight)
    return sets


def assert_same_loss_and_gradients(model: TwoViews, graph: Graph, expected: Tensor, nodes: Tensor | None) -> None:
    torch.manual_seed(4)
    loss = model.loss(graph, nodes)
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    plain = torch.autograd.grad(expected, parameters, allow_unused=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, one, other in zip(parameters, plain, gradients, strict=True):
        nothing = torch.zeros_like(parameter)  # of an encoder whose view is left out
        torch.testing.assert_close(
            nothing if one is None else one, nothing if other is None else other, atol=1e-6, rtol=1e-4
        )


BATCHES = [(0, None), (60, None), (60, [3, 58, 0])]  # entries kept of each row, and target nodes


@pytest.mark.parametrize(("top_k", "targets"), BATCHES)
def test_mvgrl(small_graph: Graph, top_k: int, targets: list[int] | None) -> None:
    model = MVGRL(num_features=24, **SHARED, **(VIEWS | {"top_k": top_k}))
    nodes = slice(None) if targets is None else torch.tensor(targets)
    sets = {name: h[nodes] for name, h in encode_plainly(model, small_graph, seed=4).items()}
    weight, bias = model.discriminator.weight[0], model.discriminator.bias
    logits, labels = [], []
    for summarised, scored in (("graph", "diffused"), ("diffused", "graph")):
        summary = torch.sigmoid(sets[summarised].mean(dim=0))
        for name, label in ((scored, 1.0), (f"corrupted_{scored}", 0.0)):
            logits.append(torch.stack([h @ weight @ summary for h in sets[name]]) + bias)
            labels.append(torch.full_like(logits[-1], label))
    expected = functional.binary_cross_entropy_with_logits(torch.cat(logits), torch.cat(labels))
    assert_same_loss_and_gradients(model, small_graph, expected, None if targets is None else nodes)


@pytest.mark.parametrize(("top_k", "targets"), BATCHES)
@pytest.mark.parametrize(
    "left_out",
    [[], ["diffused"], ["graph"], ["corrupted_diffused"], ["corrupted_graph"], ["diffused", "corrupted_diffused"]],
)
def test_mvgrl_bce(small_graph: Graph, left_out: list[str], top_k: int, targets: list[int] | None) -> None:
    model = MVGRLBCE(num_features=24, **SHARED, **(BCE | {"top_k": top_k, "left_out": left_out}))
    nodes = slice(None) if targets is None else torch.tensor(targets)
    sets = {name: h[nodes] for name, h in encode_plainly(model, small_graph, seed=4).items() if name not in left_out}
    logits = torch.cat([h.sum(dim=1) for h in sets.values()])
    labels = torch.cat([torch.full((len(h),), float(not name.startswith("corrupted"))) for name, h in sets.items()])
    expected = functional.binary_cross_entropy_with_logits(logits, labels)
    assert_same_loss_and_gradients(model, small_graph, expected, None if targets is None else nodes)


def test_one_step_has_four_samples_for_each_node(small_graph: Graph) -> None:
    model = MVGRLBCE(num_features=24, **SHARED, **BCE)
    counted: list[int] = []
    model.discriminator.register_forward_hook(lambda _, __, logits: counted.extend(map(len, logits)))
    model.loss(small_graph)
    assert counted == [60, 60, 60, 60]


def test_the_embedding_is_the_sum_of_the_views_that_are_trained(small_graph: Graph) -> None:
    model = MVGRLBCE(num_features=24, **SHARED, **BCE)
    view, diffused = model.encode_views(small_graph)
    sets = encode_plainly(model, small_graph, seed=0)
    torch.testing.assert_close(view, sets["graph"])
    torch.testing.assert_close(diffused, sets["diffused"], atol=1e-5, rtol=1e-4)
    for left_out, expected in [
        ([], view + diffused),
        (["diffused"], view + diffused),
        (["diffused", "corrupted_diffused"], view),
        (["graph", "corrupted_graph"], diffused),
    ]:
        model.hparams["left_out"] = left_out
        torch.testing.assert_close(model.embed(small_graph), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left_out": ["augmented"]}, "left_out is 'augmented'; it can be 'graph', 'diffused'"),
        ({"left_out": ["graph", "diffused"]}, "the loss needs a set of either group"),
        ({"diffusion": "katz"}, "diffusion is 'katz'; it can be 'ppr', 'heat'"),
        ({"top_k": -1}, "top_k is -1; it must be at least 0"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MVGRLBCE(num_features=24, **SHARED, **(BCE | changes))


@pytest.mark.parametrize("changes", [{"encoder": "gat"}, {}])
def test_what_a_matrix_free_diffusion_can_not_do(small_graph: Graph, changes: dict[str, Any]) -> None:
    model = MVGRLBCE(num_features=24, **(SHARED | changes), **BCE)
    with pytest.raises(ValueError, match=r"a matrix-free diffusion has none: set model\.top_k=32, or"):
        model.loss(small_graph, None if changes else torch.tensor([0, 1]))


def kept_entries(graph: Graph, cache: Path | None, **changes: Any) -> SparseMatrix:
    model = MVGRL(num_features=24, cache_dir=cache and str(cache), **SHARED, **(VIEWS | {"top_k": 5} | changes))
    diffused = model.diffused(graph)
    assert isinstance(diffused, SparseMatrix)
    return diffused


def test_kept_entries_are_stored_by_graph_and_settings(small_graph: Graph, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = kept_entries(small_graph, cache)
    (path,) = cache.iterdir()
    written = path.stat().st_mtime_ns
    read = kept_entries(small_graph, cache)
    assert path.stat().st_mtime_ns == written
    for one, other in ((made.values, read.values), (made.columns, read.columns), (made.row_starts, read.row_starts)):
        assert torch.equal(one, other)
    kept_entries(small_graph, cache, strength=0.3)
    kept_entries(small_graph, cache, top_k=6)
    kept_entries(Graph(small_graph.features, small_graph.adjacency.with_values(made.values.new_ones(
        len(small_graph.adjacency.values)) / 10)), cache)  # fmt: skip
    assert len(list(cache.iterdir())) == 4
    assert len(kept_entries(small_graph, None).values) == len(made.values)


def test_a_damaged_store_is_made_anew(small_graph: Graph, tmp_path: Path) -> None:
    made = kept_entries(small_graph, tmp_path)
    (path,) = tmp_path.iterdir()
    for damage in (b"", path.read_bytes()[:200], b"<html>"):
        path.write_bytes(damage)
        assert torch.equal(kept_entries(small_graph, tmp_path).values, made.values)
