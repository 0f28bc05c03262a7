"""Samplers of neighbourhoods, for steps of training on graphs too large for memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.sampler
import torch_geometric.typing
from torch import Tensor
from torch.utils.data import get_worker_info
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplerOutput

from src.ops import sampling
from src.ops.checks import check_choice, check_range
from src.ops.sparse import threads

SAMPLERS = ("auto", "builtin", "pyg")


def make_sampler(
    kind: str, row_starts: np.ndarray, columns: np.ndarray, num_neighbors: Sequence[int], seed: int
) -> NeighborSampler:
    """Return a sampler: ``builtin``, ``pyg``, or ``auto``, which is ``pyg`` with pyg-lib, and else ``builtin``.

    Raises:
        ValueError: If there is no such kind, or PyG lacks the package that samples for it.
    """
    check_choice("dataset.sampler", kind, SAMPLERS)
    pyg_lib, torch_sparse = torch_geometric.typing.WITH_PYG_LIB, torch_geometric.typing.WITH_TORCH_SPARSE
    if kind == "pyg" and not (pyg_lib or torch_sparse):
        raise ValueError(
            "dataset.sampler is 'pyg', but PyG samples by pyg-lib or torch-sparse, and neither is installed; "
            "install one of them, or choose 'builtin'"
        )
    sampler = PygNeighborSampler if kind == "pyg" or (kind == "auto" and pyg_lib) else NeighborSampler
    return sampler(row_starts, columns, num_neighbors, seed)


class NeighborSampler(BaseSampler):
    """Draws neighbours without replacement, those of the neighbours, and so on: Hamilton et al. (2017), GraphSAGE.

    Each node is expanded once, in the hop after that in which it was first met, and its self-loop is never drawn. A
    sample follows from the seed and from the batch's nodes and their order alone, whatever process draws it, and with
    how many threads: as many as PyTorch's, or one in a worker of a DataLoader.

    Args:
        row_starts: Starts of the rows of a symmetric adjacency, int32 or int64, shape (N + 1,).
        columns: Their columns, int32 or int64, shape (E,), without repetition within a row, and with the self-loop of
            each node. May be memory-mapped: no more is read than what is drawn.
        num_neighbors: Neighbours drawn for each node, for each hop; -1 takes all.
        seed: Of the draws.

    Raises:
        ValueError: If ``num_neighbors`` is empty, or has a number that is neither positive nor -1.
    """

    def __init__(self, row_starts: np.ndarray, columns: np.ndarray, num_neighbors: Sequence[int], seed: int) -> None:
        check_range("dataset.num_hops", len(num_neighbors), 1)
        for number in num_neighbors:
            if number != -1:
                check_range("dataset.num_neighbors", number, 1)
        self.row_starts, self.columns = row_starts, columns
        self.num_neighbors = list(num_neighbors)
        self.seed = seed
        self._marks: np.ndarray | None = None

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """Return the sampled nodes and edges, numbered as PyG's samplers do.

        Returns:
            ``node``: The batch's nodes, then each hop's new ones as they were met, int64, shape (n,). ``row``, ``col``:
            Numbers of each edge's neighbour and of the node it was drawn for, int64, shape (m,), sorted by ``col``.
            ``edge``: The edges' places in ``columns``, int64, shape (m,). ``num_sampled_nodes``: Of the batch and of
            each hop. ``num_sampled_edges``: Of each hop.
        Raises:
            ValueError: If a node is repeated, or is not in the graph.
        """
        nodes = inputs.node.numpy().astype(np.int64, copy=False)
        num_nodes = len(self.row_starts) - 1
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
            raise ValueError(
                f"a batch names nodes {nodes.min()}..{nodes.max()}, but the graph has nodes 0..{num_nodes - 1}"
            )
        different, counts = np.unique(nodes, return_counts=True)
        if len(different) < len(nodes):
            raise ValueError(f"a batch names node {different[counts.argmax()]} {counts.max()} times; nodes must differ")
        output = self._sample(nodes, sampling.batch_key(self.seed, nodes))
        output.metadata = (inputs.input_id, inputs.time)
        return output

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        raise NotImplementedError("group discrimination learns from nodes: call sample_from_nodes")

    def _sample(self, nodes: np.ndarray, key: int) -> SamplerOutput:
        # Taken away while in use, so that a call that is interrupted leaves no marks behind.
        marks, self._marks = self._marks, None
        if marks is None:
            marks = np.full(len(self.row_starts) - 1, -1, np.int32)
        marks[nodes] = np.arange(len(nodes))
        row_starts, columns = read_only(self.row_starts), read_only(self.columns)
        hops, met, first = [], [nodes], 0
        for number in self.num_neighbors:
            frontier, count = met[-1], first + len(met[-1])
            counts = row_starts[frontier + 1] - row_starts[frontier] - 1
            if number != -1:
                counts = np.minimum(counts, number)
            edge_starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            edges = np.empty(edge_starts[-1], np.int64)
            neighbors = np.empty(edge_starts[-1], columns.dtype)
            arguments = row_starts, columns, frontier, key, edge_starts, edges, neighbors
            if get_worker_info() is None:
                sampling.draw(*arguments, threads())
            else:  # a worker is forked, and must not touch the threads of the process that it came from
                sampling.draw_stripes(*arguments, 0, 1)
            labels, new = np.empty_like(edges), np.empty_like(edges)
            met.append(new[: sampling.relabel(neighbors, marks, count, new, labels)])
            hops.append((labels, np.repeat(np.arange(first, count), counts), edges))
            first = count
        node = np.concatenate(met)
        marks[node] = -1
        self._marks = marks
        row, col, edge = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*hops, strict=True))
        return SamplerOutput(
            node=torch.from_numpy(node),
            row=row,
            col=col,
            edge=edge,
            num_sampled_nodes=[len(part) for part in met],
            num_sampled_edges=[len(part) for part, *_ in hops],
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_marks": None}


class Columns(NamedTuple):
    """A matrix as PyG's sampler takes it, in compressed columns: their starts, and the row of each entry."""

    starts: Tensor
    rows: Tensor

    def csc(self) -> tuple[Tensor, Tensor, None]:
        return self.starts, self.rows, None


class PygNeighborSampler(NeighborSampler):
    """The same by PyG's own sampler, which needs pyg-lib or torch-sparse, and a copy of ``columns`` in memory.

    The columns of each row must be sorted, since the places of edges in ``columns`` are counted, not stored. With
    torch-sparse 0.6.18 the draws are not uniform: of the neighbours of a node, those first in its row are drawn more
    often, and the last one is never drawn alone.
    """

    def __init__(self, row_starts: np.ndarray, columns: np.ndarray, num_neighbors: Sequence[int], seed: int) -> None:
        super().__init__(row_starts, columns, num_neighbors, seed)
        num_nodes = len(row_starts) - 1
        rows = np.repeat(np.arange(num_nodes, dtype=columns.dtype), np.diff(row_starts))
        # The adjacency is symmetric, so its rows are its columns. PyG samples loops like other edges: leave them out.
        adjacency = Columns(
            torch.from_numpy(row_starts - np.arange(num_nodes + 1)), torch.from_numpy(columns[columns != rows]).long()
        )
        data = Data(num_nodes=num_nodes, adj=adjacency)
        self._sampler = torch_geometric.sampler.NeighborSampler(data, list(num_neighbors))

    def _sample(self, nodes: np.ndarray, key: int) -> SamplerOutput:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key)
            output = self._sampler.sample_from_nodes(NodeSamplerInput(None, torch.from_numpy(nodes)))
        source, target = output.node[output.row], output.node[output.col]
        # Left out before an edge were the loops of the rows above, and that of its own row, unless it lies after it.
        output.edge += target + (source > target)
        output.num_sampled_nodes, output.num_sampled_edges = [len(nodes)], []
        first = num_edges = 0
        for _ in self.num_neighbors:  # not all versions count: a hop's edges lead to the nodes of the hop before
            first += output.num_sampled_nodes[-1]
            output.num_sampled_edges.append(int(torch.searchsorted(output.col, first)) - num_edges)
            num_edges += output.num_sampled_edges[-1]
            last = int(output.row[:num_edges].max()) + 1 if num_edges else first
            output.num_sampled_nodes.append(max(last, first) - first)
        return output


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a plain view that can't be written to, so that kernels are compiled for one type of array only."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
