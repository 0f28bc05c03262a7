"""The synthetic graph has the properties that its settings name."""

from collections.abc import Callable

import pytest
import torch

from src.data import GraphDataModule

Make = Callable[..., GraphDataModule]
LARGER = {"num_nodes": 4000, "num_edges": 20_000, "counts": {}}


@pytest.mark.parametrize("homophily", [0.2, 0.9])
def test_homophily(make_datamodule: Make, homophily: float) -> None:
    data = make_datamodule("synthetic/tiny", homophily=homophily, **LARGER).load()
    source, target = data.edge_index
    same = (data.y[source] == data.y[target]).float().mean().item()
    # Of the edges drawn anywhere, a quarter falls within a class. Weights of hubs move this, and merged pairs too.
    assert same == pytest.approx(homophily + (1 - homophily) / 4, abs=0.1)


def test_a_smaller_exponent_makes_larger_hubs(make_datamodule: Make) -> None:
    def largest_degree(exponent: float) -> int:
        data = make_datamodule("synthetic/tiny", degree_exponent=exponent, **LARGER).load()
        return int(torch.bincount(data.edge_index[0]).max())

    assert largest_degree(2.2) > 3 * largest_degree(6.0)


def test_words_of_the_own_class_are_more_frequent(make_datamodule: Make) -> None:
    data = make_datamodule("synthetic/tiny", topic_share=0.5, **LARGER).load()
    own = data.x.view(4000, 4, 30).sum(dim=2)[torch.arange(4000), data.y]
    assert (own / data.x.sum(dim=1)).mean().item() == pytest.approx(0.5 + 0.5 / 4, abs=0.05)  # repeated words merge


def test_without_words_features_are_normal_and_degrees_even(make_datamodule: Make) -> None:
    data = make_datamodule("synthetic/random").load()
    assert data.x.mean().item() == pytest.approx(0, abs=0.01)  # ten standard errors of 1.28 million numbers
    assert data.x.std().item() == pytest.approx(1, abs=0.01)
    assert torch.bincount(data.edge_index[0]).max() < 40  # of Poisson's 10


def test_the_graph_seed_decides(make_datamodule: Make) -> None:
    first, same, other = (make_datamodule("synthetic/tiny", graph_seed=seed).load() for seed in (0, 0, 1))
    assert torch.equal(first.edge_index, same.edge_index)
    assert torch.equal(first.x, same.x)
    assert first.edge_index.shape != other.edge_index.shape or not torch.equal(first.edge_index, other.edge_index)


@pytest.mark.parametrize("changes", [{"num_classes": 0}, {"num_classes": 500}, {"degree_exponent": 2.0}])
def test_settings_out_of_range(make_datamodule: Make, changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"dataset.{next(iter(changes))} is"):
        make_datamodule("synthetic/tiny", **changes)
