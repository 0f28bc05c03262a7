"""Splits: sizes, disjointness, dependence on the seed, and a clear error for a class without training nodes."""

import pytest
import torch
from torch_geometric.data import Data

from src.data.splits import make_labels


@pytest.fixture
def labelled() -> Data:
    return Data(y=torch.arange(1000) % 4)


def test_random_split_is_10_10_80_and_covers_all_nodes_once(labelled: Data) -> None:
    labels = make_labels(labelled, "random", seed=0)
    assert labels.sizes == [100, 100, 800]
    together = torch.cat([labels.train, labels.validation, labels.test])
    assert together.sort().values.tolist() == list(range(1000))


def test_per_class_split_is_20_30_rest(labelled: Data) -> None:
    labels = make_labels(labelled, "per_class", seed=0)
    assert labels.sizes == [80, 120, 800]
    assert torch.bincount(labels.classes[labels.train]).tolist() == [20] * 4
    assert torch.bincount(labels.classes[labels.validation]).tolist() == [30] * 4
    assert torch.cat([labels.train, labels.validation, labels.test]).unique().numel() == 1000


@pytest.mark.parametrize("split", ["random", "per_class"])
def test_the_seed_decides(labelled: Data, split: str) -> None:
    fingerprints = [make_labels(labelled, split, seed).fingerprint for seed in (0, 0, 1)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_unlabelled_nodes_are_in_no_set(labelled: Data) -> None:
    labelled.y[:100] = -1
    labels = make_labels(labelled, "random", seed=0)
    assert sum(labels.sizes) == 900
    assert int(torch.cat([labels.train, labels.validation, labels.test]).min()) >= 100


def test_a_class_missing_from_training(labelled: Data) -> None:
    labelled.y[0] = 4  # one node only
    missing = [seed for seed in range(20) if 0 not in _shuffled_tenth(seed)]
    with pytest.raises(ValueError, match=r"class 4 of 0\.\.4 has no training node in the random split with seed"):
        make_labels(labelled, "random", missing[0])


def _shuffled_tenth(seed: int) -> list[int]:
    return torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:100].tolist()


def test_unknown_and_missing_splits(labelled: Data) -> None:
    with pytest.raises(ValueError, match="'stratified'; it can be 'public', 'random', 'per_class'"):
        make_labels(labelled, "stratified", 0)
    with pytest.raises(ValueError, match="ships no public split"):
        make_labels(labelled, "public", 0)
