"""Neighbours drawn at random on the CPU, as kernels compiled by numba on first use; see ``src.ops.kernels``.

A graph comes as ``row_starts`` (N + 1) and ``columns`` (E), each row with its self-loop, which is never drawn. Random
numbers are hashes of a key, of a node, and of a count, so that no draw depends on another or on the threads.
"""

from __future__ import annotations

import numba
import numpy as np

from src.ops.kernels import OPTIONS, STRIPE

# The generator of Steele, Lea & Flood (2014), splitmix64; of one type, since numba makes floats of mixed integers.
STEP, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BITS_11, BITS_27, BITS_30, BITS_31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)


@numba.njit(inline="always")
def scramble(state):
    """Return 64 bits, each of which depends on each bit of ``state``."""
    state = (state ^ (state >> BITS_30)) * FIRST
    state = (state ^ (state >> BITS_27)) * SECOND
    return state ^ (state >> BITS_31)


@numba.njit(**OPTIONS)
def batch_key(seed, nodes):
    """Return 63 bits that depend on a seed and on all nodes of a batch and their order."""
    key = scramble(np.uint64(seed) + STEP)
    for node in nodes:
        key = scramble((key ^ np.uint64(node)) + STEP)
    return np.int64(key >> np.uint64(1))


@numba.njit(**OPTIONS)
def draw_stripes(row_starts, columns, nodes, key, edge_starts, edges, neighbors, stripe, stripes):
    """Do what ``draw`` does for each of ``stripes`` stripes."""
    for first in range(stripe * STRIPE, len(nodes), stripes * STRIPE):
        last = min(len(nodes), first + STRIPE)
        for i in range(first, last):
            start, place, count = row_starts[nodes[i]], edge_starts[i], edge_starts[i + 1] - edge_starts[i]
            spared = row_starts[nodes[i] + 1] - start - 1 - count
            state = scramble((np.uint64(key) ^ np.uint64(nodes[i])) + STEP)
            for drawn in range(count):  # Floyd's algorithm: each set of neighbours is as likely as any other
                edge = start + spared + drawn
                if spared > 0:
                    state += STEP
                    share = np.float64(scramble(state) >> BITS_11) * 2.0**-53
                    other = start + np.int64(share * (spared + drawn + 1))
                    met = False
                    for k in range(place, place + drawn):
                        met |= edges[k] == other
                    edge = edge if met else other
                edges[place + drawn] = edge
        for i in range(first, last):  # apart from the above, so that many reads of memory are under way at a time
            for k in range(edge_starts[i], edge_starts[i + 1]):
                if columns[edges[k]] == nodes[i]:  # the last entry, which is not drawn from, stands for the loop
                    edges[k] = row_starts[nodes[i] + 1] - 1
                neighbors[k] = columns[edges[k]]


@numba.njit(parallel=True, **OPTIONS)
def draw(row_starts, columns, nodes, key, edge_starts, edges, neighbors, threads):
    """Draw neighbours of each node without replacement: ``edges``, their places in ``columns``, and ``neighbors``.

    Node i gets the places ``edge_starts[i]`` to ``edge_starts[i + 1]``, at most as many as it has neighbours.
    """
    for thread in numba.prange(threads):
        draw_stripes(row_starts, columns, nodes, key, edge_starts, edges, neighbors, thread, threads)


@numba.njit(**OPTIONS)
def relabel(neighbors, marks, count, nodes, labels):
    """Number nodes in the order of their first appearance from ``count`` on, and return how many are new.

    ``marks`` holds the number of each node that has one, and -1 elsewhere. New nodes are written to ``nodes``.
    """
    new = 0
    for k in range(len(neighbors)):
        node = neighbors[k]
        if marks[node] < 0:
            marks[node] = count + new
            nodes[new] = node
            new += 1
        labels[k] = marks[node]
    return new
