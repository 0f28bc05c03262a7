"""Samples of a graph that is spread over the memories of several GPUs, by cuGraph-PyG and WholeGraph.

Not tested: it was written after the documentation of cuGraph-PyG, without a GPU to run it on. Each process puts its
part of the edges and features onto its GPU; samples then cross from GPU to GPU, and not through main memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from src.data.neighbors import sampled_graph
from src.graph import Graph

STEPS_PER_CALL = 64
"""Batches that are sampled at a time: a call costs as much as many samples."""


class PartitionedGraphs:
    """As ``src.data.neighbors.SampledGraphs``, from parts of the graph on as many GPUs as there are processes.

    Args:
        graph: The whole graph, in memory maps that each process opens; it reads only its part.
        batches: Target nodes of each step, int64, shape (B,).
        num_neighbors: Neighbours to draw for each node, hop by hop.

    Raises:
        ValueError: If the packages are missing, or this is not one of several processes with a GPU each.
    """

    def __init__(self, graph: Graph, batches: Iterable[Tensor], num_neighbors: Sequence[int]) -> None:
        try:
            from cugraph_pyg.loader import NeighborLoader
        except ImportError as error:
            raise ValueError(
                "dataset.sampler is 'cugraph', which needs GPUs and the packages cugraph-pyg and pylibwholegraph, and "
                f"{error.name} is not installed: install them, or choose 'builtin'"
            ) from error
        if not torch.distributed.is_initialized():
            raise ValueError("dataset.sampler=cugraph needs processes with a GPU each: start them by torchrun or srun")
        self.graph, self.batches, self.num_neighbors = graph, batches, list(num_neighbors)
        self.make_loader = NeighborLoader
        self.stores = partition(graph)

    def __iter__(self) -> Iterator[tuple[Graph, Tensor]]:
        """Yield graphs and the places of their target nodes."""
        # Calls take batches of one size; the last of a pass over the nodes may be smaller.
        for _, alike in itertools.groupby(self.batches, key=len):
            while call := list(itertools.islice(alike, STEPS_PER_CALL)):
                nodes = torch.cat(call).cuda()
                for sample in self.make_loader(
                    self.stores, self.num_neighbors, nodes, batch_size=len(call[0]), shuffle=False
                ):
                    order = sample.edge_index[1].argsort(stable=True)
                    sample.n_id, sample.edge_index = sample.n_id.cpu(), sample.edge_index[:, order].cpu()
                    yield sampled_graph(self.graph, sample, sample.x)


def partition(graph: Graph) -> tuple[Any, Any]:
    """Put this process's part of the features and edges into stores that span all processes; return both."""
    import cupy
    import rmm
    from cugraph.gnn import cugraph_comms_create_unique_id, cugraph_comms_init
    from cugraph_pyg.data import FeatureStore, GraphStore
    from pylibwholegraph.torch.initialize import init

    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = torch.cuda.current_device()
    rmm.reinitialize(devices=device, managed_memory=True)
    cupy.cuda.Device(device).use()
    unique = [cugraph_comms_create_unique_id() if rank == 0 else None]
    torch.distributed.broadcast_object_list(unique, src=0)
    cugraph_comms_init(rank=rank, world_size=processes, uid=unique[0], device=device)
    init(rank, processes, device, torch.cuda.device_count())

    nodes = torch.arange(graph.num_nodes).tensor_split(processes)[rank]
    first, last = int(nodes[0]), int(nodes[-1]) + 1
    starts = graph.adjacency.row_starts[first : last + 1]
    neighbours = graph.adjacency.columns[starts[0] : starts[-1]].long()
    receivers = torch.repeat_interleave(nodes, starts.diff())
    edges = torch.stack([neighbours, receivers])[:, neighbours != receivers]
    features, edge_store = FeatureStore(), GraphStore()
    features["node", "x", None] = graph.features[first:last]  # type: ignore[index]
    edge_store[("node", "to", "node"), "coo", False, (graph.num_nodes, graph.num_nodes)] = edges
    return features, edge_store
