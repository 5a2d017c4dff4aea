"""Attention over pieces of a row's keys, and the join of the pieces: shared functions of the kernels of
`paged_attention`.

Pieces begin at fixed positions. Each has a separate softmax, and they are joined in the order of their keys. So the
sums of a row have one order, independent of other rows and of the number of programs that share its pieces. The first
PER_LEVEL pieces have BASE keys each, the next PER_LEVEL four times that number, and the sizes grow LEVELS times. So a
short text has enough pieces to fill a GPU, and the sums of a long text fit in memory.

Sources: Flash-Decoding (Dao et al. 2023) for the split over keys; Milakov and Gimelshein 2018, arXiv:1805.02867, for
the softmax.

Axes: a pair is a row and one of the G query heads of a key head; D head dimension, B keys to a block.
"""

import triton
import triton.language as tl

PER_LEVEL = 16
"""Pieces of one size. It and BASE are powers of 2: divisions are then shifts, and need no registers."""
LEVELS = 4
"""Sizes of pieces; all later pieces have the last size. With more sizes a kernel would run out of predicates."""


def piece_begin(piece: int, base: int) -> int:
    """Return the position of the first key of a piece."""
    level = min(piece // PER_LEVEL, LEVELS - 1)
    return base * PER_LEVEL * ((1 << 2 * level) - 1) // 3 + (piece - level * PER_LEVEL) * (base << 2 * level)


def num_pieces(num_keys: int, base: int) -> int:
    """Return the number of pieces of the keys 0 .. num_keys - 1."""
    pieces = 0
    while piece_begin(pieces, base) < num_keys:
        pieces += 1
    return pieces


@triton.jit
def begin_of(piece, BASE: tl.constexpr, PER_LEVEL: tl.constexpr, LEVELS: tl.constexpr):
    """Return the position of the first key of a piece."""
    level = tl.minimum(piece // PER_LEVEL, LEVELS - 1)
    return _level_begin(level, BASE, PER_LEVEL) + (((piece - level * PER_LEVEL) * BASE) << 2 * level)


@triton.jit
def _level_begin(level, BASE: tl.constexpr, PER_LEVEL: tl.constexpr):
    """Return the position of the first key of a level: after PER_LEVEL pieces of each smaller size."""
    return BASE * PER_LEVEL * (((1 << 2 * level) - 1) // 3)


@triton.jit
def piece_of(key, BASE: tl.constexpr, PER_LEVEL: tl.constexpr, LEVELS: tl.constexpr):
    """Return the piece that contains the key at a position."""
    level = 0
    for i in tl.static_range(1, LEVELS):
        level += (key >= BASE * PER_LEVEL * (((1 << 2 * i) - 1) // 3)).to(tl.int32)
    return level * PER_LEVEL + ((key - _level_begin(level, BASE, PER_LEVEL)) >> 2 * level) // BASE


@triton.jit
def seen_by(position, length, window, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Return the first key that rows at these positions see, and the key after the last."""
    begin = position * 0
    end = begin + length
    if HAS_WINDOW:
        begin = tl.maximum(position - (window - 1), 0)
    if CAUSAL:
        end = tl.minimum(end, position + 1)
    elif HAS_WINDOW:
        end = tl.minimum(end, position + window)
    return begin, end


@triton.jit
def capped(s, softcap):
    """Return softcap * tanh(s / softcap)."""
    e = tl.exp(-2.0 * tl.abs(s / softcap))
    return softcap * tl.where(s < 0, e - 1.0, 1.0 - e) / (1.0 + e)


@triton.jit
def joined(m, l, z, piece_m, piece_l, piece_z):
    """Join the largest scores [pairs], the sums of exponentials [pairs] and the sums of values [pairs, D] of some keys
    with the same of later keys.
    """
    largest = tl.maximum(m, piece_m)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    shrink, piece_shrink = tl.exp(m - finite), tl.exp(piece_m - finite)
    l = l * shrink + piece_l * piece_shrink
    z = z * shrink[:, None] + piece_z * piece_shrink[:, None]
    return largest, l, z


@triton.jit
def attend_piece(
    x, keys, values, table, key_head, first_key, key_end, end, begins, ends, positions, heads,
    bias, stride_bias, reach, scale, softcap, patterns, pattern,
    K: tl.constexpr, D: tl.constexpr, B: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_PATTERNS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Attend with queries x [PAIRS, WIDTH] to the keys first_key <= k < key_end of one key head. Each pair sees the
    keys begins <= k < ends, and no pair sees keys from `end`.

    Returns the largest scores, the sums of exponentials and the sums of values. Pairs with a `pattern` index that is
    not negative write their scores to `patterns` from this index; the scores of hidden keys are -inf.
    """
    dim, place = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    m = tl.full([PAIRS], float("-inf"), tl.float32)
    l = tl.zeros([PAIRS], tl.float32)
    z = tl.zeros([PAIRS, WIDTH], tl.float32)
    for i in range(first_key // KEYS, tl.cdiv(key_end, KEYS)):
        key = i * KEYS + place
        # Memory after the end may contain NaN, which a weight of 0 would not remove. Before a window there are keys of
        # the same span.
        is_there = key < end
        if B % KEYS == 0:  # all keys are in one block, which needs fewer registers for its address
            block = tl.load(table + i * KEYS // B).to(tl.int64)
            start = ((block * K + key_head) * B + i * KEYS % B) * D + place * D
        else:
            blocks = tl.load(table + key // B, mask=is_there, other=0).to(tl.int64)
            start = ((blocks * K + key_head) * B + key % B) * D
        is_key, is_value = is_there[None, :], is_there[:, None]
        if WIDTH != D:
            is_key, is_value = is_key & (dim < D)[:, None], is_value & (dim < D)[None, :]
        k = tl.load(keys + (start[None, :] + dim[:, None]), mask=is_key, other=0.0)
        v = tl.load(values + (start[:, None] + dim[None, :]), mask=is_value, other=0.0)
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)
        s = tl.dot(x, k, input_precision="ieee") * scale
        if HAS_CAP:
            s = capped(s, softcap)
        sees = key[None, :] < ends
        if HAS_WINDOW:
            sees = sees & (key[None, :] >= begins)
        if HAS_BIAS:
            distance = key[None, :] - positions + (reach - 1)
            s += tl.load(bias + (heads * stride_bias)[:, None] + distance, mask=is_there[None, :], other=0.0)
        s = tl.where(sees, s, float("-inf"))
        if HAS_PATTERNS:
            tl.store(patterns + (pattern + key[None, :]), s, mask=(pattern >= 0) & is_there[None, :])
        largest = tl.maximum(m, tl.max(s, 1))
        finite = tl.where(largest == float("-inf"), 0.0, largest)
        p = tl.exp(s - finite[:, None])
        shrink = tl.exp(m - finite)
        l = l * shrink + tl.sum(p, 1)
        z = tl.dot(p.to(values.dtype.element_ty).to(v.dtype), v, z * shrink[:, None], input_precision="ieee")
        m = largest
    return m, l, z


@triton.jit
def with_sinks(m, l, sinks, heads, is_pair):
    """Return the largest scores and the sums of exponentials [pairs], both with the sinks of the heads, and the factor
    of the sums of values.
    """
    sink = tl.load(sinks + heads, mask=is_pair, other=0.0)
    largest = tl.maximum(m, sink)
    shrink = tl.exp(m - largest)
    return largest, l * shrink + tl.exp(sink - largest), shrink


@triton.jit
def queries_of(q, rows, heads, stride_q, is_pair, D: tl.constexpr, WIDTH: tl.constexpr, WIDEN: tl.constexpr):
    """Return the queries [pairs, WIDTH] of pairs of a row and a head."""
    dim = tl.arange(0, WIDTH)
    x = tl.load(
        q + rows.to(tl.int64)[:, None] * stride_q + (heads * D)[:, None] + dim[None, :],
        mask=is_pair[:, None] & (dim < D)[None, :],
        other=0.0,
    )
    return x.to(tl.float32) if WIDEN else x


@triton.jit
def pattern_of(rows, heads, is_pair, slots, row_slots, starts, strides):
    """Return the index of each pair's pattern among all patterns, or -1 if it is not requested."""
    row_slot = tl.load(row_slots + rows, mask=is_pair, other=-1)
    slot = tl.load(slots + row_slot + heads, mask=row_slot >= 0, other=-1)
    start = tl.load(starts + rows, mask=slot >= 0, other=0)
    stride = tl.load(strides + rows, mask=slot >= 0, other=0)
    return tl.where(slot >= 0, start + slot * stride, -1)


@triton.jit
def write_patterns(patterns, pattern, begin, end, length, m, l, KEYS: tl.constexpr):
    """Replace the scores of keys begin <= k < end by their softmax, and other keys under `length` by 0, for pairs [n]
    with a `pattern` index that is not negative. m and l [n]: the largest scores and the sums of exponentials.
    """
    place = tl.arange(0, KEYS)
    is_asked, is_blind = pattern >= 0, l == 0.0
    largest, total = tl.where(is_blind, 0.0, m), tl.where(is_blind, 1.0, l)
    for i in range(0, tl.cdiv(length, KEYS)):
        key = (i * KEYS + place)[None, :]
        at = patterns + (pattern[:, None] + key)
        sees = (key >= begin) & (key < end)
        # Other programs wrote scores, which may be missing in the multiprocessor's own cache.
        s = tl.load(at, mask=is_asked[:, None] & sees, other=float("-inf"), cache_modifier=".cg")
        share = tl.where(sees, tl.exp(s - largest[:, None]) / total[:, None], 0.0)
        tl.store(at, share, mask=is_asked[:, None] & (key < length))
