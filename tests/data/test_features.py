"""Feature scaling against its definition."""

import math

import pytest
import torch
from torch import Tensor

from src.data.features import scale_features
from src.ops.sparse import SparseMatrix


def scaled(x: Tensor, scaling: str) -> Tensor:
    result = scale_features(x, scaling, "auto")
    return result.to_dense() if isinstance(result, SparseMatrix) else result


@pytest.fixture
def counts() -> Tensor:
    """Counts of words; node 2 has none."""
    return torch.tensor([[1.0, 3.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 0.0], [4.0, 0.0, 0.0]])


def test_row_and_l2(counts: Tensor) -> None:
    assert scaled(counts, "row").sum(dim=1).tolist() == [1, 1, 0, 1]
    torch.testing.assert_close(scaled(counts, "l2").norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(scaled(-counts, "row"), -scaled(counts, "row"))


def test_tfidf_by_hand(counts: Tensor) -> None:
    documents = (counts > 0).sum(dim=0)
    weights = counts * torch.tensor([math.log((1 + 4) / (1 + d)) + 1 for d in documents.tolist()])
    torch.testing.assert_close(scaled(counts, "tfidf"), weights / weights.norm(dim=1, keepdim=True).clamp_min(1e-9))


def test_standardize(counts: Tensor) -> None:
    result = scaled(counts, "standardize")
    torch.testing.assert_close(result.mean(dim=0), torch.zeros(3))
    torch.testing.assert_close(result.std(dim=0, correction=0), torch.ones(3))


def test_sparse_only_where_few_entries_are_set() -> None:
    x = torch.zeros(20, 20)
    x[0, :5] = 1
    assert isinstance(scale_features(x, "row", "auto"), SparseMatrix)
    assert isinstance(scale_features(x, "row", "dense"), Tensor)
    torch.testing.assert_close(scaled(x, "none"), x)
    assert isinstance(scale_features(torch.rand(20, 20), "row", "auto"), Tensor)
    assert isinstance(scale_features(torch.rand(20, 20), "row", "sparse"), SparseMatrix)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_features_are_named(counts: Tensor, value: float) -> None:
    counts[1, 2] = value
    with pytest.raises(ValueError, match="1 values that are NaN or infinite, the first at node 1, column 2"):
        scale_features(counts, "row", "auto")


def test_unknown_scaling_or_storage(counts: Tensor) -> None:
    with pytest.raises(ValueError, match="'minmax'; it can be 'none', 'row', 'l2', 'tfidf', 'standardize'"):
        scale_features(counts, "minmax", "auto")
    with pytest.raises(ValueError, match="'csr'; it can be 'auto', 'sparse', 'dense'"):
        scale_features(counts, "row", "csr")
