"""Sampled graphs: weights, targets, and training on them."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from src.data import GraphDataModule
from src.data.neighbors import SampledGraphs, sampled_graph, sampled_graphs
from src.graph import Batch, Graph
from src.models import GGD
from tests.conftest import SHARED

Make = Callable[..., GraphDataModule]


def sampled(graph: Graph, targets: torch.Tensor, num_neighbors: list[int], seed: int = 0) -> Graph:
    """The graph that some nodes see of a sample."""
    served, places = next(iter(SampledGraphs(graph, [targets], num_neighbors, "builtin", 0, seed)))
    assert places.tolist() == list(range(len(targets)))
    return served


def test_with_all_neighbours_the_embedding_of_the_targets_is_that_of_the_whole_graph(small_graph: Graph) -> None:
    model = GGD(num_features=24, num_layers=2, **OWN).eval()
    targets = torch.tensor([3, 41, 0, 17])
    served = sampled(small_graph, targets, [-1, -1])
    torch.testing.assert_close(model.encode(served)[:4], model.encode(small_graph)[targets])


def test_products_are_unbiased(small_graph: Graph) -> None:
    """The mean over samples comes near the product with A^, by five standard errors."""
    targets, x = torch.arange(60), torch.randn(60, 1)
    draws = []
    for seed in range(200):
        served = sampled(Graph(x, small_graph.adjacency), targets, [2], seed)
        draws.append((served.adjacency @ served.features)[:60])
    products = torch.stack(draws)
    error = products.std(0) / len(products) ** 0.5
    assert (products.std(0) > 0.01).any()  # there was something to draw
    assert ((products.mean(0) - small_graph.adjacency @ x).abs() <= 5 * error + 1e-5).all()


def test_the_loss_is_that_of_the_targets_alone(small_graph: Graph) -> None:
    """Two logits for each target, of the nodes around it none."""
    model = GGD(num_features=24, num_layers=2, **OWN)
    served = sampled(small_graph, torch.tensor([5, 6, 7]), [2, 2])
    assert served.num_nodes > 3
    logits: list[int] = []
    model.discriminator.register_forward_hook(lambda module, groups, out: logits.extend(len(group) for group in out))
    model.loss(served, torch.arange(3)).backward()
    assert logits == [3, 3]


def test_a_partitioned_graph_needs_packages_that_are_not_installed_here(small_graph: Graph) -> None:
    if importlib.util.find_spec("cugraph_pyg"):
        pytest.skip("cugraph-pyg is installed")
    with pytest.raises(ValueError, match="needs GPUs and the packages cugraph-pyg and pylibwholegraph, and cu"):
        sampled_graphs(small_graph, [], [2], "cugraph", 0, 0)
    with pytest.raises(ValueError, match=r"dataset\.sampler is 'other'; it can be 'auto', 'builtin', 'pyg', 'cugraph'"):
        sampled_graphs(small_graph, [], [2], "other", 0, 0)


def test_features_of_a_sample_may_come_with_it(small_graph: Graph) -> None:
    nodes, x = torch.tensor([4, 9]), torch.rand(2, 3)
    sample = Data(n_id=nodes, edge_index=torch.tensor([[1], [0]]), batch_size=1)
    served, places = sampled_graph(small_graph, sample, x)
    assert served.features is x
    assert places.tolist() == [0]
    degrees = small_graph.adjacency.row_lengths[nodes].float()
    weight = (degrees[0] - 1) / (degrees[0] * degrees[1]).sqrt()  # one neighbour stands for all of them
    expected = torch.stack([torch.stack([1 / degrees[0], weight]), torch.stack([torch.zeros(()), 1 / degrees[1]])])
    torch.testing.assert_close(served.adjacency.csr.to_dense(), expected)


def test_dropping_edges_of_a_sample_is_refused(small_graph: Graph) -> None:
    model = GGD(num_features=24, num_layers=1, **(OWN | {"edge_drop": 0.2}))
    with pytest.raises(ValueError, match=r"edge_drop .* set model\.edge_drop=0, or dataset\.loader=full or rows"):
        model.loss(sampled(small_graph, torch.tensor([1]), [2]), torch.arange(1))


OWN: dict[str, Any] = {key: value for key, value in SHARED.items() if key != "num_layers"} | {
    "projector_layers": 1, "projector_activation": "none", "aggregation": "sum",
    "feature_drop": 0.0, "edge_drop": 0.0, "hops": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", ["synthetic/tiny", "citeseer"])
def test_workers_serve_what_one_process_serves(make_datamodule: Make, name: str) -> None:
    """The features of both are sparse."""

    def served(num_workers: int) -> list[Batch]:
        datamodule = make_datamodule(name, loader="neighbor", batch_size=150, num_neighbors=3, num_workers=num_workers)
        datamodule.setup()
        return list(itertools.islice(datamodule.train_dataloader(), 4))

    for one, other in zip(served(0), served(2), strict=True):
        assert one.seed == other.seed
        assert torch.equal(one.graph.adjacency.csr.to_dense(), other.graph.adjacency.csr.to_dense())
        assert torch.equal(one.graph.features.to_dense(), other.graph.features.to_dense())
