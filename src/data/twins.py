"""Synthetic twins of graphs too large for memory: the counts of the real ones, made in pieces of any number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from src.data.mapped import MappedDataModule
from src.data.store import PARTS, Source
from src.ops.checks import check_range

PIECE_EDGES = 2**21

PIECE_NUMBERS = 2**23
"""Numbers in a piece of the features."""

EDGES, FEATURES, CENTRES = range(3)
"""Streams of random numbers. Each piece has a generator of its own, so that it is the same whenever it is made."""


def twin_source(
    num_nodes: int,
    num_edges: int,
    num_features: int,
    num_classes: int,
    homophily: float,
    degree_exponent: float,
    signal: float,
    split_sizes: Mapping[str, int],
    scale: float,
    graph_seed: int,
) -> Source:
    """Describe a degree-corrected block model, Karrer & Newman (2011), whose every number is drawn in closed form.

    All classes are of the same size, but for one node. The nodes of a class have ranks 0, 1, ...; the expected degree
    falls with the rank as (rank + 1)^(-1 / (degree_exponent - 1)), so that degrees follow a power law. Both ends of an
    edge are drawn in proportion to it, by the inverse of its integral.

    Args:
        num_nodes, num_edges: Sizes at scale 1, edges undirected and different. The graph has ``num_edges`` by
            expectation: more are drawn, as pairs drawn twice are merged.
        num_features, num_classes: Sizes at any scale.
        homophily: Share of the edges drawn within a class, in [0, 1].
        degree_exponent: Of the power law, above 2; the smaller, the larger the hubs.
        signal: Expected length of a class's mean feature vector, about which features are normal with variance 1.
        split_sizes: Number of ``train``, ``validation`` and ``test`` nodes at scale 1; the others have no class.
        scale: Share of the nodes, edges and split to make, in (0, 1].
        graph_seed: Of all that is random.

    Raises:
        ValueError: If a setting is out of range, or there are more edges than the graph has room for.
    """
    check_range("dataset.num_classes", num_classes, 2)
    if not 0 <= homophily <= 1:
        raise ValueError(f"dataset.homophily is {homophily}; it must be in [0, 1]")
    if degree_exponent <= 2:
        raise ValueError(f"dataset.degree_exponent is {degree_exponent}; it must be above 2")
    if not 0 < scale <= 1:
        raise ValueError(f"dataset.scale is {scale}; it must be above 0, and at most 1")
    nodes, edges = round(scale * num_nodes), round(scale * num_edges)
    sizes = [int(scale * split_sizes[part]) for part in PARTS]
    if nodes < 2 * num_classes or sum(sizes) > nodes:
        raise ValueError(
            f"dataset.num_nodes times dataset.scale is {nodes:,}; it must be at least twice the {num_classes} classes, "
            f"and as many as the split has ({sum(sizes):,})"
        )
    ranks = Ranks(nodes, num_classes, degree_exponent)
    drawn = edges_to_draw(edges, ranks, homophily)

    def piece_sizes(total: int, size: int) -> Iterator[tuple[int, int]]:
        return enumerate(min(size, total - start) for start in range(0, total, size))

    def generator(stream: int, piece: int) -> np.random.Generator:
        return np.random.default_rng((graph_seed, stream, piece))

    def make_edges() -> Iterator[np.ndarray]:
        for piece, size in piece_sizes(drawn, PIECE_EDGES):
            random = generator(EDGES, piece)
            source_class = random.integers(num_classes, size=size)
            other_class = (source_class + random.integers(1, num_classes, size=size)) % num_classes
            target_class = np.where(random.random(size) < homophily, source_class, other_class)
            yield np.stack([ranks.draw(source_class, random), ranks.draw(target_class, random)])

    def make_features() -> Iterator[np.ndarray]:
        centres = generator(CENTRES, 0).standard_normal((num_classes, num_features), np.float32)
        centres *= signal / np.sqrt(num_features)
        first = 0
        for piece, size in piece_sizes(nodes, max(1, PIECE_NUMBERS // num_features)):
            features = generator(FEATURES, piece).standard_normal((size, num_features), np.float32)
            features += centres[ranks.classes(np.arange(first, first + size))]
            first += size
            yield features

    labelled = ranks.spread(np.arange(sum(sizes)))
    classes = np.full(nodes, -1, np.int16)
    classes[labelled] = ranks.classes(labelled)
    split = dict(zip(PARTS, map(np.sort, np.split(labelled, np.cumsum(sizes)[:-1])), strict=True))
    return Source(nodes, drawn, num_features, make_edges, make_features, classes, split)


class Ranks:
    """Which node is the how manieth of which class, by formulas in place of tables of all nodes.

    Node numbers are the places rank * num_classes + class, scrambled by a bijection, so that hubs are anywhere.

    Args:
        num_nodes, num_classes: N, C.
        degree_exponent: Above 2.
    """

    def __init__(self, num_nodes: int, num_classes: int, degree_exponent: float) -> None:
        self.num_nodes, self.num_classes = num_nodes, num_classes
        self.exponent = (degree_exponent - 1) / (degree_exponent - 2)
        self.factor = next_coprime(int(0.618 * num_nodes), num_nodes)
        self.inverse = pow(self.factor, -1, num_nodes)
        self.spacing = next_coprime(int(0.382 * (num_nodes // num_classes)), num_nodes // num_classes)

    def draw(self, classes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return a node of each given class, in proportion to expected degrees, int64."""
        sizes = self.num_nodes // self.num_classes + (classes < self.num_nodes % self.num_classes)
        # The inverse of the integral of r^(1 / exponent - 1), at a uniform number u: u^exponent, where -log u is
        # exponentially distributed.
        share = np.exp(-self.exponent * random.standard_exponential(len(classes)))
        return self._node((sizes * share).astype(np.int64) * self.num_classes + classes)

    def classes(self, nodes: np.ndarray) -> np.ndarray:
        """Return the class of each node, int64."""
        return nodes * self.inverse % self.num_nodes % self.num_classes

    def spread(self, positions: np.ndarray) -> np.ndarray:
        """Return the nodes of an order in which classes take turns, with no regard to the degree.

        Args:
            positions: In [0, N), int64.
        """
        size = self.num_nodes // self.num_classes
        rank, own_class = np.divmod(positions, self.num_classes)
        start = own_class * max(
            1, size // self.num_classes
        )  # so that hubs of different classes come at different times
        shuffled = np.where(rank < size, (rank + start) * self.spacing % size, rank)
        return self._node(shuffled * self.num_classes + own_class)

    def _node(self, places: np.ndarray) -> np.ndarray:
        return places * self.factor % self.num_nodes

    def expected_pairs(self, drawn: float, homophily: float) -> float:
        """Return how many different pairs of nodes are joined when ``drawn`` edges are drawn, to be expected.

        A pair with probability p is joined with 1 - exp(-drawn p). Ranks with about the same probability, the first few
        apart, are taken together.
        """
        num_classes, size = self.num_classes, self.num_nodes / self.num_classes
        bounds = np.unique(np.append(0, np.geomspace(1, size, 400).round()))
        counts = np.diff(bounds)
        share = np.diff((bounds / bounds[-1]) ** (1 / self.exponent)) / counts  # of a rank among those of its class
        products, pairs = np.outer(share, share), np.outer(counts, counts)
        within = -np.expm1(-2 * drawn * homophily / num_classes * products)
        across = -np.expm1(-2 * drawn * (1 - homophily) / (num_classes * (num_classes - 1)) * products)
        different = (pairs * within).sum() - counts @ within.diagonal()  # without loops
        return num_classes / 2 * (different + (num_classes - 1) * (pairs * across).sum())


def edges_to_draw(num_edges: int, ranks: Ranks, homophily: float) -> int:
    """Return how many edges to draw so that ``num_edges`` different ones are to be expected."""
    high = 100 * num_edges
    room = ranks.expected_pairs(high, homophily)
    if room < num_edges:
        raise ValueError(
            f"dataset.num_edges times dataset.scale is {num_edges:,}; {ranks.num_nodes:,} nodes with these degrees "
            f"have room for {int(room):,}: set fewer edges, or a larger dataset.degree_exponent"
        )
    return round(brentq(lambda drawn: ranks.expected_pairs(drawn, homophily) - num_edges, 0, high, xtol=0.5))


def next_coprime(number: int, other: int) -> int:
    """Return the first number from ``number`` on, at least 1, that has no divisor in common with ``other``."""
    number = max(1, number)
    while gcd(number, other) != 1:
        number += 1
    return number


class TwinDataModule(MappedDataModule):
    """A synthetic twin of a large graph, kept in ``<data_dir>/<name>`` under a name of its settings.

    Args:
        settings: The arguments of ``twin_source``.
        **shared: The arguments of ``MappedDataModule``.
    """

    def __init__(
        self,
        num_nodes: int,
        num_edges: int,
        num_features: int,
        num_classes: int,
        homophily: float,
        degree_exponent: float,
        signal: float,
        split_sizes: Mapping[str, int],
        scale: float,
        graph_seed: int,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.settings: dict[str, Any] = {
            "num_nodes": num_nodes,
            "num_edges": num_edges,
            "num_features": num_features,
            "num_classes": num_classes,
            "homophily": homophily,
            "degree_exponent": degree_exponent,
            "signal": signal,
            "split_sizes": dict(split_sizes),
            "scale": scale,
            "graph_seed": graph_seed,
        }

    def describe_options(self) -> dict[str, Any]:
        return super().describe_options() | {"scale": self.settings["scale"]}

    def source(self) -> Source:
        return twin_source(**self.settings)

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(json.dumps([self.settings, self.feature_dtype], sort_keys=True).encode()).hexdigest()
        return self.data_dir / self.dataset / f"store-{digest[:16]}"

    @property
    def title(self) -> str:
        return f"{self.dataset} at scale {self.settings['scale']:g}"
