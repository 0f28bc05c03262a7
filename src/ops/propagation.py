"""Propagation over the edges: the normalised adjacency and its products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops, to_torch_csr_tensor, to_undirected

from src.ops.blocks import MappedMatrix
from src.ops.checks import check_range
from src.ops.diffusion import Diffusion
from src.ops.sparse import SparseMatrix, to_dense

SPARSE_ROWS_BELOW = 0.25
"""Entries per place up to which rows of A X are kept sparse. MVGRL's diffusion has 0.4 on Cora: with dense rows, a step
takes 31 instead of 53 ms on two CPU cores."""


def normalised_adjacency(edge_index: Tensor, num_nodes: int) -> SparseMatrix:
    """Return D^-1/2 (A + I) D^-1/2, Kipf & Welling (2017), Eq. 2.

    Args:
        edge_index: Edges (source, target), int64, shape (2, E). Either direction of an edge stands for both;
            duplicates count once; every node gets exactly one self-loop, whether or not one is listed.
        num_nodes: N.

    Returns:
        Symmetric, float32, shape (N, N). A node without edges keeps its loop, with weight 1.

    Raises:
        ValueError: If an edge names a node outside [0, N).
    """
    check_edges(edge_index, num_nodes)
    edges = to_undirected(remove_self_loops(edge_index)[0], num_nodes=num_nodes)
    edges, _ = add_self_loops(edges, num_nodes=num_nodes)
    return normalise(SparseMatrix.from_csr(to_torch_csr_tensor(edges, size=(num_nodes, num_nodes)), symmetric=True))


def normalise(pattern: SparseMatrix) -> SparseMatrix:
    """Return D^-1/2 S D^-1/2 for a symmetric S, where D holds the row sums of S; each must be positive."""
    degree = torch.zeros(pattern.shape[0], dtype=pattern.values.dtype, device=pattern.values.device)
    degree.index_add_(0, pattern.rows, pattern.values)
    scale = degree.rsqrt()
    # The two scales first: their product is the same for (i, j) and (j, i) to the last bit.
    return pattern.with_values(pattern.values * (scale[pattern.rows] * scale[pattern.columns]))


def check_edges(edge_index: Tensor, num_nodes: int) -> None:
    """Raise ValueError unless every edge joins two nodes of [0, num_nodes)."""
    if edge_index.numel() == 0:
        return
    low, high = int(edge_index.min()), int(edge_index.max())
    if low < 0 or high >= num_nodes:
        raise ValueError(f"edge_index names nodes {low}..{high}, but the graph has nodes 0..{num_nodes - 1}")


def select_rows(adjacency: SparseMatrix | Diffusion, targets: Tensor) -> SparseMatrix:
    """Return the rows ``targets`` of A.

    Raises:
        ValueError: If A is a matrix-free diffusion, which has no rows to choose from.
    """
    if isinstance(adjacency, Diffusion):
        raise ValueError(
            "batches of target nodes need rows, and a matrix-free diffusion has none: set model.top_k=32, or "
            "dataset.loader=full"
        )
    return adjacency.select_rows(targets)


def receptive_field(
    adjacency: SparseMatrix | Diffusion, targets: Tensor, hops: int
) -> tuple[Tensor, list[SparseMatrix]]:
    """Return the nodes that some nodes see, and the rows of A^hops for these as factors.

    The rows ``targets`` of A^hops X are factors[-1] @ ... @ factors[0] @ X[nodes].

    Args:
        adjacency: A, shape (N, N).
        targets: int64, shape (B,).
        hops: Number of factors; 0 returns ``targets``.

    Returns:
        Nodes, int64, shape (n,), and matrices of shapes (n_1, n), (n_2, n_1), ..., (B, n_hops-1).

    Raises:
        ValueError: If A is a matrix-free diffusion.
    """
    factors: list[SparseMatrix] = []
    for _ in range(hops):
        rows = select_rows(adjacency, targets)
        targets, places = rows.columns.unique(return_inverse=True)
        factors.append(SparseMatrix(rows.row_starts, places, rows.values, (rows.shape[0], len(targets))))
    return targets, factors[::-1]


def propagate_rows(
    adjacency: SparseMatrix | Diffusion,
    features: Tensor | SparseMatrix,
    targets: Tensor,
    permutation: Tensor,
    kept_columns: Tensor | None = None,
) -> Tensor | SparseMatrix:
    """Return the rows ``targets`` of A X M, and below them those of A P X M, without computing any others.

    Args:
        adjacency: A, shape (N, N).
        features: X, shape (N, D), dense or sparse. The result is sparse if X is and it has few entries.
        targets: Rows to compute, int64, shape (B,).
        permutation: P as the order in which the rows of X are taken, int64, shape (N,).
        kept_columns: M as a mask over the columns of X, shape (D,); None keeps all.

    Returns:
        Shape (2 B, D).

    Raises:
        ValueError: If A is a matrix-free diffusion.
    """
    rows = select_rows(adjacency, targets)
    both = SparseMatrix(
        torch.cat([rows.row_starts, rows.row_starts[1:] + rows.row_starts[-1]]),
        torch.cat([rows.columns, permutation[rows.columns]]),
        rows.values.repeat(2),
        (2 * len(targets), adjacency.shape[1]),
    )
    if isinstance(features, SparseMatrix) and targets.device.type == "cpu":
        terms = int(features.row_lengths[both.columns].sum())
        if terms < SPARSE_ROWS_BELOW * both.shape[0] * features.shape[1]:
            return both.multiply_sparse(features, kept_columns, terms)
    product = both @ to_dense(features)
    return product if kept_columns is None else product.mul_(kept_columns)


def graph_power(adjacency: SparseMatrix | Diffusion, x: Tensor, hops: int) -> Tensor:
    """Return A^hops x, by products with x from the right.

    Args:
        adjacency: A, shape (N, N).
        x: Dense, shape (N, D).
        hops: Number of products; 0 returns x unchanged.

    Raises:
        ValueError: If hops is negative.
    """
    check_range("hops", hops, 0)
    for _ in range(hops):
        x = adjacency @ x
    return x


def add_power(adjacency: SparseMatrix, x: Tensor, hops: int) -> Tensor:
    """Return x + A^hops x.

    Args:
        adjacency: A, shape (N, N).
        x: Dense, shape (N, D).
        hops: Number of products; 0 gives 2 x.

    Raises:
        ValueError: If hops is negative.
    """
    if isinstance(adjacency, MappedMatrix):
        check_range("hops", hops, 0)
        return adjacency.map_columns(
            lambda columns: x[:, columns].contiguous(),
            x.shape[1],
            hops,
            lambda power, rows, columns: power + x[rows, columns],
        )
    return graph_power(adjacency, x, hops).add_(x) if hops else 2 * x
