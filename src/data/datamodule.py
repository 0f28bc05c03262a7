"""What every dataset shares: preparation of the graph, its split, and the loaders of training steps."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import LargestConnectedComponents

from src.data.features import scale_features
from src.data.neighbors import sampled_graphs
from src.data.splits import make_labels
from src.graph import Batch, Graph, Labels
from src.ops.checks import check_choice, check_range
from src.ops.propagation import check_edges, normalised_adjacency

log = logging.getLogger(__name__)

LOADERS = ("full", "rows", "neighbor")

WIDE = 256
"""Dense features from which on they lie column by column for steps on the whole graph, which leave columns out. Deep
encoders take fewer row by row, since these are multiplied with the adjacency first."""


class GraphDataModule(pl.LightningDataModule, ABC):
    """One graph: made ready by ``setup``, then served as steps of training.

    Args:
        name: The dataset's name.
        loader: ``full``: the whole graph is one step. ``rows``: batches of target nodes, with all that they see; the
            fewer layers, the less that is. ``neighbor``: batches of target nodes, with a sample of what they see.
            Batches take, again and again, all nodes in a new random order.
        batch_size: Target nodes per step with ``rows`` and ``neighbor``.
        num_neighbors, num_hops, sampler, num_workers: Of ``neighbor``, see ``src.data.neighbors``.
        seed: Of each step's randomness and of the order of the nodes. Both follow from it and the step's number alone,
            so that a run that is resumed goes on as if it had not been interrupted.
    """

    graph: Graph
    labels: Labels | None = None
    """None: the classes are not known, and nothing can be probed."""
    node_names: np.ndarray | None = None
    """What the data calls each node, shape (N,); None: nothing but its place, from 0."""
    options: tuple[str, ...] = ("loader", "batch_size")
    """Settings of the dataset that the numbers depend on."""

    def __init__(
        self,
        name: str,
        loader: str,
        batch_size: int,
        num_neighbors: int,
        num_hops: int,
        sampler: str,
        num_workers: int,
        seed: int,
    ) -> None:
        super().__init__()
        check_choice("dataset.loader", loader, LOADERS)
        check_range("dataset.batch_size", batch_size, 1)
        check_range("dataset.num_neighbors", num_neighbors, -1)
        check_range("dataset.num_workers", num_workers, 0)
        self.dataset = name  # Lightning keeps ``name`` for itself
        self.loader = loader
        self.batch_size = batch_size
        self.num_neighbors = num_neighbors
        self.num_hops = num_hops
        self.sampler = sampler
        self.num_workers = num_workers
        self.seed = seed
        self._ready = False

    @abstractmethod
    def prepare(self) -> None:
        """Set ``graph``, and ``labels`` and ``node_names`` if there are any."""

    @abstractmethod
    def describe_split(self) -> dict[str, Any] | None:
        """Return name, seed, sizes and fingerprint of the split; None without labels."""

    def setup(self, stage: str | None = None) -> None:
        """Prepare ``graph`` and ``labels``, once.

        Raises:
            ValueError: If the graph is empty, not what was published, or can't be trained on as it is.
            FileNotFoundError: If a raw file can't be had.
        """
        if self._ready:
            return
        self.prepare()
        self._ready = True
        split, graph = self.describe_split(), self.graph
        known = "no classes are known, so that nothing is probed"
        if split is not None and self.labels is not None:
            sizes = "/".join(f"{size:,}" for size in split["sizes"])
            known = f"{self.labels.num_classes} classes; {split['name']} split of {sizes} nodes, "
            known += f"fingerprint {split['fingerprint']}"
        log.info(
            "%s: %s nodes, %s edges, %s features, %s",
            self.title,
            *(f"{n:,}" for n in (graph.num_nodes, graph.num_edges, graph.num_features)),
            known,
        )

    @property
    def title(self) -> str:
        """The dataset's name, and what else tells its graph from others."""
        return self.dataset

    @property
    def whole_on_device(self) -> bool:
        """Whether the graph itself moves to the device, and not just samples of it."""
        return self.loader != "neighbor"

    def describe_options(self) -> dict[str, Any]:
        """The settings of the dataset that the numbers depend on."""
        sampled = ("num_neighbors", "num_hops") if self.loader == "neighbor" else ()
        return {name: getattr(self, name) for name in (*self.options, *sampled)}

    def train_dataloader(self) -> Steps:
        return Steps(self)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move the target nodes, and the sample of the graph; the graph itself moves only once."""
        if self.whole_on_device and self.graph.device != device:
            self.graph = self.graph.to(device)
        graph = self.graph if self.whole_on_device else batch.graph.to(device)
        return Batch(graph, None if batch.targets is None else batch.targets.to(device), batch.seed)


class InMemoryDataModule(GraphDataModule):
    """A graph that is loaded, checked, normalised and split anew each time.

    Args:
        counts: Published numbers of nodes, undirected edges, features and classes, which ``setup`` checks.
        split: ``public``, ``random`` or ``per_class``, see ``src.data.splits``.
        split_seed: Seed of a drawn split.
        feature_scaling, feature_storage: See ``src.data.features``.
        largest_component: Keep only the largest connected component, as the authors' loader does on Amazon.
        **shared: The arguments of ``GraphDataModule``.
    """

    options = ("loader", "batch_size", "feature_scaling", "largest_component")

    def __init__(
        self,
        counts: Mapping[str, int],
        split: str,
        split_seed: int,
        feature_scaling: str,
        feature_storage: str,
        largest_component: bool,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.counts = dict(counts)
        self.split = split
        self.split_seed = split_seed
        self.feature_scaling = feature_scaling
        self.feature_storage = feature_storage
        self.largest_component = largest_component

    @abstractmethod
    def load(self) -> Data:
        """Return the graph as it is: ``x`` (N, D), ``edge_index`` (2, E), and ``y`` (N,) and masks if it has them."""

    def prepare(self) -> None:
        data = self.load()
        check_graph(data, self.dataset)
        check_counts(data, self.counts, self.dataset)
        if self.largest_component:
            names = np.arange(data.num_nodes) if self.node_names is None else self.node_names
            data.place = torch.arange(data.num_nodes)
            data = LargestConnectedComponents()(data)
            self.node_names = names[data.place.numpy()]
        features = scale_features(data.x, self.feature_scaling, self.feature_storage)
        if self.loader == "full" and isinstance(features, Tensor) and features.shape[1] >= WIDE:
            features = features.T.contiguous().T
        self.labels = None if data.y is None else make_labels(data, self.split, self.split_seed)
        self.graph = Graph(features, normalised_adjacency(data.edge_index, data.num_nodes))

    @property
    def title(self) -> str:
        return self.dataset + (" (largest component)" if self.largest_component else "")

    def describe_split(self) -> dict[str, Any] | None:
        if self.labels is None:
            return None
        seed = None if self.split == "public" else self.split_seed
        return {"name": self.split, "seed": seed} | self.labels.describe()


class Steps:
    """The steps of training without end, from that on which the trainer has reached.

    Of several processes, each takes its part of a step's nodes, or all where there are too few.
    """

    def __init__(self, datamodule: GraphDataModule) -> None:
        self.datamodule = datamodule

    def __iter__(self) -> Iterator[Batch]:
        trainer, datamodule = self.datamodule.trainer, self.datamodule
        first, rank, ranks = (trainer.global_step, trainer.global_rank, trainer.world_size) if trainer else (0, 0, 1)
        served: Iterable[tuple[Graph, Tensor | None]]
        if datamodule.loader == "full":
            served = itertools.repeat((datamodule.graph, None))
        elif datamodule.loader == "rows":
            served = ((datamodule.graph, nodes) for nodes in self._targets(first, rank, ranks))
        else:
            served = sampled_graphs(
                datamodule.graph,
                self._targets(first, rank, ranks),
                [datamodule.num_neighbors] * datamodule.num_hops,
                datamodule.sampler,
                datamodule.num_workers,
                datamodule.seed,
            )
        for step, (graph, targets) in zip(itertools.count(first), served):
            yield Batch(graph, targets, mix(datamodule.seed, step))

    def _targets(self, first: int, rank: int, ranks: int) -> Iterator[Tensor]:
        """Return batches of nodes from step ``first`` on: those of one random order after another."""
        num_nodes, batch_size = self.datamodule.graph.num_nodes, self.datamodule.batch_size
        passes, skipped = divmod(first, -(-num_nodes // batch_size))
        for number in itertools.count(passes):
            order = torch.Generator().manual_seed(mix(self.datamodule.seed, number))
            for nodes in torch.randperm(num_nodes, generator=order).split(batch_size)[skipped:]:
                yield nodes[rank::ranks] if len(nodes) >= ranks else nodes
            skipped = 0


def mix(seed: int, number: int) -> int:
    """Return a seed that follows from two numbers."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def check_graph(data: Data, name: str) -> None:
    """Raise ValueError if a graph has no nodes or features, or an edge to a node that is not there."""
    if data.x is None or data.x.numel() == 0:
        shape = None if data.x is None else tuple(data.x.shape)
        raise ValueError(f"{name} is empty: its features have shape {shape}, and must have (nodes, features)")
    check_edges(data.edge_index, data.x.shape[0])


def check_counts(data: Data, expected: Mapping[str, int], name: str) -> None:
    """Raise ValueError unless a graph has the numbers of nodes, undirected edges, features and classes published."""
    if not expected:
        return
    source, target = data.edge_index
    pairs = torch.stack([torch.minimum(source, target), torch.maximum(source, target)])[:, source != target]
    found = {
        "nodes": data.x.shape[0],
        "edges": torch.unique(pairs[0] * data.x.shape[0] + pairs[1]).numel(),
        "features": data.x.shape[1],
        "classes": int(data.y.max()) + 1,
    }
    compare_counts(found, expected, name)


def compare_counts(found: Mapping[str, int], expected: Mapping[str, int], name: str) -> None:
    """Raise ValueError unless a graph has the published numbers, by what they count."""
    wrong = [f"{found[key]:,} {key} instead of {count:,}" for key, count in expected.items() if found[key] != count]
    if wrong:
        raise ValueError(f"{name} is not the graph that was published: it has {', '.join(wrong)}")
