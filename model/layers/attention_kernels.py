"""Attention over the paged cache on a CPU, compiled by numba. Knows arrays; knows nothing of torch, models or requests.

Every number is a function of its own row alone. A score is one chain of multiply-adds over the head dimension; a
softmax sums lane by lane over the row's own blocks of keys; a mixed value is one chain over the row's own keys in
order. Rows are spread over threads whole. So a row comes out bit-identical whatever stands beside it in the batch, in
whatever chunk its prompt was cut and whichever blocks hold its keys. That is the reason these loops exist; being a few
times faster than gathering the blocks for batched matrix products is the other one.

Axes: T query rows, H query heads, G query heads to a key head, D head dimension, B keys to a block, J blocks of a
sequence. Keys are cached [block, key head, D, B], so that one query meets B keys in vector lanes; values [block, key
head, B, D]. bfloat16 arrives as its bits in uint16 and is widened; all arithmetic is float32.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import math
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

# "contract" alone: a*b+c may become one fused operation, but no sum may be reordered.
_COMPILE: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}

PATTERN, SCORES, DOTS = 0, 1, 2
"""What `attention_rows` leaves in its output: the softmax, the scaled and masked scores, the bare q.k (masked)."""


def _widen(x):
    """float32 of one cached number (uint16 holds the bits of a bfloat16)."""
    raise NotImplementedError("only for compiled code")


@overload(_widen, inline="always")
def _widen_overload(x):
    if isinstance(x, types.Integer):
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


@numba.njit(inline="always")
def _exp(x):
    """e**x for x <= 0, within 2 ulp: 2**n times a polynomial in the rest (coefficients of Cephes' expf)."""
    x = max(x, np.float32(-87.0))
    n32 = (x * np.float32(1.4426950408889634) + np.float32(12582912.0)) - np.float32(12582912.0)
    f = x - n32 * np.float32(0.693359375)
    f = f - n32 * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(5.0000001201e-1)
    p = p * f * f + f + np.float32(1.0)
    return p * np.int32((np.int32(n32) + np.int32(127)) << np.int32(23)).view(np.float32)


@numba.njit(**_COMPILE)
def _block_dots(query, keys, out):
    """out[b] = sum over d of query[d] * keys[d, b], added in the order of d. keys [D, B], out [B]."""
    dim, size = keys.shape
    for b in range(size):
        out[b] = np.float32(0)
    whole = dim - dim % 8
    for d in range(0, whole, 8):  # eight terms a pass keep the running sum in a register
        q0, q1, q2, q3 = query[d], query[d + 1], query[d + 2], query[d + 3]
        q4, q5, q6, q7 = query[d + 4], query[d + 5], query[d + 6], query[d + 7]
        for b in range(size):
            a = out[b]
            a += q0 * _widen(keys[d, b])
            a += q1 * _widen(keys[d + 1, b])
            a += q2 * _widen(keys[d + 2, b])
            a += q3 * _widen(keys[d + 3, b])
            a += q4 * _widen(keys[d + 4, b])
            a += q5 * _widen(keys[d + 5, b])
            a += q6 * _widen(keys[d + 6, b])
            a += q7 * _widen(keys[d + 7, b])
            out[b] = a
    for d in range(whole, dim):
        for b in range(size):
            out[b] += query[d] * _widen(keys[d, b])


@numba.njit(**_COMPILE)
def _softmax(row, num_keys, size, scale):
    """In place over row[:num_keys]; the rest of the last block becomes 0. One running sum for each place in a block."""
    padded = (num_keys + size - 1) // size * size
    for t in range(num_keys, padded):
        row[t] = -np.inf
    lanes = np.full(size, -np.inf, np.float32)
    for start in range(0, padded, size):
        for b in range(size):
            s = row[start + b] * scale
            row[start + b] = s
            lanes[b] = s if s > lanes[b] else lanes[b]
    top = lanes[0]
    for b in range(size):
        top = max(top, lanes[b])
    for b in range(size):
        lanes[b] = np.float32(0)
    for start in range(0, padded, size):
        for b in range(size):
            p = _exp(row[start + b] - top)
            row[start + b] = p
            lanes[b] += p
    for t in range(num_keys, padded):  # `_exp` stops at e**-87, too small to have changed a sum that is at least 1
        row[t] = np.float32(0)
    total = np.float32(0)
    for b in range(size):
        total += lanes[b]
    inverse = np.float32(1) / total
    for t in range(padded):
        row[t] *= inverse


@numba.njit(**_COMPILE)
def _block_mix(weights, values, num_keys, out):
    """out[d] += sum over the first num_keys of weights[b] * values[b, d], added in the order of b. values [B, D]."""
    dim = values.shape[1]
    whole = num_keys - num_keys % 8
    for b in range(0, whole, 8):
        w0, w1, w2, w3 = weights[b], weights[b + 1], weights[b + 2], weights[b + 3]
        w4, w5, w6, w7 = weights[b + 4], weights[b + 5], weights[b + 6], weights[b + 7]
        for d in range(dim):
            a = out[d]
            a += w0 * _widen(values[b, d])
            a += w1 * _widen(values[b + 1, d])
            a += w2 * _widen(values[b + 2, d])
            a += w3 * _widen(values[b + 3, d])
            a += w4 * _widen(values[b + 4, d])
            a += w5 * _widen(values[b + 5, d])
            a += w6 * _widen(values[b + 6, d])
            a += w7 * _widen(values[b + 7, d])
            out[d] = a
    for b in range(whole, num_keys):
        for d in range(dim):
            out[d] += weights[b] * _widen(values[b, d])


@numba.njit(parallel=True, **_COMPILE)
def attend(q, keys, values, tables, tiles, positions, scale, out):
    """out = softmax(scale * q K^T, causal) V for every query row.

    q, out [T, H, D] float32; keys [block, H/G, D, B]; values [block, H/G, B, D]; tables [sequence, J] int32;
    tiles [n, 3] int32: (sequence, first row, rows), rows of one sequence that share a pass over its keys;
    positions [T] int64: row t sees keys 0..positions[t].
    """
    num_heads = q.shape[1]
    num_key_heads, dim, size = keys.shape[1], keys.shape[2], keys.shape[3]
    group = num_heads // num_key_heads
    for item in numba.prange(len(tiles) * num_key_heads):
        tile, head = item // num_key_heads, item % num_key_heads
        table, first, rows = tables[tiles[tile, 0]], tiles[tile, 1], tiles[tile, 2]
        num_blocks = positions[first + rows - 1] // size + 1
        scores = np.empty((rows * group, num_blocks * size), np.float32)
        for j in range(num_blocks):
            block = keys[table[j], head]
            for r in range(rows):
                if j * size <= positions[first + r]:
                    for g in range(group):
                        _block_dots(
                            q[first + r, head * group + g], block, scores[r * group + g, j * size : j * size + size]
                        )
        for r in range(rows):
            for g in range(group):
                _softmax(scores[r * group + g], positions[first + r] + 1, size, scale)
                for d in range(dim):
                    out[first + r, head * group + g, d] = np.float32(0)
        for j in range(num_blocks):
            block = values[table[j], head]
            for r in range(rows):
                seen = min(size, positions[first + r] + 1 - j * size)
                if seen > 0:
                    for g in range(group):
                        row = scores[r * group + g, j * size : j * size + size]
                        _block_mix(row, block, seen, out[first + r, head * group + g])


@numba.njit(parallel=True, **_COMPILE)
def attention_rows(q, key_heads, keys, table, positions, scale, kind, out):
    """The attention of chosen heads and rows of one sequence, by the same steps as `attend`.

    q [heads, rows, D] float32; key_heads [heads]: the key head each one reads; table [J]; positions [rows];
    out [heads, rows, keys]: keys a row cannot see are 0 in a pattern and -inf otherwise.
    """
    num_heads, num_rows, num_keys = out.shape
    size = keys.shape[3]
    for item in numba.prange(num_heads * num_rows):
        head, r = item // num_rows, item % num_rows
        seen = positions[r] + 1
        row = np.empty((seen + size - 1) // size * size, np.float32)
        for j in range(len(row) // size):
            _block_dots(q[head, r], keys[table[j], key_heads[head]], row[j * size : j * size + size])
        hidden = np.float32(0) if kind == PATTERN else np.float32(-np.inf)
        if kind == PATTERN:
            _softmax(row, seen, size, scale)
        elif kind == SCORES:
            for t in range(seen):
                row[t] *= scale
        for t in range(min(seen, num_keys)):
            out[head, r, t] = row[t]
        for t in range(seen, num_keys):
            out[head, r, t] = hidden


@numba.njit(**_COMPILE)
def store(k, v, slots, keys, values):
    """Write one key and value a row into the cache. k, v [T, H/G, D] in the cache's own type; slots [T]: block * B +
    place.
    """
    rows, num_heads, dim = k.shape
    size = keys.shape[3]
    for t in range(rows):
        block, place = slots[t] // size, slots[t] % size
        for h in range(num_heads):
            for d in range(dim):
                keys[block, h, d, place] = k[t, h, d]
                values[block, h, place, d] = v[t, h, d]
