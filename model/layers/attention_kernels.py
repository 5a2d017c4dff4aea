"""Attention over the paged cache on a CPU, compiled by numba. Knows arrays; knows nothing of torch, models or requests.

Every number is a function of its own row alone. A score is one chain of multiply-adds over the head dimension; a
softmax sums lane by lane over the row's own blocks of keys, where a key out of sight counts exactly 0; a mixed value
is one chain over the row's own keys in order. Rows are spread over threads whole. So a row comes out bit-identical
whatever stands beside it in the batch, in whatever chunk its prompt was cut and whichever blocks hold its keys. That is
the reason these loops exist; being a few times faster than gathering the blocks for batched matrix products is the
other one.

Axes: T query rows, H query heads, G query heads to a key head, D head dimension, B keys to a block, J blocks of a
sequence. Keys are cached [block, key head, D, B], so that one query meets B keys in vector lanes; values [block, key
head, B, D]. bfloat16 arrives as its bits in uint16 and is widened; all arithmetic is float32.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

# "contract" alone: a*b+c may become one fused operation, but no sum may be reordered.
COMPILE: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}

PATTERN, SCORES, DOTS = 0, 1, 2
"""What `attention_rows` leaves in its output: the softmax, the scores, the bare q.k (masked)."""


def widen(x):
    """float32 of one cached number (uint16 holds the bits of a bfloat16)."""
    raise NotImplementedError("only for compiled code")


@overload(widen, inline="always")
def _widen_overload(x):
    if isinstance(x, types.Integer):
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


@numba.njit(inline="always")
def _exp(x):
    """e**x for x <= 0, within 2 ulp, and exactly 0 below -87, where normal numbers end: 2**n times a polynomial in the
    rest (coefficients of Cephes' expf).
    """
    lost = x < np.float32(-87.0)
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
    power = p * np.int32((np.int32(n32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(0) if lost else power


@numba.njit(inline="always")
def tanh(x):
    """Within 2 ulp or so: an odd polynomial near 0 (coefficients of Cephes' tanhf), beyond it by way of e**-2|x|."""
    z = x * x
    p = np.float32(-5.70498872745e-3)
    p = p * z + np.float32(2.06390887954e-2)
    p = p * z - np.float32(5.37397155531e-2)
    p = p * z + np.float32(1.33314422036e-1)
    p = p * z - np.float32(3.33332819422e-1)
    near = p * z * x + x
    e = _exp(np.float32(-2) * abs(x))
    far = (np.float32(1) - e) / (np.float32(1) + e)
    return near if abs(x) < np.float32(0.625) else (-far if x < np.float32(0) else far)


@numba.njit(**COMPILE)
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
            a += q0 * widen(keys[d, b])
            a += q1 * widen(keys[d + 1, b])
            a += q2 * widen(keys[d + 2, b])
            a += q3 * widen(keys[d + 3, b])
            a += q4 * widen(keys[d + 4, b])
            a += q5 * widen(keys[d + 5, b])
            a += q6 * widen(keys[d + 6, b])
            a += q7 * widen(keys[d + 7, b])
            out[b] = a
    for d in range(whole, dim):
        for b in range(size):
            out[b] += query[d] * widen(keys[d, b])


@numba.njit(**COMPILE)
def _make_scores(row, first, last, position, scale, softcap, bias):
    """In place: dots become scores, scaled, then capped (softcap 0: not), then with bias[key - position + reach - 1]
    added (empty: not); keys before `first` and from `last` on are -inf. Keys and position are counted from row[0].
    """
    if softcap > 0:
        for t in range(len(row)):
            row[t] = softcap * tanh(row[t] * scale / softcap)
    else:
        for t in range(len(row)):
            row[t] *= scale
    if len(bias) > 0:
        distance_0 = (len(bias) + 1) // 2 - 1
        near, seen = bias[first - position + distance_0 : last - position + distance_0], row[first:last]
        for t in range(len(seen)):
            seen[t] += near[t]
    row[:first] = -np.inf
    row[last:] = -np.inf


@numba.njit(inline="always")  # a call costs a few percent of a short row
def _softmax(row, size):
    """In place over whole blocks of keys. One running sum for each place in a block."""
    lanes = np.full(size, -np.inf, np.float32)
    for start in range(0, len(row), size):
        for b in range(size):
            s = row[start + b]
            lanes[b] = s if s > lanes[b] else lanes[b]
    top = np.float32(-np.inf)
    for b in range(size):
        top = max(top, lanes[b])
    for b in range(size):
        lanes[b] = np.float32(0)
    for start in range(0, len(row), size):
        for b in range(size):
            p = _exp(row[start + b] - top)
            row[start + b] = p
            lanes[b] += p
    total = np.float32(0)
    for b in range(size):
        total += lanes[b]
    inverse = np.float32(1) / total
    for t in range(len(row)):
        row[t] *= inverse


@numba.njit(**COMPILE)
def _block_mix(weights, values, out):
    """out[d] += sum over b of weights[b] * values[b, d], added in the order of b. values [some of B, D]."""
    num_keys, dim = values.shape
    whole = num_keys - num_keys % 8
    for b in range(0, whole, 8):
        w0, w1, w2, w3 = weights[b], weights[b + 1], weights[b + 2], weights[b + 3]
        w4, w5, w6, w7 = weights[b + 4], weights[b + 5], weights[b + 6], weights[b + 7]
        for d in range(dim):
            a = out[d]
            a += w0 * widen(values[b, d])
            a += w1 * widen(values[b + 1, d])
            a += w2 * widen(values[b + 2, d])
            a += w3 * widen(values[b + 3, d])
            a += w4 * widen(values[b + 4, d])
            a += w5 * widen(values[b + 5, d])
            a += w6 * widen(values[b + 6, d])
            a += w7 * widen(values[b + 7, d])
            out[d] = a
    for b in range(whole, num_keys):
        for d in range(dim):
            out[d] += weights[b] * widen(values[b, d])


@numba.njit(**COMPILE)
def _block_dots_of_four(queries, keys, out):
    """`_block_dots` of four queries, which share each load of the keys. queries [4, D], keys [D, B], out [4, B]."""
    dim, size = keys.shape
    out0, out1, out2, out3 = out[0], out[1], out[2], out[3]
    for b in range(size):
        out0[b] = out1[b] = out2[b] = out3[b] = np.float32(0)
    whole = dim - dim % 4
    for d in range(0, whole, 4):
        p0, p1, p2, p3 = queries[0, d], queries[0, d + 1], queries[0, d + 2], queries[0, d + 3]
        q0, q1, q2, q3 = queries[1, d], queries[1, d + 1], queries[1, d + 2], queries[1, d + 3]
        r0, r1, r2, r3 = queries[2, d], queries[2, d + 1], queries[2, d + 2], queries[2, d + 3]
        s0, s1, s2, s3 = queries[3, d], queries[3, d + 1], queries[3, d + 2], queries[3, d + 3]
        for b in range(size):
            k0, k1 = widen(keys[d, b]), widen(keys[d + 1, b])
            k2, k3 = widen(keys[d + 2, b]), widen(keys[d + 3, b])
            out0[b] = out0[b] + p0 * k0 + p1 * k1 + p2 * k2 + p3 * k3
            out1[b] = out1[b] + q0 * k0 + q1 * k1 + q2 * k2 + q3 * k3
            out2[b] = out2[b] + r0 * k0 + r1 * k1 + r2 * k2 + r3 * k3
            out3[b] = out3[b] + s0 * k0 + s1 * k1 + s2 * k2 + s3 * k3
    for d in range(whole, dim):
        for b in range(size):
            k0 = widen(keys[d, b])
            out0[b] += queries[0, d] * k0
            out1[b] += queries[1, d] * k0
            out2[b] += queries[2, d] * k0
            out3[b] += queries[3, d] * k0


@numba.njit(**COMPILE)
def _block_mix_of_four(weights, values, out):
    """`_block_mix` of a whole block for four rows of weights. weights [4, B], values [B, D], out [4, D]."""
    size, dim = values.shape
    out0, out1, out2, out3 = out[0], out[1], out[2], out[3]
    whole = size - size % 4
    for b in range(0, whole, 4):
        p0, p1, p2, p3 = weights[0, b], weights[0, b + 1], weights[0, b + 2], weights[0, b + 3]
        q0, q1, q2, q3 = weights[1, b], weights[1, b + 1], weights[1, b + 2], weights[1, b + 3]
        r0, r1, r2, r3 = weights[2, b], weights[2, b + 1], weights[2, b + 2], weights[2, b + 3]
        s0, s1, s2, s3 = weights[3, b], weights[3, b + 1], weights[3, b + 2], weights[3, b + 3]
        for d in range(dim):
            v0, v1 = widen(values[b, d]), widen(values[b + 1, d])
            v2, v3 = widen(values[b + 2, d]), widen(values[b + 3, d])
            out0[d] = out0[d] + p0 * v0 + p1 * v1 + p2 * v2 + p3 * v3
            out1[d] = out1[d] + q0 * v0 + q1 * v1 + q2 * v2 + q3 * v3
            out2[d] = out2[d] + r0 * v0 + r1 * v1 + r2 * v2 + r3 * v3
            out3[d] = out3[d] + s0 * v0 + s1 * v1 + s2 * v2 + s3 * v3
    for b in range(whole, size):
        for d in range(dim):
            v0 = widen(values[b, d])
            out0[d] += weights[0, b] * v0
            out1[d] += weights[1, b] * v0
            out2[d] += weights[2, b] * v0
            out3[d] += weights[3, b] * v0


@numba.njit(**COMPILE)
def _tile_dots(queries, first, last, keys, start, out):
    """Dots of a tile's queries [R, D] with the block of keys that begins at `start`, into its columns of out [R, keys].

    Row r sees keys first[r] <= k < last[r]; neither falls from one row to the next. Keys are counted from the tile's
    first block.
    """
    end = start + keys.shape[1]
    num = len(queries)
    r = 0
    while r < num:
        if r + 4 <= num:
            if start < last[r + 3] and end > first[r]:  # one of the four may see it
                _block_dots_of_four(queries[r : r + 4], keys, out[r : r + 4, start:end])
            r += 4
        else:
            if start < last[r] and end > first[r]:
                _block_dots(queries[r], keys, out[r, start:end])
            r += 1


@numba.njit(**COMPILE)
def _tile_mix(weights, first, last, values, start, out):
    """Add to out [R, D] what a tile's rows take from the block of values that begins at `start`; as `_tile_dots`."""
    end = start + values.shape[0]
    num = len(out)
    r = 0
    while r < num:
        if r + 4 <= num and start >= first[r + 3] and end <= last[r]:  # all four see the whole block
            _block_mix_of_four(weights[r : r + 4, start:end], values, out[r : r + 4])
            r += 4
        else:
            lo, hi = max(first[r], start), min(last[r], end)
            if lo < hi:
                _block_mix(weights[r, lo:hi], values[lo - start : hi - start], out[r])
            r += 1


@numba.njit(parallel=True, **COMPILE)
def attend(q, keys, values, tables, items, positions, first, last, scale, softcap, bias, out):
    """out = softmax(scores) V for every query row.

    q, out [T, H, D] float32; keys [block, H/G, D, B]; values [block, H/G, B, D]; tables [sequence, J] int32;
    items [n, 5] int32: (sequence, first row, rows, first key head, key heads), the pieces that threads take: a few rows
    of one sequence, which share a pass over the keys of some heads; positions, first, last [T] int64: row t stands at
    positions[t] and sees keys first[t] <= k < last[t]; bias [H, 2 * reach - 1], or [H, 0]; see `_make_scores`.
    """
    num_key_heads, dim, size = keys.shape[1], keys.shape[2], keys.shape[3]
    group = q.shape[1] // num_key_heads
    for item in numba.prange(len(items)):
        row, num_rows = items[item, 1], items[item, 2]
        first_head, num_heads = items[item, 3], items[item, 4]
        first_block = first[row] // size  # nobody in the tile reads what lies before it
        num_blocks = (last[row + num_rows - 1] + size - 1) // size - first_block
        table = tables[items[item, 0], first_block:]
        num = num_rows * group  # one row for each query head that reads a key head
        queries = np.empty((num_heads, num, dim), np.float32)
        lo, hi = np.empty(num, np.int64), np.empty(num, np.int64)
        scores = np.empty((num_heads, num, num_blocks * size), np.float32)
        mixed = np.zeros((num_heads, num, dim), np.float32)
        for r in range(num):
            lo[r] = first[row + r // group] - first_block * size
            hi[r] = last[row + r // group] - first_block * size
        for h in range(num_heads):
            for r in range(num):
                for d in range(dim):
                    queries[h, r, d] = q[row + r // group, (first_head + h) * group + r % group, d]
        for j in range(num_blocks):  # heads within a block lie side by side: memory is read in its own order
            for h in range(num_heads):
                _tile_dots(queries[h], lo, hi, keys[table[j], first_head + h], j * size, scores[h])
        for h in range(num_heads):
            for r in range(num):
                begin, end = lo[r] // size * size, (hi[r] + size - 1) // size * size  # the row's own blocks
                seen = scores[h, r, begin:end]
                position = positions[row + r // group] - first_block * size - begin
                head_bias = bias[(first_head + h) * group + r % group]
                _make_scores(seen, lo[r] - begin, hi[r] - begin, position, scale, softcap, head_bias)
                _softmax(seen, size)
        for j in range(num_blocks):
            for h in range(num_heads):
                _tile_mix(scores[h], lo, hi, values[table[j], first_head + h], j * size, mixed[h])
        for h in range(num_heads):
            for r in range(num):
                for d in range(dim):
                    out[row + r // group, (first_head + h) * group + r % group, d] = mixed[h, r, d]


@numba.njit(parallel=True, **COMPILE)
def attention_rows(q, rows, heads, keys, table, positions, first, last, scale, softcap, bias, kind, out):
    """The attention of chosen rows and heads of one sequence, by the same steps as `attend`.

    rows, heads: int64; table [J]; out [heads, rows, keys]: keys out of sight are 0 in a pattern and -inf otherwise.
    """
    num_heads, num_rows = out.shape[:2]
    group, size = q.shape[1] // keys.shape[1], keys.shape[3]
    for item in numba.prange(num_heads * num_rows):
        h, r = item // num_rows, item % num_rows
        row, head = rows[r], heads[h]
        first_block = first[row] // size
        start = first_block * size
        lo, hi = first[row] - start, last[row] - start
        seen = np.empty((hi + size - 1) // size * size, np.float32)
        for j in range(len(seen) // size):
            block = keys[table[first_block + j], head // group]
            _block_dots(q[row, head], block, seen[j * size : j * size + size])
        if kind != DOTS:
            _make_scores(seen, lo, hi, positions[row] - start, scale, softcap, bias[head])
        if kind == PATTERN:
            _softmax(seen, size)
        out[h, r] = np.float32(0) if kind == PATTERN else np.float32(-np.inf)
        for t in range(lo, hi):
            out[h, r, start + t] = seen[t]


@numba.njit(parallel=True, **COMPILE)
def softmax_rows(scores, size, out):
    """softmax of scores [heads, rows, keys] as `attend` makes it of the same scores. size: B."""
    num_heads, num_rows, num_keys = scores.shape
    for item in numba.prange(num_heads * num_rows):
        h, r = item // num_rows, item % num_rows
        row = np.full((num_keys + size - 1) // size * size, -np.inf, np.float32)
        row[:num_keys] = scores[h, r]
        _softmax(row, size)
        out[h, r] = row[:num_keys]


@numba.njit(parallel=True, **COMPILE)
def mix_rows(pattern, key_heads, values, table, out):
    """out += pattern [heads, rows, keys] times the values of one sequence, in the order in which `attend` adds them.

    key_heads [heads]: the key head each one reads; table [J]; out [heads, rows, D].
    """
    num_heads, num_rows, num_keys = pattern.shape
    size = values.shape[2]
    for item in numba.prange(num_heads * num_rows):
        h, r = item // num_rows, item % num_rows
        for start in range(0, num_keys, size):
            end = min(start + size, num_keys)
            block = values[table[start // size], key_heads[h]]
            _block_mix(pattern[h, r, start:end], block[: end - start], out[h, r])
