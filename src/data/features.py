"""Feature scaling, by scikit-learn."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import StandardScaler, normalize
from torch import Tensor

from src.ops.checks import check_choice
from src.ops.sparse import SparseMatrix

SCALINGS = ("none", "row", "l2", "tfidf", "standardize", "auto")

STORAGES = ("auto", "sparse", "dense")

SPARSE_BELOW = 0.25
"""Share of non-zero entries under which sparse products beat dense ones: on two CPU cores, a step on the whole graph is
twice as fast with them at 10 % (PubMed), and as fast at 35 % (Amazon), where dense features take less memory."""


def scale_features(x: Tensor, scaling: str, storage: str) -> Tensor | SparseMatrix:
    """Scale the features of all nodes; no label is involved.

    Args:
        x: Raw features, shape (N, D), dense or sparse (COO).
        scaling: ``none``; ``row``: each row divided by the sum of its absolute values; ``l2``: by its length;
            ``tfidf``: term frequency times inverse document frequency, rows of length 1; ``standardize``: each column
            to mean 0 and variance 1; ``auto``: ``row`` if fewer than 25 % of the entries are non-zero, as in bags of
            words, else ``standardize``.
        storage: ``sparse``, ``dense``, or ``auto``: sparse if fewer than 25 % of the entries are non-zero.

    Returns:
        float32, shape (N, D). Rows without entries stay zero, but for ``standardize``.

    Raises:
        ValueError: If scaling or storage is unknown, or a feature is not finite.
    """
    check_choice("dataset.feature_scaling", scaling, SCALINGS)
    check_choice("dataset.feature_storage", storage, STORAGES)
    matrix = _as_csr(x)
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if len(bad):
        row = np.searchsorted(matrix.indptr, bad[0], side="right") - 1
        raise ValueError(
            f"the features hold {len(bad):,} values that are NaN or infinite, the first at node {row}, "
            f"column {matrix.indices[bad[0]]}: replace them before training"
        )
    if scaling == "auto":
        scaling = "row" if matrix.nnz < SPARSE_BELOW * np.prod(matrix.shape) else "standardize"
    if scaling == "none":
        scaled = matrix
    elif scaling == "row":
        scaled = normalize(matrix, norm="l1")
    elif scaling == "l2":
        scaled = normalize(matrix, norm="l2")
    elif scaling == "tfidf":
        scaled = TfidfTransformer().fit_transform(matrix)
    else:
        scaled = sp.csr_matrix(StandardScaler().fit_transform(matrix.toarray()))
    if storage == "dense" or (storage == "auto" and scaled.nnz >= SPARSE_BELOW * np.prod(scaled.shape)):
        return torch.from_numpy(scaled.toarray().astype(np.float32))
    return SparseMatrix(
        torch.from_numpy(scaled.indptr.astype(np.int64)),
        torch.from_numpy(scaled.indices.astype(np.int64)),
        torch.from_numpy(scaled.data.astype(np.float32)),
        scaled.shape,
    )


def _as_csr(x: Tensor) -> sp.csr_matrix:
    """Return dense or sparse features for scikit-learn, without the zeros."""
    if not x.is_sparse:
        return sp.csr_matrix(x.numpy())
    x = x.coalesce()
    return sp.csr_matrix((x.values().numpy(), tuple(x.indices().numpy())), x.shape)
