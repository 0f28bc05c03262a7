"""Batches of target nodes with a sample of their neighbourhoods, drawn by PyG's ``NodeLoader``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from src.data.sampler import SAMPLERS, make_sampler
from src.graph import Graph
from src.ops.checks import check_choice
from src.ops.sparse import SparseMatrix


def sampled_graphs(
    graph: Graph, batches: Iterable[Tensor], num_neighbors: Sequence[int], sampler: str, num_workers: int, seed: int
) -> Iterable[tuple[Graph, Tensor]]:
    """Return for each batch the graph of what it sees, and the places of its nodes; by ``PartitionedGraphs`` with
    ``cugraph``, else by ``SampledGraphs``, whose arguments these are."""
    check_choice("dataset.sampler", sampler, [*SAMPLERS, "cugraph"])
    if sampler == "cugraph":
        from src.data.partitioned import PartitionedGraphs  # optional, and made of what stands below

        return PartitionedGraphs(graph, batches, num_neighbors)
    return SampledGraphs(graph, batches, num_neighbors, sampler, num_workers, seed)


class SampledGraphs:
    """For each batch of target nodes, the graph of what they see of a sample of their neighbours.

    Args:
        graph: The whole graph, in main memory or in memory maps. Worker processes share it.
        batches: Target nodes of each step, int64, shape (B,).
        num_neighbors: Neighbours to draw for each node, hop by hop; -1: all.
        sampler: ``builtin``, ``pyg`` or ``auto``, see ``src.data.sampler``.
        num_workers: Processes that sample ahead; 0: none.
        seed: Of the samples, which follow from it and the target nodes.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Iterable[Tensor],
        num_neighbors: Sequence[int],
        sampler: str,
        num_workers: int,
        seed: int,
    ) -> None:
        rows = graph.adjacency.compressed_rows
        self.loader = NodeLoader(
            Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=graph.num_nodes),
            make_sampler(sampler, rows.starts, rows.columns, num_neighbors, seed),
            transform=functools.partial(sampled_graph, graph),
            filter_per_worker=True,
            batch_sampler=Lists(batches),
            num_workers=num_workers,
        )

    def __iter__(self) -> Iterator[tuple[Graph, Tensor]]:
        """Yield graphs and the places of their target nodes."""
        return iter(self.loader)


class Lists:
    """Batches as the lists that a ``DataLoader`` takes."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        for nodes in self.batches:
            yield nodes.tolist()


def sampled_graph(graph: Graph, sample: Data, features: Tensor | SparseMatrix | None = None) -> tuple[Graph, Tensor]:
    """Return the graph of a sample, and the places of its target nodes, which come first.

    Products with its adjacency are unbiased estimates of those with A^ = D^-1/2 (A + I) D^-1/2: of node i with d_i
    neighbours, k_i of which were drawn, each weighs d_i / k_i times as much as in A^. With all drawn, they are equal.

    Args:
        graph: The whole graph.
        sample: With the nodes ``n_id``, the edges ``edge_index`` from the neighbours drawn to the nodes that they were
            drawn for, grouped by the latter in their order, and ``batch_size``, the number of target nodes.
        features: Of the nodes, shape (n, D); None takes those of the graph.
    """
    nodes, (sources, receivers) = sample.n_id, sample.edge_index
    adjacency, num_nodes = graph.adjacency, len(nodes)
    lengths = adjacency.row_starts[nodes + 1] - adjacency.row_starts[nodes]
    degrees = lengths.to(adjacency.values.dtype)  # with the loop
    drawn = torch.bincount(receivers, minlength=num_nodes)
    row_starts = torch.zeros(num_nodes + 1, dtype=torch.long)
    torch.cumsum(drawn + 1, 0, out=row_starts[1:])
    columns, values = torch.empty(int(row_starts[-1]), dtype=torch.long), degrees.new_empty(int(row_starts[-1]))
    loops, places = row_starts[:-1], torch.arange(len(receivers)) + receivers + 1
    columns[loops], values[loops] = torch.arange(num_nodes), 1 / degrees
    scale = degrees.rsqrt()
    columns[places] = sources
    values[places] = (scale * (degrees - 1) / drawn)[receivers] * scale[sources]
    features = graph.select_features(nodes) if features is None else features.to(values.dtype)
    sampled = SparseMatrix(row_starts, columns, values, (num_nodes, num_nodes))
    return Graph(features, sampled.to(features.device)), torch.arange(sample.batch_size)
