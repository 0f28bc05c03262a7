"""Drawing neighbours: each set as likely as any other, whoever draws it; and numbering them."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from src.data.sampler import read_only
from src.ops import sampling

NUM_NODES = 5000


def ring(reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Row starts and columns of a ring in which each node is joined to itself and to ``reach`` nodes on either side."""
    columns = np.sort((np.arange(NUM_NODES)[:, None] + np.arange(-reach, reach + 1)) % NUM_NODES)
    return read_only(np.arange(NUM_NODES + 1) * (2 * reach + 1)), read_only(columns.astype(np.int32).ravel())


def draw(reach: int, fan_out: int, key: int, threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw for all nodes of a ring, and return its columns, the edges and the neighbours; 0 threads: in one stripe."""
    row_starts, columns = ring(reach)
    edge_starts = np.arange(NUM_NODES + 1) * min(fan_out, 2 * reach)
    edges, neighbors = np.empty(edge_starts[-1], np.int64), np.empty(edge_starts[-1], np.int32)
    arguments = row_starts, columns, np.arange(NUM_NODES), key, edge_starts, edges, neighbors
    if threads:
        sampling.draw(*arguments, threads)
    else:
        sampling.draw_stripes(*arguments, 0, 1)
    return columns, edges.reshape(NUM_NODES, -1), neighbors.reshape(NUM_NODES, -1)


@pytest.mark.parametrize("fan_out", range(1, 6))
def test_each_set_of_neighbours_is_as_likely_as_any_other(fan_out: int) -> None:
    _, _, neighbors = draw(3, fan_out, 1, 2)
    offsets = np.sort((neighbors - np.arange(NUM_NODES)[:, None] + 3) % NUM_NODES)
    sets, counts = np.unique(offsets, axis=0, return_counts=True)
    assert {tuple(s) for s in sets.tolist()} <= set(combinations([0, 1, 2, 4, 5, 6], fan_out))
    assert len(counts) == comb(6, fan_out)
    assert chisquare(counts).pvalue > 1e-4


def test_neighbours_of_a_hub_are_drawn_evenly_over_batches() -> None:
    row_starts, columns = read_only(np.array([0, 301])), read_only(np.arange(301, dtype=np.int32))
    edges, neighbors = np.empty(20, np.int64), np.empty(20, np.int32)
    counts = np.zeros(301, int)
    for batch in range(3000):
        key = sampling.batch_key(0, np.array([batch, 0]))
        arguments = row_starts, columns, np.array([0]), key, np.array([0, 20]), edges, neighbors
        sampling.draw_stripes(*arguments, 0, 1)
        assert len(np.unique(neighbors)) == 20
        counts[neighbors] += 1
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-4


@pytest.mark.parametrize("fan_out", [6, 100])
def test_no_more_neighbours_than_wanted_are_all_drawn_once(fan_out: int) -> None:
    columns, edges, neighbors = draw(3, fan_out, 1, 2)
    expected = (np.arange(NUM_NODES)[:, None] + [-3, -2, -1, 1, 2, 3]) % NUM_NODES
    np.testing.assert_array_equal(np.sort(neighbors), np.sort(expected))
    np.testing.assert_array_equal(columns[edges], neighbors)
    np.testing.assert_array_equal(edges // 7, np.repeat(np.arange(NUM_NODES)[:, None], 6, axis=1))


def test_a_draw_depends_on_the_key_and_not_on_the_threads() -> None:
    _, serial, _ = draw(6, 4, 1, 0)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(draw(6, 4, 1, threads)[1], serial)
    assert (draw(6, 4, 2, 2)[1] != serial).any(axis=1).mean() > 0.99  # two in 990 ordered draws are the same


def test_a_key_depends_on_the_seed_and_on_the_order_of_the_nodes() -> None:
    batches = [[0], [1], [0, 1], [1, 0], [0, 1, 2]]
    keys = {sampling.batch_key(seed, np.array(nodes)) for seed in range(3) for nodes in batches}
    assert len(keys) == 15
    assert all(0 <= key < 2**63 for key in keys)


@given(st.lists(st.integers(0, 9), max_size=20))
@settings(deadline=None)
def test_nodes_are_numbered_in_the_order_of_their_first_appearance(neighbors: list[int]) -> None:
    numbers = {3: 0, 7: 1}
    marks = np.full(10, -1, np.int32)
    marks[list(numbers)] = [0, 1]
    nodes, labels = np.empty(len(neighbors), np.int64), np.empty(len(neighbors), np.int64)
    new = sampling.relabel(np.array(neighbors, np.int32), marks, 2, nodes, labels)
    expected = [numbers.setdefault(node, len(numbers)) for node in neighbors]
    assert labels.tolist() == expected
    assert [3, 7, *nodes[:new].tolist()] == list(numbers)
    assert np.flatnonzero(marks >= 0).tolist() == sorted(numbers)
