"""Kernels for sparse matrices on the CPU, compiled by numba on first use and kept in ``__pycache__``.

Matrices come as CSR: ``starts`` (rows + 1), ``columns`` and ``values`` (E). Each kernel divides its rows among
``threads`` in stripes, so that sums come out the same for the same number of threads. Outputs are given, not made.
``src.ops.sparse`` and ``src.ops.groups`` call these, and their plain twins stand in the tests.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

STRIPE = 16
"""Rows that a thread takes at a time."""

# Products and sums may be contracted and reordered; nothing else that fast-math allows.
OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy", "cache": True}


@numba.njit(inline="always")
def add_rows(start, end, columns, values, dense, out):
    """out += sum of values[e] * dense[columns[e]]: six rows at a time, so that ``out`` is read a sixth as often."""
    width, e = len(out), start
    while e + 6 <= end:
        a, b, c, d, f, g = values[e], values[e + 1], values[e + 2], values[e + 3], values[e + 4], values[e + 5]
        row_a, row_b, row_c = dense[columns[e]], dense[columns[e + 1]], dense[columns[e + 2]]
        row_d, row_f, row_g = dense[columns[e + 3]], dense[columns[e + 4]], dense[columns[e + 5]]
        for k in range(width):
            out[k] += a * row_a[k] + b * row_b[k] + c * row_c[k] + d * row_d[k] + f * row_f[k] + g * row_g[k]
        e += 6
    while e + 3 <= end:
        a, b, c = values[e], values[e + 1], values[e + 2]
        row_a, row_b, row_c = dense[columns[e]], dense[columns[e + 1]], dense[columns[e + 2]]
        for k in range(width):
            out[k] += a * row_a[k] + b * row_b[k] + c * row_c[k]
        e += 3
    while e < end:
        a, row_a = values[e], dense[columns[e]]
        for k in range(width):
            out[k] += a * row_a[k]
        e += 1


@numba.njit(parallel=True, **OPTIONS)
def select_columns(starts, columns, values, kept, ends, kept_columns, kept_values, threads):
    """Copy the entries of columns that are kept to the front of their row, which then ends at ``ends``.

    Indices are unsigned, since numba asks each signed one whether it counts from the end, which took as long again.
    """
    num_rows = len(starts) - 1
    for thread in numba.prange(threads):
        for first in range(thread * STRIPE, num_rows, threads * STRIPE):
            for i in range(first, min(num_rows, first + STRIPE)):
                place = np.uintp(starts[i])
                for e in range(np.uintp(starts[i]), np.uintp(starts[i + 1])):
                    column = columns[e]
                    kept_columns[place], kept_values[place] = column, values[e]
                    place += np.uintp(kept[np.uintp(column)])
                ends[i] = place


@numba.njit(parallel=True, **OPTIONS)
def multiply(starts, ends, columns, values, dense, out, threads):
    """out = S dense, where row i is ``starts[i]`` to ``ends[i]``."""
    num_rows = len(ends)
    for thread in numba.prange(threads):
        for first in range(thread * STRIPE, num_rows, threads * STRIPE):
            for i in range(first, min(num_rows, first + STRIPE)):
                out[i] = 0
                add_rows(starts[i], ends[i], columns, values, dense, out[i])


@numba.njit(parallel=True, **OPTIONS)
def multiply_blocks(starts, columns, values, kept, dense, out, threads):
    """out = diag(kept) S dense, with S as blocks of columns side by side, so that a block's rows stay in the cache.

    An empty ``kept`` keeps all rows. ``starts`` has a row for each block: S[i, block] is ``starts[block, i]`` to
    ``starts[block, i + 1]``.
    """
    num_rows = len(out)
    for thread in numba.prange(threads):
        for block in range(len(starts)):
            for first in range(thread * STRIPE, num_rows, threads * STRIPE):
                for i in range(first, min(num_rows, first + STRIPE)):
                    if block == 0:
                        out[i] = 0
                    if len(kept) == 0 or kept[i]:
                        add_rows(starts[block, i], starts[block, i + 1], columns, values, dense, out[i])


@numba.njit(**OPTIONS)
def transpose(starts, columns, values, block_rows, new_starts, new_columns, new_values):
    """new = S' as ``multiply_blocks`` takes it, each block ``block_rows`` rows of S; ``new_starts`` comes as zeros."""
    num_rows, num_blocks, num_columns = len(starts) - 1, new_starts.shape[0], new_starts.shape[1] - 1
    for block in range(num_blocks):
        first, last = block * block_rows, min(num_rows, (block + 1) * block_rows)
        counts = new_starts[block]
        for e in range(starts[first], starts[last]):
            counts[columns[e] + 1] += 1
        counts[0] = starts[first]
        for column in range(num_columns):
            counts[column + 1] += counts[column]
        for i in range(first, last):
            for e in range(starts[i], starts[i + 1]):
                place = counts[columns[e]]
                new_columns[place], new_values[place] = i, values[e]
                counts[columns[e]] += 1
        for column in range(num_columns, 0, -1):  # each start has become that of the next column
            counts[column] = counts[column - 1]
        counts[0] = starts[first]


@numba.njit(inline="always")
def activate(row, below, vector, above):
    """Return PReLU(row) @ vector, and set above = whether row > 0."""
    total = row.dtype.type(0)
    for k in range(len(row)):
        positive = row[k] > 0
        above[k] = positive
        total += vector[k] * (row[k] if positive else below * row[k])
    return total


@numba.njit(parallel=True, **OPTIONS)
def discriminate(starts, columns, values, order, dense, bias, slope, vector, above, logits, threads):
    """logits = PReLU(S dense + bias) @ vector, and above = whether S dense + bias > 0; no activation is kept.

    With an ``order`` that is not empty, the same of S dense[order] stands below.
    """
    num_rows, width, below = len(starts) - 1, len(vector), slope[0]
    for thread in numba.prange(threads):
        row, places = np.empty(width, dense.dtype), np.empty(0, columns.dtype)
        for first in range(thread * STRIPE, num_rows, threads * STRIPE):
            for i in range(first, min(num_rows, first + STRIPE)):
                start, end = starts[i], starts[i + 1]
                row[:] = bias
                add_rows(start, end, columns, values, dense, row)
                logits[i] = activate(row, below, vector, above[i])
                if len(order) == 0:
                    continue
                if len(places) < end - start:
                    places = np.empty(end - start, columns.dtype)
                for e in range(start, end):
                    places[e - start] = order[columns[e]]
                row[:] = bias
                add_rows(0, end - start, places, values[start:end], dense, row)
                logits[num_rows + i] = activate(row, below, vector, above[num_rows + i])


@numba.njit(inline="always")
def add_masks(start, end, columns, values, scale, masks, out):
    """out += sum of v[e] * masks[columns[e]] and return the sum of v[e], where v[e] = values[e] * scale[columns[e]]."""
    width, e, kind = len(out), start, out.dtype.type
    total = kind(0)
    while e + 4 <= end:
        i, j, k, l = columns[e], columns[e + 1], columns[e + 2], columns[e + 3]  # noqa: E741
        a, b, c, d = values[e] * scale[i], values[e + 1] * scale[j], values[e + 2] * scale[k], values[e + 3] * scale[l]
        row_a, row_b, row_c, row_d = masks[i], masks[j], masks[k], masks[l]
        for n in range(width):
            out[n] += a * kind(row_a[n]) + b * kind(row_b[n]) + c * kind(row_c[n]) + d * kind(row_d[n])
        total += a + b + c + d
        e += 4
    while e < end:
        a, row_a = values[e] * scale[columns[e]], masks[columns[e]]
        for n in range(width):
            out[n] += a * kind(row_a[n])
        total += a
        e += 1
    return total


@numba.njit(parallel=True, **OPTIONS)
def discriminate_backward(
    starts,
    columns,
    values,
    inverse,
    dense,
    slope,
    vector,
    above,
    gradient,
    dense_gradient,
    weighted,
    below,
    kept,
    threads,
):
    """Gradients of ``discriminate``, from S', the inverse of ``order``, and the gradient of the logits.

    With u = S' (gradient * PReLU'): dense_gradient = u * vector. Summed over rows for each thread: weighted, of
    u * dense; below, of S' (gradient * (1 - above)) * dense; kept, of gradient * above.
    """
    num_rows, width, kind = len(dense), len(vector), dense.dtype.type
    low, rest = slope[0], kind(1) - slope[0]
    second = len(gradient) // 2
    second_gradient, second_above = gradient[second:], above[second:]
    for thread in numba.prange(threads):
        row = np.empty(width, dense.dtype)
        weighted_sum, below_sum, kept_sum = weighted[thread], below[thread], kept[thread]
        for first in range(thread * STRIPE, num_rows, threads * STRIPE):
            for j in range(first, min(num_rows, first + STRIPE)):
                row[:] = 0
                total = add_masks(starts[j], starts[j + 1], columns, values, gradient, above, row)
                if len(inverse) > 0:
                    i = inverse[j]
                    total += add_masks(starts[i], starts[i + 1], columns, values, second_gradient, second_above, row)
                dense_j, gradient_j = dense[j], dense_gradient[j]
                for k in range(width):
                    u = low * total + rest * row[k]
                    gradient_j[k] = vector[k] * u
                    weighted_sum[k] += dense_j[k] * u
                    below_sum[k] += dense_j[k] * (total - row[k])
        for first in range(thread * STRIPE, len(gradient), threads * STRIPE):
            for i in range(first, min(len(gradient), first + STRIPE)):
                above_i, scale = above[i], gradient[i]
                for k in range(width):
                    kept_sum[k] += scale * kind(above_i[k])


@numba.njit(parallel=True, **OPTIONS)
def score(x, bias, slope, vector, logits, threads):
    """logits = PReLU(x + bias) @ vector."""
    num_rows, width, below = len(x), len(vector), slope[0]
    for thread in numba.prange(threads):
        for i in range(thread, num_rows, threads):
            row, total = x[i], x.dtype.type(0)
            for k in range(width):
                h = row[k] + bias[k]
                total += vector[k] * (h if h > 0 else below * h)
            logits[i] = total


@numba.njit(parallel=True, **OPTIONS)
def score_backward(x, bias, slope, vector, gradient, x_gradient, derivative, weighted, negative, threads):
    """Gradients of ``score`` from that of the logits. With D for the derivative of PReLU and h = x + bias,

    x_gradient = gradient * D * vector; and summed over rows for each thread: derivative, of gradient * D; weighted, of
    gradient * PReLU(h); negative, of gradient * min(h, 0).
    """
    num_rows, width, below, kind = len(x), len(vector), slope[0], x.dtype.type
    for thread in numba.prange(threads):
        derivative_sum, weighted_sum, negative_sum = derivative[thread], weighted[thread], negative[thread]
        for i in range(thread, num_rows, threads):
            row, out, scale = x[i], x_gradient[i], gradient[i]
            for k in range(width):
                h = row[k] + bias[k]
                scaled = scale * (kind(1) if h > 0 else below)
                out[k] = scaled * vector[k]
                derivative_sum[k] += scaled
                weighted_sum[k] += scaled * h
                negative_sum[k] += scale * (h if h < 0 else kind(0))


@numba.njit(**OPTIONS)
def multiply_sparse(
    starts, columns, values, other_starts, other_columns, other_values, kept, place, out_starts, out_columns, out_values
):
    """out = S other diag(kept), each entry once; return their number. ``place`` is scratch, -1 for each column."""
    count = 0
    for i in range(len(starts) - 1):
        first = count
        for e in range(starts[i], starts[i + 1]):
            j = columns[e]
            for f in range(other_starts[j], other_starts[j + 1]):
                column = other_columns[f]
                if len(kept) > 0 and not kept[column]:
                    continue
                if place[column] < first:
                    place[column] = count
                    out_columns[count], out_values[count] = column, values[e] * other_values[f]
                    count += 1
                else:
                    out_values[place[column]] += values[e] * other_values[f]
        out_starts[i + 1] = count
    return count
