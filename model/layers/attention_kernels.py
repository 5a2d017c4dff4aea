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

from model.layers.attention_blocks import INNER, dots, mix, mix_tile, score_tile
from model.layers.told_kernels import lanes_up, tell_row
from model.layers.vectors import (
    LANES,
    exp,
    largest_lane,
    load,
    narrow,
    only_lanes,
    prefetch,
    store,
    sum_of_lanes,
    where_greater,
    zeros,
)

COMPILE: dict[str, Any] = {name: option for name, option in INNER.items() if name != "forceinline"}

_ROWS_TOGETHER = 8
"""Rows of which attention is looked at together: they share each load of their keys."""
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
def _largest(row, i, num):
    """Lane by lane, of row[i : i + num], a number of whole vectors."""
    top = load(row, i)
    for t in range(i + LANES, i + num, LANES):
        scores = load(row, t)
        top = where_greater(scores, top, scores, top)
    return top


@numba.njit(**COMPILE)
def _largest_scaled(row, i, num, first, last, scale):
    """The same of `_make_scores` without cap and bias, which it does on the way; first and last count from row[i]."""
    top = only_lanes(load(row, i) * scale, first, last)
    store(row, i, top)
    for t in range(LANES, num, LANES):
        scores = load(row, i + t) * scale
        if last < t + LANES:
            scores = only_lanes(scores, 0, last - t)
        store(row, i + t, scores)
        top = where_greater(scores, top, scores, top)
    return top


@numba.njit(**COMPILE)
def _softmax(row, i, num, top):
    """In place, of row[i : i + num], a number of whole vectors whose largest lanes are `top`; lane by lane, then over
    the lanes.
    """
    largest, total = largest_lane(top), zeros()
    for t in range(i, i + num, LANES):
        weights = exp(load(row, t) - largest)
        store(row, t, weights)
        total = total + weights
    inverse = np.float32(1) / sum_of_lanes(total)
    for t in range(i, i + num, LANES):
        store(row, t, load(row, t) * inverse)


@numba.njit(**COMPILE)
def _store_row(mixed, i, dim, out, o):
    """out[o : o + D] = mixed[i : i + D], rounded to the type of out."""
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        store(out, o + d, load(mixed, i + d))
    for d in range(whole, dim):
        out[o + d] = narrow(mixed[i + d], out)


@numba.njit(**INNER)
def _weigh(row, i, lo, hi, position, scale, softcap, bias):
    """In place, dots become weights: of the row that begins at row[i], in the columns lo <= k < hi that it sees, and 0
    in the others of their vectors. Its position is counted from the first column.
    """
    if hi <= lo:  # it sees nothing: there is no vector to write to
        return
    begin, end = lo // LANES * LANES, lanes_up(hi)
    if softcap > 0 or len(bias) > 0:
        _make_scores(row[i + begin : i + end], lo - begin, hi - begin, position - begin, scale, softcap, bias)
        top = _largest(row, i + begin, end - begin)
    else:
        top = _largest_scaled(row, i + begin, end - begin, lo - begin, hi - begin, scale)
    _softmax(row, i + begin, end - begin, top)


@numba.njit(**COMPILE)
def _attend_alone(
    q, keys, values, shape, table, item, positions, first, last, scale, softcap, bias, newest, new, out, told
):
    """`attend_item` of one row whose heads read a key head each. All heads take their part of a block before the next
    one: what they read of it lies in one piece, which comes nearer to what memory gives than a head after the other.
    """
    num_heads, _, dim, size = shape
    row, begin, end, piece = item[1], item[3], item[3] + item[4], dim * size
    position = positions[row]
    first_block, end_block = first[row] // size, (last[row] + size - 1) // size
    origin = first_block * size // LANES * LANES
    lo, hi, stride = first[row] - origin, last[row] - origin, lanes_up(end_block * size - origin)
    scores, mixed = np.empty(item[4] * stride, np.float32), np.zeros(item[4] * dim, np.float32)
    for block in range(first_block, end_block):
        tile, start = table[block] * num_heads * piece, block * size - origin
        after = table[block + 1 if block + 1 < end_block else first_block] * num_heads * piece
        for h in range(begin, end):
            prefetch(keys if block + 1 < end_block else values, after + h * piece, piece)
            if new >= 0 and block + 1 == end_block:
                for d in range(dim):
                    keys[tile + h * piece + position % size + d * size] = newest[new + h * dim + d]
            dots(
                q, (row * num_heads + h) * dim, keys, tile + h * piece, dim, size, scores, (h - begin) * stride + start
            )
    for h in range(begin, end):
        i = (h - begin) * stride
        _weigh(scores, i, lo, hi, position - origin, scale, softcap, bias[h])
        if told:
            tell_row(told, (item[0], row, h, num_heads), positions, scores, i, origin, lo, hi)
    for block in range(first_block, end_block):
        tile, start = table[block] * num_heads * piece, block * size - origin
        after = table[block + 1] * num_heads * piece if block + 1 < end_block else tile
        sees, ends = max(lo, start), min(hi, start + size)
        for h in range(begin, end):
            prefetch(values, after + h * piece, piece)
            if new >= 0 and block + 1 == end_block:
                for d in range(dim):
                    values[tile + h * piece + position % size * dim + d] = newest[new + (num_heads + h) * dim + d]
            place = tile + h * piece + (sees - start) * dim
            mix(scores, (h - begin) * stride + sees, ends - sees, values, place, dim, mixed, (h - begin) * dim)
    for h in range(begin, end):
        _store_row(mixed, (h - begin) * dim, dim, out, (row * num_heads + h) * dim)


@numba.njit(**COMPILE)
def attend_item(
    q, keys, values, shape, tables, item, positions, first, last, scale, softcap, bias, newest, new, out, told
):
    """One item of `attend`.

    new >= 0: it has one row, its sequence's last, whose keys [K, D] and values, at newest[new] one after the other, are
    not in the cache yet. They enter with the block they belong to, which has to come near for this anyhow.
    """
    num_heads, num_key_heads, dim, size = shape
    group = num_heads // num_key_heads
    sequence, row, num_rows = item[0], item[1], item[2]
    first_block = first[row] // size  # nobody in the tile reads what lies before it
    num_blocks = (last[row + num_rows - 1] + size - 1) // size - first_block
    origin = first_block * size // LANES * LANES  # key of the first column: a softmax has the same lanes whatever
    lead = first_block * size - origin  # the row's neighbours need
    num = num_rows * group  # one row for each query head that reads a key head
    if num == 1:
        seen = first, last, scale, softcap, bias, newest, new
        _attend_alone(q, keys, values, shape, tables[sequence], item, positions, *seen, out, told)
        return
    stride = lanes_up(lead + num_blocks * size)
    scores, mixed = np.empty(num * stride, np.float32), np.empty(num * dim, np.float32)
    at, lo, hi = np.empty(num, np.int64), np.empty(num, np.int64), np.empty(num, np.int64)
    for r in range(num):
        lo[r], hi[r] = first[row + r // group] - origin, last[row + r // group] - origin
    for h in range(item[3], item[3] + item[4]):
        for r in range(num):
            at[r] = ((row + r // group) * num_heads + h * group + r % group) * dim
        tile = first_tile = (tables[sequence, first_block] * num_key_heads + h) * dim * size
        for j in range(num_blocks):  # while a single row works on one block, the next one is on its way
            after = first_tile
            if j + 1 < num_blocks:
                after = (tables[sequence, first_block + j + 1] * num_key_heads + h) * dim * size
            if num_rows == 1:  # several take longer over a block than it takes to come
                prefetch(keys if j + 1 < num_blocks else values, after, dim * size)
            if new >= 0 and j + 1 == num_blocks:
                place = tile + positions[row] % size
                for d in range(dim):
                    keys[place + d * size] = newest[new + h * dim + d]
            start = lead + j * size
            score_tile(q, at, lo, hi, keys, tile, dim, size, scores, stride, start)
            tile = after
        for r in range(num):
            head, position = h * group + r % group, positions[row + r // group] - origin
            _weigh(scores, r * stride, lo[r], hi[r], position, scale, softcap, bias[head])
            if told:
                place = (sequence, row + r // group, head, num_heads)
                tell_row(told, place, positions, scores, r * stride, origin, lo[r], hi[r])
        mixed[:] = 0
        for j in range(num_blocks):
            after = tile
            if j + 1 < num_blocks:
                after = (tables[sequence, first_block + j + 1] * num_key_heads + h) * dim * size
            if num_rows == 1 and j + 1 < num_blocks:
                prefetch(values, after, dim * size)
            elif num_rows == 1 and h + 1 < num_key_heads:
                prefetch(keys, first_tile + dim * size, dim * size)
            if new >= 0 and j + 1 == num_blocks:
                place = tile + positions[row] % size * dim
                for d in range(dim):
                    values[place + d] = newest[new + (num_key_heads + h) * dim + d]
            start = lead + j * size
            mix_tile(scores, stride, start, lo, hi, values, tile, dim, size, mixed)
            tile = after
        for r in range(num):
            _store_row(mixed, r * dim, dim, out, at[r])


@numba.njit(parallel=True, **COMPILE)
def attend(q, keys, values, shape, tables, items, positions, first, last, scale, softcap, bias, out, told):
    """out = softmax(scores) V for every query row.

    q [T, H, D] float32, keys [block, K, D, B], values [block, K, B, D] and out [T, H, D], of the type of values, all
    flat; shape (H, K, D, B); tables [sequence, J] int32; items [n, 5] int32: (sequence, first row, rows, first key
    head, key heads), the pieces that threads take: a few rows of one sequence and some heads; positions, first, last
    [T] int64: row t stands at positions[t] and sees keys first[t] <= k < last[t]; bias [H, 2 * reach - 1], or [H, 0];
    see `_make_scores`; told: address of a `ToldTable` of who wants the softmax itself, or 0.
    """
    newest, new = keys[:0], -1
    for i in numba.prange(len(items)):
        scores = first, last, scale, softcap, bias
        attend_item(q, keys, values, shape, tables, items[i], positions, *scores, newest, new, out, told)


@numba.njit(parallel=True, **COMPILE)
def attention_rows(q, rows, heads, keys, shape, table, positions, first, last, scale, softcap, bias, kind, out):
    """The attention of chosen rows and heads of one sequence, by the same steps as `attend`.

    rows, heads: int64; table [J]; out [heads, rows, keys]: keys out of sight are 0 in a pattern and -inf otherwise.
    """
    num_pieces = (len(rows) + _ROWS_TOGETHER - 1) // _ROWS_TOGETHER
    for item in numba.prange(len(heads) * num_pieces):
        h, r = item // num_pieces, item % num_pieces * _ROWS_TOGETHER
        some = rows[r : r + _ROWS_TOGETHER]
        seen_by = (positions, first, last, scale, softcap, bias)
        _rows_of_head(q, some, heads[h], keys, shape, table, seen_by, kind, out[h, r : r + len(some)])


@numba.njit(**COMPILE)
def _rows_of_head(q, rows, head, keys, shape, table, rule, kind, out):
    """Some rows of `attention_rows` of one head: out [rows, keys]."""
    num_heads, num_key_heads, dim, size = shape
    positions, first, last, scale, softcap, bias = rule
    first_block, end_block = first[rows].min() // size, (last[rows].max() + size - 1) // size
    origin = first_block * size // LANES * LANES
    stride = lanes_up(end_block * size - origin)
    scores = np.empty(len(rows) * stride, np.float32)
    at = (rows * num_heads + head) * dim
    everywhere = np.zeros(len(rows), np.int64), np.full(len(rows), stride)
    for j in range(first_block, end_block):
        tile = (table[j] * num_key_heads + head // (num_heads // num_key_heads)) * dim * size
        score_tile(q, at, *everywhere, keys, tile, dim, size, scores, stride, j * size - origin)
    for r in range(len(rows)):
        lo, hi = first[rows[r]] - origin, last[rows[r]] - origin
        begin, end = lo // LANES * LANES, lanes_up(hi)
        seen = scores[r * stride + begin : r * stride + end]
        if kind != DOTS:
            position = positions[rows[r]] - origin - begin
            _make_scores(seen, lo - begin, hi - begin, position, scale, softcap, bias[head])
        if kind == PATTERN:
            i = r * stride + begin
            _softmax(scores, i, end - begin, _largest(scores, i, end - begin))
        out[r] = np.float32(0) if kind == PATTERN else np.float32(-np.inf)
        out[r, origin + lo : origin + hi] = scores[r * stride + lo : r * stride + hi]


@numba.njit(parallel=True, **COMPILE)
def softmax_rows(scores, out):
    """softmax of scores [heads, rows, keys] as `attend` makes it of the same scores."""
    num_heads, num_rows, num_keys = scores.shape
    for item in numba.prange(num_heads * num_rows):
        h, r = item // num_rows, item % num_rows
        row = np.full(lanes_up(num_keys), -np.inf, np.float32)
        row[:num_keys] = scores[h, r]
        _softmax(row, 0, len(row), _largest(row, 0, len(row)))
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
            mix(pattern, item * num_keys + start, num, values, tile, dim, out, item * dim)
