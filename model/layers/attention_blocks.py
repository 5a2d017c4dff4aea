"""Rows of queries beside one block of the cache: dots with its keys, and what they take of its values. Compiled by
numba; knows no sequence and no scores.
Rows are taken four and eight at a time, so that each load serves them all; the sums of a row are the same whatever
stands beside it. These functions are the inner half of `attention_kernels` (which names the axes), and are compiled
into those that call them: a call costs as much as the dots of twenty keys.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from typing import Any

import numba
import numpy as np

from model.layers.compiler_cache import tell_versions_apart
from model.layers.vectors import LANES, fma, in_all_lanes, load, store, widen, zeros

tell_versions_apart()  # before the first function is made that is kept

# "contract" alone: a*b+c may become one fused operation, but no sum may be reordered.
INNER: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
    "forceinline": True,
}


@numba.njit(**INNER)
def _store_pair(out, o, left, right):
    store(out, o, left)
    store(out, o + LANES, right)


@numba.njit(**INNER)
def _load_four(a, i):
    return load(a, i), load(a, i + LANES), load(a, i + 2 * LANES), load(a, i + 3 * LANES)


@numba.njit(**INNER)
def _store_four(out, o, v0, v1, v2, v3):
    _store_pair(out, o, v0, v1)
    _store_pair(out, o + 2 * LANES, v2, v3)


@numba.njit(**INNER)
def dots(q, i, keys, tile, dim, size, out, o):
    """out[o + b] = sum over d of q[i + d] * keys[d, b], added in the order of d; keys [D, B] at `tile`."""
    b = 0
    while b + 2 * LANES <= size:  # two sums at a time: one would wait for itself
        sum0, sum1 = zeros(), zeros()
        for d in range(dim):
            at, number = tile + d * size + b, in_all_lanes(q, i + d)
            sum0 = fma(number, load(keys, at), sum0)
            sum1 = fma(number, load(keys, at + LANES), sum1)
        store(out, o + b, sum0)
        store(out, o + b + LANES, sum1)
        b += 2 * LANES
    while b + LANES <= size:
        total = zeros()
        for d in range(dim):
            total = fma(in_all_lanes(q, i + d), load(keys, tile + d * size + b), total)
        store(out, o + b, total)
        b += LANES
    for rest in range(b, size):
        single = np.float32(0)
        for d in range(dim):
            single = fma(q[i + d], widen(keys[tile + d * size + rest]), single)
        out[o + rest] = single


@numba.njit(**INNER)
def _dots_of_four(q, i0, i1, i2, i3, keys, tile, dim, size, out, o, stride):
    """`dots` of four queries, which share each load of the keys; their sums go to o, o + stride, ... of out."""
    b = 0
    while b + 2 * LANES <= size:
        a0, b0, c0, d0 = zeros(), zeros(), zeros(), zeros()
        a1, b1, c1, d1 = zeros(), zeros(), zeros(), zeros()
        at = tile + b
        for d in range(dim):
            left, right = load(keys, at), load(keys, at + LANES)
            number = in_all_lanes(q, i0 + d)
            a0, a1 = fma(number, left, a0), fma(number, right, a1)
            number = in_all_lanes(q, i1 + d)
            b0, b1 = fma(number, left, b0), fma(number, right, b1)
            number = in_all_lanes(q, i2 + d)
            c0, c1 = fma(number, left, c0), fma(number, right, c1)
            number = in_all_lanes(q, i3 + d)
            d0, d1 = fma(number, left, d0), fma(number, right, d1)
            at += size
        at = o + b
        _store_pair(out, at, a0, a1)
        _store_pair(out, at + stride, b0, b1)
        _store_pair(out, at + 2 * stride, c0, c1)
        _store_pair(out, at + 3 * stride, d0, d1)
        b += 2 * LANES
    if b < size:  # narrow blocks are rare
        for n, i in enumerate((i0, i1, i2, i3)):
            dots(q, i, keys, tile, dim, size, out, o + n * stride)


@numba.njit(**INNER)
def _dots_of_eight(q, at, r, keys, tile, dim, size, out, o, stride):
    """`dots` of the queries at[r] to at[r + 7], a block of whole pairs of vectors: none is left over."""
    i0, i1, i2, i3 = at[r], at[r + 1], at[r + 2], at[r + 3]
    i4, i5, i6, i7 = at[r + 4], at[r + 5], at[r + 6], at[r + 7]
    for b in range(0, size, 2 * LANES):
        a0, b0, c0, d0, e0, f0, g0, h0 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
        a1, b1, c1, d1, e1, f1, g1, h1 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
        k = tile + b
        for d in range(dim):
            left, right = load(keys, k), load(keys, k + LANES)
            number = in_all_lanes(q, i0 + d)
            a0, a1 = fma(number, left, a0), fma(number, right, a1)
            number = in_all_lanes(q, i1 + d)
            b0, b1 = fma(number, left, b0), fma(number, right, b1)
            number = in_all_lanes(q, i2 + d)
            c0, c1 = fma(number, left, c0), fma(number, right, c1)
            number = in_all_lanes(q, i3 + d)
            d0, d1 = fma(number, left, d0), fma(number, right, d1)
            number = in_all_lanes(q, i4 + d)
            e0, e1 = fma(number, left, e0), fma(number, right, e1)
            number = in_all_lanes(q, i5 + d)
            f0, f1 = fma(number, left, f0), fma(number, right, f1)
            number = in_all_lanes(q, i6 + d)
            g0, g1 = fma(number, left, g0), fma(number, right, g1)
            number = in_all_lanes(q, i7 + d)
            h0, h1 = fma(number, left, h0), fma(number, right, h1)
            k += size
        p = o + b
        _store_pair(out, p, a0, a1)
        _store_pair(out, p + stride, b0, b1)
        _store_pair(out, p + 2 * stride, c0, c1)
        _store_pair(out, p + 3 * stride, d0, d1)
        _store_pair(out, p + 4 * stride, e0, e1)
        _store_pair(out, p + 5 * stride, f0, f1)
        _store_pair(out, p + 6 * stride, g0, g1)
        _store_pair(out, p + 7 * stride, h0, h1)


@numba.njit(**INNER)
def mix(weights, w, num_keys, values, tile, dim, out, o):
    """out[o + d] += sum over b of weights[w + b] * values[b, d], added in the order of b; values [b, D] at `tile`."""
    d = 0
    while d + 4 * LANES <= dim:
        sum0, sum1 = load(out, o + d), load(out, o + d + LANES)
        sum2, sum3 = load(out, o + d + 2 * LANES), load(out, o + d + 3 * LANES)
        for b in range(num_keys):
            weight, at = in_all_lanes(weights, w + b), tile + b * dim + d
            sum0 = fma(weight, load(values, at), sum0)
            sum1 = fma(weight, load(values, at + LANES), sum1)
            sum2 = fma(weight, load(values, at + 2 * LANES), sum2)
            sum3 = fma(weight, load(values, at + 3 * LANES), sum3)
        store(out, o + d, sum0)
        store(out, o + d + LANES, sum1)
        store(out, o + d + 2 * LANES, sum2)
        store(out, o + d + 3 * LANES, sum3)
        d += 4 * LANES
    while d + 2 * LANES <= dim:
        sum0, sum1 = load(out, o + d), load(out, o + d + LANES)
        for b in range(num_keys):
            weight, at = in_all_lanes(weights, w + b), tile + b * dim + d
            sum0 = fma(weight, load(values, at), sum0)
            sum1 = fma(weight, load(values, at + LANES), sum1)
        store(out, o + d, sum0)
        store(out, o + d + LANES, sum1)
        d += 2 * LANES
    while d + LANES <= dim:
        total = load(out, o + d)
        for b in range(num_keys):
            total = fma(in_all_lanes(weights, w + b), load(values, tile + b * dim + d), total)
        store(out, o + d, total)
        d += LANES
    for rest in range(d, dim):
        single = out[o + rest]
        for b in range(num_keys):
            single = fma(weights[w + b], widen(values[tile + b * dim + rest]), single)
        out[o + rest] = single


@numba.njit(**INNER)
def _mix_four_by_four(weights, w, stride, num_keys, values, tile, dim, out, o):
    """`_mix_of_four` of four vectors of dimensions, which begin at values[tile] and out[o]."""
    o1, o2, o3 = o + dim, o + 2 * dim, o + 3 * dim
    a0, a1, a2, a3 = _load_four(out, o)
    b0, b1, b2, b3 = _load_four(out, o1)
    c0, c1, c2, c3 = _load_four(out, o2)
    d0, d1, d2, d3 = _load_four(out, o3)
    at = tile
    for each in range(w, w + num_keys):
        v0, v1, v2, v3 = _load_four(values, at)
        weight = in_all_lanes(weights, each)
        a0, a1, a2, a3 = fma(weight, v0, a0), fma(weight, v1, a1), fma(weight, v2, a2), fma(weight, v3, a3)
        weight = in_all_lanes(weights, each + stride)
        b0, b1, b2, b3 = fma(weight, v0, b0), fma(weight, v1, b1), fma(weight, v2, b2), fma(weight, v3, b3)
        weight = in_all_lanes(weights, each + 2 * stride)
        c0, c1, c2, c3 = fma(weight, v0, c0), fma(weight, v1, c1), fma(weight, v2, c2), fma(weight, v3, c3)
        weight = in_all_lanes(weights, each + 3 * stride)
        d0, d1, d2, d3 = fma(weight, v0, d0), fma(weight, v1, d1), fma(weight, v2, d2), fma(weight, v3, d3)
        at += dim
    _store_four(out, o, a0, a1, a2, a3)
    _store_four(out, o1, b0, b1, b2, b3)
    _store_four(out, o2, c0, c1, c2, c3)
    _store_four(out, o3, d0, d1, d2, d3)


@numba.njit(**INNER)
def _mix_of_four(weights, w, stride, num_keys, values, tile, dim, out, o):
    """`mix` for four rows of weights, from w, w + stride, ... on, into rows of out that follow one another."""
    d = 0
    while d + 4 * LANES <= dim:
        _mix_four_by_four(weights, w, stride, num_keys, values, tile + d, dim, out, o + d)
        d += 4 * LANES
    while d + 2 * LANES <= dim:
        o0, o1, o2, o3 = o + d, o + d + dim, o + d + 2 * dim, o + d + 3 * dim
        a0, b0, c0, d0 = load(out, o0), load(out, o1), load(out, o2), load(out, o3)
        a1, b1 = load(out, o0 + LANES), load(out, o1 + LANES)
        c1, d1 = load(out, o2 + LANES), load(out, o3 + LANES)
        at = tile + d
        for each in range(w, w + num_keys):
            left, right = load(values, at), load(values, at + LANES)
            weight = in_all_lanes(weights, each)
            a0, a1 = fma(weight, left, a0), fma(weight, right, a1)
            weight = in_all_lanes(weights, each + stride)
            b0, b1 = fma(weight, left, b0), fma(weight, right, b1)
            weight = in_all_lanes(weights, each + 2 * stride)
            c0, c1 = fma(weight, left, c0), fma(weight, right, c1)
            weight = in_all_lanes(weights, each + 3 * stride)
            d0, d1 = fma(weight, left, d0), fma(weight, right, d1)
            at += dim
        _store_pair(out, o0, a0, a1)
        _store_pair(out, o1, b0, b1)
        _store_pair(out, o2, c0, c1)
        _store_pair(out, o3, d0, d1)
        d += 2 * LANES
    for r in range(4):
        for rest in range(d, dim):
            single = out[o + r * dim + rest]
            for b in range(num_keys):
                single = fma(weights[w + r * stride + b], widen(values[tile + b * dim + rest]), single)
            out[o + r * dim + rest] = single


@numba.njit(**INNER)
def score_tile(q, at, lo, hi, keys, tile, dim, size, scores, stride, start):
    """Dots of the queries that begin at q[at[r]] with a block of keys, into row r of scores [len(at), stride] from
    column `start` on.

    Row r sees columns lo[r] <= k < hi[r]; neither falls from one row to the next.
    """
    r, end = 0, start + size
    while r < len(at):
        o, num = r * stride + start, 1
        if r + 8 <= len(at) and size % (2 * LANES) == 0:
            num = 8
        elif r + 4 <= len(at):
            num = 4
        if start < hi[r + num - 1] and end > lo[r]:  # one of them may see it
            if num == 8:
                _dots_of_eight(q, at, r, keys, tile, dim, size, scores, o, stride)
            elif num == 4:
                _dots_of_four(q, at[r], at[r + 1], at[r + 2], at[r + 3], keys, tile, dim, size, scores, o, stride)
            else:
                dots(q, at[r], keys, tile, dim, size, scores, o)
        r += num


@numba.njit(**INNER)
def _mix_columns(weights, r, stride, start, first, last, values, tile, dim, out):
    """Add to row r of out what it takes from columns first <= k < last of a block of values that begins at `start`."""
    if first < last:
        place = tile + (first - start) * dim
        mix(weights, r * stride + first, last - first, values, place, dim, out, r * dim)


@numba.njit(**INNER)
def mix_tile(weights, stride, start, lo, hi, values, tile, dim, size, out):
    """Add to out [len(lo), D] what the rows take from a block of values; as `score_tile`."""
    r, end = 0, start + size
    while r < len(lo):
        num = 4 if r + 4 <= len(lo) else 1
        first, last = max(lo[r + num - 1], start), min(hi[r], end)  # what all four see
        if num == 1 or first >= last:
            first = last = end
        for n in range(r, r + num):
            _mix_columns(weights, n, stride, start, max(lo[n], start), min(hi[n], first), values, tile, dim, out)
        if first < last:
            place = tile + (first - start) * dim
            _mix_of_four(weights, r * stride + first, stride, last - first, values, place, dim, out, r * dim)
        for n in range(r, r + num):
            _mix_columns(weights, n, stride, start, max(lo[n], last), min(hi[n], end), values, tile, dim, out)
        r += num
