"""Attention over the paged cache on a CPU, compiled by numba. Knows arrays; knows nothing of torch, models or requests.

Every number is a function of its own row alone. A score is one chain of multiply-adds over the head dimension; a
softmax sums lane by lane over the row's own keys, where a key out of sight counts exactly 0; a mixed value is one chain
over the row's own keys in order. Rows are spread over threads whole. So a row comes out bit-identical whatever stands
beside it in the batch, in whatever chunk its prompt was cut and whichever blocks hold its keys. That is the reason
these loops exist; being many times faster than gathering the blocks for batched matrix products is the other one.

Axes: T query rows, H query heads, K key heads, G = H/K query heads to a key head, D head dimension, B keys to a block,
J blocks of a sequence. Keys are cached [block, K, D, B], so that one query meets neighbouring keys in the lanes of a
vector; values [block, K, B, D], so that one weight meets neighbouring dimensions. Arrays of such shapes come flat, and
a tile is the place where the keys or values of one block and head begin. bfloat16 arrives as its bits in uint16 and is
widened; all arithmetic is float32.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from typing import Any

import numba
import numpy as np

from model.layers.vectors import (
    LANES,
    exp,
    fma,
    largest_lane,
    load,
    narrow,
    prefetch,
    store,
    sum_of_lanes,
    where_greater,
    widen,
    zeros,
)

# "contract" alone: a*b+c may become one fused operation, but no sum may be reordered.
COMPILE: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}

PATTERN, SCORES, DOTS = 0, 1, 2
"""What `attention_rows` leaves in its output: the softmax, the scores, the bare q.k (masked)."""


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
    e = exp(np.float32(-2) * abs(x))
    far = (np.float32(1) - e) / (np.float32(1) + e)
    return near if abs(x) < np.float32(0.625) else (-far if x < np.float32(0) else far)


@numba.njit(**COMPILE)
def _dots(q, i, keys, tile, dim, size, out, o):
    """out[o + b] = sum over d of q[i + d] * keys[d, b], added in the order of d; keys [D, B] at `tile`."""
    b = 0
    while b + 2 * LANES <= size:  # two sums at a time: one would wait for itself
        sum0, sum1 = zeros(), zeros()
        for d in range(dim):
            at = tile + d * size + b
            sum0 = fma(q[i + d], load(keys, at), sum0)
            sum1 = fma(q[i + d], load(keys, at + LANES), sum1)
        store(out, o + b, sum0)
        store(out, o + b + LANES, sum1)
        b += 2 * LANES
    while b + LANES <= size:
        total = zeros()
        for d in range(dim):
            total = fma(q[i + d], load(keys, tile + d * size + b), total)
        store(out, o + b, total)
        b += LANES
    for rest in range(b, size):
        single = np.float32(0)
        for d in range(dim):
            single = fma(q[i + d], widen(keys[tile + d * size + rest]), single)
        out[o + rest] = single


@numba.njit(**COMPILE)
def _dots_of_four(q, i0, i1, i2, i3, keys, tile, dim, size, out, o, stride):
    """`_dots` of four queries, which share each load of the keys; their sums go to o, o + stride, ... of out."""
    b = 0
    while b + 2 * LANES <= size:
        a0, b0, c0, d0 = zeros(), zeros(), zeros(), zeros()
        a1, b1, c1, d1 = zeros(), zeros(), zeros(), zeros()
        for d in range(dim):
            at = tile + d * size + b
            left, right = load(keys, at), load(keys, at + LANES)
            a0, a1 = fma(q[i0 + d], left, a0), fma(q[i0 + d], right, a1)
            b0, b1 = fma(q[i1 + d], left, b0), fma(q[i1 + d], right, b1)
            c0, c1 = fma(q[i2 + d], left, c0), fma(q[i2 + d], right, c1)
            d0, d1 = fma(q[i3 + d], left, d0), fma(q[i3 + d], right, d1)
        at = o + b
        store(out, at, a0)
        store(out, at + LANES, a1)
        store(out, at + stride, b0)
        store(out, at + stride + LANES, b1)
        store(out, at + 2 * stride, c0)
        store(out, at + 2 * stride + LANES, c1)
        store(out, at + 3 * stride, d0)
        store(out, at + 3 * stride + LANES, d1)
        b += 2 * LANES
    if b < size:  # narrow blocks are rare
        for n, i in enumerate((i0, i1, i2, i3)):
            _dots(q, i, keys, tile, dim, size, out, o + n * stride)


@numba.njit(**COMPILE)
def _mix(weights, w, num_keys, values, tile, dim, out, o):
    """out[o + d] += sum over b of weights[w + b] * values[b, d], added in the order of b; values [b, D] at `tile`."""
    d = 0
    while d + 4 * LANES <= dim:
        sum0, sum1 = load(out, o + d), load(out, o + d + LANES)
        sum2, sum3 = load(out, o + d + 2 * LANES), load(out, o + d + 3 * LANES)
        for b in range(num_keys):
            weight, at = weights[w + b], tile + b * dim + d
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
            weight, at = weights[w + b], tile + b * dim + d
            sum0 = fma(weight, load(values, at), sum0)
            sum1 = fma(weight, load(values, at + LANES), sum1)
        store(out, o + d, sum0)
        store(out, o + d + LANES, sum1)
        d += 2 * LANES
    while d + LANES <= dim:
        total = load(out, o + d)
        for b in range(num_keys):
            total = fma(weights[w + b], load(values, tile + b * dim + d), total)
        store(out, o + d, total)
        d += LANES
    for rest in range(d, dim):
        single = out[o + rest]
        for b in range(num_keys):
            single = fma(weights[w + b], widen(values[tile + b * dim + rest]), single)
        out[o + rest] = single


@numba.njit(**COMPILE)
def _mix_of_four(weights, w, stride, num_keys, values, tile, dim, out, o):
    """`_mix` for four rows of weights, from w, w + stride, ... on, into rows of out that follow one another."""
    d = 0
    while d + 2 * LANES <= dim:
        o0, o1, o2, o3 = o + d, o + d + dim, o + d + 2 * dim, o + d + 3 * dim
        a0, b0, c0, d0 = load(out, o0), load(out, o1), load(out, o2), load(out, o3)
        a1, b1 = load(out, o0 + LANES), load(out, o1 + LANES)
        c1, d1 = load(out, o2 + LANES), load(out, o3 + LANES)
        for b in range(num_keys):
            at, each = tile + b * dim + d, w + b
            left, right = load(values, at), load(values, at + LANES)
            a0, a1 = fma(weights[each], left, a0), fma(weights[each], right, a1)
            each += stride
            b0, b1 = fma(weights[each], left, b0), fma(weights[each], right, b1)
            each += stride
            c0, c1 = fma(weights[each], left, c0), fma(weights[each], right, c1)
            each += stride
            d0, d1 = fma(weights[each], left, d0), fma(weights[each], right, d1)
        store(out, o0, a0)
        store(out, o0 + LANES, a1)
        store(out, o1, b0)
        store(out, o1 + LANES, b1)
        store(out, o2, c0)
        store(out, o2 + LANES, c1)
        store(out, o3, d0)
        store(out, o3 + LANES, d1)
        d += 2 * LANES
    for r in range(4):
        for rest in range(d, dim):
            single = out[o + r * dim + rest]
            for b in range(num_keys):
                single = fma(weights[w + r * stride + b], widen(values[tile + b * dim + rest]), single)
            out[o + r * dim + rest] = single


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


@numba.njit(**COMPILE)
def _softmax(row, i, num):
    """In place, of row[i : i + num], a number of whole vectors; lane by lane, then over the lanes."""
    top = load(row, i)
    for t in range(i + LANES, i + num, LANES):
        scores = load(row, t)
        top = where_greater(scores, top, scores, top)
    largest, total = largest_lane(top), zeros()
    for t in range(i, i + num, LANES):
        weights = exp(load(row, t) - largest)
        store(row, t, weights)
        total = total + weights
    inverse = np.float32(1) / sum_of_lanes(total)
    for t in range(i, i + num, LANES):
        store(row, t, load(row, t) * inverse)


@numba.njit(inline="always")
def _lanes_up(n):
    """n up to whole vectors."""
    return (n + LANES - 1) // LANES * LANES


@numba.njit(**COMPILE)
def _score_tile(q, at, lo, hi, keys, tile, dim, size, scores, stride, start):
    """Dots of the queries that begin at q[at[r]] with a block of keys, into row r of scores [len(at), stride] from
    column `start` on.

    Row r sees columns lo[r] <= k < hi[r]; neither falls from one row to the next.
    """
    r, end = 0, start + size
    while r < len(at):
        o = r * stride + start
        if r + 4 <= len(at):
            if start < hi[r + 3] and end > lo[r]:  # one of the four may see it
                _dots_of_four(q, at[r], at[r + 1], at[r + 2], at[r + 3], keys, tile, dim, size, scores, o, stride)
            r += 4
        else:
            if start < hi[r] and end > lo[r]:
                _dots(q, at[r], keys, tile, dim, size, scores, o)
            r += 1


@numba.njit(**COMPILE)
def _mix_tile(weights, stride, start, lo, hi, values, tile, dim, size, out):
    """Add to out [len(lo), D] what the rows take from a block of values; as `_score_tile`."""
    r, end = 0, start + size
    while r < len(lo):
        if r + 4 <= len(lo) and start >= lo[r + 3] and end <= hi[r]:  # all four see the whole block
            _mix_of_four(weights, r * stride + start, stride, size, values, tile, dim, out, r * dim)
            r += 4
        else:
            first, last = max(lo[r], start), min(hi[r], end)
            if first < last:
                place = tile + (first - start) * dim
                _mix(weights, r * stride + first, last - first, values, place, dim, out, r * dim)
            r += 1


@numba.njit(**COMPILE)
def _store_row(mixed, i, dim, out, o):
    """out[o : o + D] = mixed[i : i + D], rounded to the type of out."""
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        store(out, o + d, load(mixed, i + d))
    for d in range(whole, dim):
        out[o + d] = narrow(mixed[i + d], out)


@numba.njit(**COMPILE)
def attend_item(q, keys, values, shape, tables, item, positions, first, last, scale, softcap, bias, out):
    """One item of `attend`."""
    num_heads, num_key_heads, dim, size = shape
    group = num_heads // num_key_heads
    sequence, row, num_rows = item[0], item[1], item[2]
    first_block = first[row] // size  # nobody in the tile reads what lies before it
    num_blocks = (last[row + num_rows - 1] + size - 1) // size - first_block
    origin = first_block * size // LANES * LANES  # key of the first column: a softmax has the same lanes whatever
    lead = first_block * size - origin  # the row's neighbours need
    num = num_rows * group  # one row for each query head that reads a key head
    stride = _lanes_up(lead + num_blocks * size)
    scores = np.empty(num * stride, np.float32)
    mixed = np.empty(num * dim, np.float32)
    at, lo, hi = np.empty(num, np.int64), np.empty(num, np.int64), np.empty(num, np.int64)
    for r in range(num):
        lo[r], hi[r] = first[row + r // group] - origin, last[row + r // group] - origin
    for h in range(item[3], item[3] + item[4]):
        for r in range(num):
            at[r] = ((row + r // group) * num_heads + h * group + r % group) * dim
        tile = (tables[sequence, first_block] * num_key_heads + h) * dim * size
        first_tile = tile
        for j in range(num_blocks):  # while one block is worked on, the next one is on its way
            after = first_tile
            if j + 1 < num_blocks:
                after = (tables[sequence, first_block + j + 1] * num_key_heads + h) * dim * size
                prefetch(keys, after, dim * size)
            else:
                prefetch(values, after, dim * size)
            start = lead + j * size
            if num == 1:  # sees a part of every block: the tests and the call would take a third of the time
                _dots(q, at[0], keys, tile, dim, size, scores, start)
            else:
                _score_tile(q, at, lo, hi, keys, tile, dim, size, scores, stride, start)
            tile = after
        for r in range(num):
            begin, end = lo[r] // LANES * LANES, _lanes_up(hi[r])
            seen = scores[r * stride + begin : r * stride + end]
            position = positions[row + r // group] - origin - begin
            _make_scores(seen, lo[r] - begin, hi[r] - begin, position, scale, softcap, bias[h * group + r % group])
            _softmax(scores, r * stride + begin, end - begin)
        mixed[:] = 0
        for j in range(num_blocks):
            after = tile
            if j + 1 < num_blocks:
                after = (tables[sequence, first_block + j + 1] * num_key_heads + h) * dim * size
                prefetch(values, after, dim * size)
            elif h + 1 < num_key_heads:
                prefetch(keys, first_tile + dim * size, dim * size)
            start = lead + j * size
            if num == 1:
                begin, end = max(lo[0], start), min(hi[0], start + size)
                _mix(scores, begin, end - begin, values, tile + (begin - start) * dim, dim, mixed, 0)
            else:
                _mix_tile(scores, stride, start, lo, hi, values, tile, dim, size, mixed)
            tile = after
        for r in range(num):
            _store_row(mixed, r * dim, dim, out, at[r])


@numba.njit(parallel=True, **COMPILE)
def attend(q, keys, values, shape, tables, items, positions, first, last, scale, softcap, bias, out):
    """out = softmax(scores) V for every query row.

    q [T, H, D] float32, keys [block, K, D, B], values [block, K, B, D] and out [T, H, D], of the type of values, all
    flat; shape (H, K, D, B); tables [sequence, J] int32; items [n, 5] int32: (sequence, first row, rows, first key
    head, key heads), the pieces that threads take: a few rows of one sequence and some heads; positions, first, last
    [T] int64: row t stands at positions[t] and sees keys first[t] <= k < last[t]; bias [H, 2 * reach - 1], or [H, 0];
    see `_make_scores`.
    """
    for i in numba.prange(len(items)):
        attend_item(q, keys, values, shape, tables, items[i], positions, first, last, scale, softcap, bias, out)


@numba.njit(parallel=True, **COMPILE)
def attention_rows(q, rows, heads, keys, shape, table, positions, first, last, scale, softcap, bias, kind, out):
    """The attention of chosen rows and heads of one sequence, by the same steps as `attend`.

    rows, heads: int64; table [J]; out [heads, rows, keys]: keys out of sight are 0 in a pattern and -inf otherwise.
    """
    num_heads, num_key_heads, dim, size = shape
    num_rows = out.shape[1]
    for item in numba.prange(out.shape[0] * num_rows):
        h, r = item // num_rows, item % num_rows
        row, head = rows[r], heads[h]
        key_head = head // (num_heads // num_key_heads)
        first_block, end_block = first[row] // size, (last[row] + size - 1) // size
        origin = first_block * size // LANES * LANES
        lo, hi = first[row] - origin, last[row] - origin
        seen = np.empty(_lanes_up(end_block * size - origin), np.float32)
        for j in range(first_block, end_block):
            tile = (table[j] * num_key_heads + key_head) * dim * size
            _dots(q, (row * num_heads + head) * dim, keys, tile, dim, size, seen, j * size - origin)
        begin, end = lo // LANES * LANES, _lanes_up(hi)
        if kind != DOTS:
            position = positions[row] - origin - begin
            _make_scores(seen[begin:end], lo - begin, hi - begin, position, scale, softcap, bias[head])
        if kind == PATTERN:
            _softmax(seen, begin, end - begin)
        out[h, r] = np.float32(0) if kind == PATTERN else np.float32(-np.inf)
        for t in range(lo, hi):
            out[h, r, origin + t] = seen[t]


@numba.njit(parallel=True, **COMPILE)
def softmax_rows(scores, out):
    """softmax of scores [heads, rows, keys] as `attend` makes it of the same scores."""
    num_heads, num_rows, num_keys = scores.shape
    for item in numba.prange(num_heads * num_rows):
        h, r = item // num_rows, item % num_rows
        row = np.full(_lanes_up(num_keys), -np.inf, np.float32)
        row[:num_keys] = scores[h, r]
        _softmax(row, 0, len(row))
        out[h, r] = row[:num_keys]


@numba.njit(parallel=True, **COMPILE)
def mix_rows(pattern, key_heads, values, shape, table, out):
    """out += pattern [heads, rows, keys] times the values of one sequence, in the order in which `attend` adds them.

    pattern and out flat; key_heads [heads]: the key head each one reads; shape (rows, keys, K, D, B); table [J]; out
    [heads, rows, D].
    """
    num_rows, num_keys, num_key_heads, dim, size = shape
    for item in numba.prange(len(key_heads) * num_rows):
        for start in range(0, num_keys, size):
            tile = (table[start // size] * num_key_heads + key_heads[item // num_rows]) * size * dim
            num = min(size, num_keys - start)
            _mix(pattern, item * num_keys + start, num, values, tile, dim, out, item * dim)
