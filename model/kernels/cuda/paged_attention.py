"""Attention over a paged cache on a GPU, with the patterns of chosen rows and heads. Independent of requests.

A tile is some adjacent rows of one span. Its pairs of a row and a query head of one key head are split into chunks,
each for one program. Tiles of one row are too few to fill a GPU: several programs share the pieces of a row's keys, and
the last one to finish joins them. In a tile of several rows a program computes all pieces of its chunk. The pieces of a
row, and so its bits, are the same in both cases (model/kernels/cuda/attention_shapes.py).

Scores of a chosen row are written first, and replaced by its pattern after the row's largest score and sum are known.

Axes: T rows, H query heads, K key heads, G = H / K, D head dimension, B keys to a block.
"""

import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda import attention_pieces as pieces
from lightwell.model.kernels.cuda.attention_pieces import (
    attend_piece,
    begin_of,
    joined,
    pattern_of,
    piece_of,
    queries_of,
    seen_by,
    with_sinks,
    write_patterns,
)
from lightwell.model.kernels.cuda.attention_shapes import OPTIONS, TILE_ROWS, num_chunks, shape_of
from lightwell.model.kernels.cuda.dependent_launch import launch_options, wait_for_kernels_ahead
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.cuda.paged_keys import PagedKeys, Parts, PatternRows

PIECE = 128
"""Keys of each of the first pieces."""
PATTERN_KEYS = 128
"""Keys of a pattern in one write."""
SHARES = 4096
"""Programs for single rows with enough pieces. They fill a GPU several times, so that long rows do not finish last.
"""


@triton.jit
def attend_single_kernel(
    q, keys, values, blocks, table_starts, lengths, positions, tiles, window, bias, sinks,
    slots, row_slots, pattern_starts, pattern_strides, patterns, out,
    part_z, part_m, part_l, arrivals, stride_q, stride_bias, reach, scale, softcap, num_pieces,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, B: tl.constexpr, CHUNKS: tl.constexpr, PAIRS: tl.constexpr,
    WIDTH: tl.constexpr, KEYS: tl.constexpr, BASE: tl.constexpr, PER_LEVEL: tl.constexpr, LEVELS: tl.constexpr,
    PATTERN_KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_PATTERNS: tl.constexpr, WIDEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Attend with one row and some heads of one key head to a share of its pieces; the last share joins all."""
    wait_for_kernels_ahead(DEPENDENT)
    tile, key_head, chunk = tl.program_id(0), tl.program_id(1) // CHUNKS, tl.program_id(1) % CHUNKS
    span, row = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1)
    if tl.load(tiles + 3 * tile + 2) == 0:
        return
    # All loads of the row are issued before the first use.
    position, length, table = tl.load(positions + row), tl.load(lengths + span), blocks + tl.load(table_starts + span)
    pair, dim = chunk * PAIRS + tl.arange(0, PAIRS), tl.arange(0, WIDTH)
    is_pair = pair < G
    heads, rows = key_head * G + pair % G, row + pair * 0
    x = queries_of(q, rows, heads, stride_q, is_pair, D, WIDTH, WIDEN)
    pattern = pair * 0 - 1
    if HAS_PATTERNS:
        if tl.load(row_slots + row) >= 0:  # skips dependent loads for other rows
            pattern = pattern_of(rows, heads, is_pair, slots, row_slots, pattern_starts, pattern_strides)
    begin, end = seen_by(position, length, window, CAUSAL, HAS_WINDOW)
    # A row that sees no keys has no piece, and one program writes its zeros.
    first_piece = piece_of(begin, BASE, PER_LEVEL, LEVELS)
    piece_end = tl.where(begin < end, piece_of(tl.maximum(end - 1, 0), BASE, PER_LEVEL, LEVELS) + 1, first_piece)
    num_shares = tl.maximum(tl.minimum(piece_end - first_piece, tl.num_programs(2)), 1)
    if tl.program_id(2) >= num_shares:
        return
    for piece in range(first_piece + tl.program_id(2), piece_end, tl.num_programs(2)):
        first_key = tl.maximum(begin_of(piece, BASE, PER_LEVEL, LEVELS), begin)
        key_end = tl.minimum(begin_of(piece + 1, BASE, PER_LEVEL, LEVELS), end)
        m, l, z = attend_piece(
            x, keys, values, table, key_head, first_key, key_end, end, begin, end, position, heads,
            bias, stride_bias, reach, scale, softcap, patterns, pattern[:, None],
            K, D, B, PAIRS, WIDTH, KEYS, HAS_WINDOW, HAS_CAP, HAS_BIAS, HAS_PATTERNS, WIDEN,
        )  # fmt: skip
        part = (tile * (K * G) + heads).to(tl.int64) * num_pieces + piece
        tl.store(part_m + part, m, mask=is_pair)
        tl.store(part_l + part, l, mask=is_pair)
        tl.store(part_z + part[:, None] * D + dim[None, :], z, mask=is_pair[:, None] & (dim < D)[None, :])
    tl.debug_barrier()  # all threads write before one of them counts
    arrived = arrivals + tile * tl.num_programs(1) + tl.program_id(1)
    if tl.atomic_add(arrived, 1, sem="acq_rel") == num_shares - 1:
        tl.store(arrived, 0)  # for the next launch
        m, l, z = _all_joined(
            part_z, part_m, part_l, (tile * (K * G) + heads).to(tl.int64) * num_pieces, is_pair,
            first_piece, piece_end, D, PAIRS, WIDTH,
        )  # fmt: skip
        # Loaded again, so that they need no register while the keys are read.
        span, row = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1)
        at = row.to(tl.int64) * (K * G) + heads
        if sinks is not None:
            m, l, shrink = with_sinks(m, l, sinks, heads, is_pair)
            z = z * shrink[:, None]
        z = z / tl.where(l == 0.0, 1.0, l)[:, None]
        is_out = is_pair[:, None] & (dim < D)[None, :]
        tl.store(out + at[:, None] * D + dim[None, :], z.to(out.dtype.element_ty), mask=is_out)
        if HAS_PATTERNS:
            if tl.load(row_slots + row) >= 0:
                pattern = pattern_of(row + pair * 0, heads, is_pair, slots, row_slots, pattern_starts, pattern_strides)
                length = tl.load(lengths + span)
                begin, end = seen_by(tl.load(positions + row), length, window, CAUSAL, HAS_WINDOW)
                write_patterns(patterns, pattern, begin, end, length, m, l, PATTERN_KEYS)


@triton.jit
def _all_joined(
    part_z, part_m, part_l, parts, is_pair, first_piece, piece_end,
    D: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Join the pieces of pairs in the order of their keys: the largest scores [PAIRS], the sums of exponentials [PAIRS]
    and the sums of values [PAIRS, WIDTH]. `parts`: the index of each pair's piece 0. Other programs wrote the pieces,
    which may be missing in the multiprocessor's own cache.
    """
    dim = tl.arange(0, WIDTH)
    m = tl.full([PAIRS], float("-inf"), tl.float32)
    l = tl.zeros([PAIRS], tl.float32)
    z = tl.zeros([PAIRS, WIDTH], tl.float32)
    is_number = is_pair[:, None] & (dim < D)[None, :]
    for piece in range(first_piece, piece_end):
        part = parts + piece
        piece_m = tl.load(part_m + part, mask=is_pair, other=float("-inf"), cache_modifier=".cg")
        piece_l = tl.load(part_l + part, mask=is_pair, other=0.0, cache_modifier=".cg")
        at = part_z + part[:, None] * D + dim[None, :]
        m, l, z = joined(m, l, z, piece_m, piece_l, tl.load(at, mask=is_number, other=0.0, cache_modifier=".cg"))
    return m, l, z


@triton.jit
def attend_tiles_kernel(
    q, keys, values, blocks, table_starts, lengths, positions, tiles, window, bias, sinks,
    slots, row_slots, pattern_starts, pattern_strides, patterns, out,
    all_z, all_m, all_l, stride_q, stride_bias, reach, scale, softcap,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, B: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    KEYS: tl.constexpr, BASE: tl.constexpr, PER_LEVEL: tl.constexpr, LEVELS: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_PATTERNS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Attend with a chunk of a tile's pairs to all their pieces.

    Sums of values are in memory while the next piece is computed: two sums do not fit in a thread's registers.
    """
    tile, key_head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    span, row, num_rows = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if chunk * PAIRS >= num_rows * G:
        return
    pair, dim = chunk * PAIRS + tl.arange(0, PAIRS), tl.arange(0, WIDTH)
    is_pair = pair < num_rows * G
    rows, heads = row + pair // G, key_head * G + pair % G
    # Rows and positions are adjacent, and visible keys never begin or end earlier than in the previous row.
    position, length = tl.load(positions + row), tl.load(lengths + span)
    begin, _ = seen_by(position + chunk * PAIRS // G, length, window, CAUSAL, HAS_WINDOW)
    last = tl.minimum((chunk * PAIRS + PAIRS - 1) // G, num_rows - 1)
    _, end = seen_by(position + last, length, window, CAUSAL, HAS_WINDOW)
    own = (position + tl.minimum(pair // G, num_rows - 1))[:, None]
    begins, ends = seen_by(own, length, window, CAUSAL, HAS_WINDOW)
    x = queries_of(q, rows, heads, stride_q, is_pair, D, WIDTH, WIDEN)
    pattern = pair
    if HAS_PATTERNS:
        pattern = pattern_of(rows, heads, is_pair, slots, row_slots, pattern_starts, pattern_strides)
    table = blocks + tl.load(table_starts + span)
    m = tl.full([PAIRS], float("-inf"), tl.float32)
    l = tl.zeros([PAIRS], tl.float32)
    first_piece = piece_of(begin, BASE, PER_LEVEL, LEVELS)
    # One piece at least, so that rows without visible keys get zeros.
    piece_end = tl.maximum(piece_of(tl.maximum(end - 1, 0), BASE, PER_LEVEL, LEVELS), first_piece) + 1
    # In one dimension, so that addresses need few registers.
    program = (tile * K + key_head) * tl.num_programs(2) + chunk
    own_z = all_z + program.to(tl.int64) * (PAIRS * WIDTH) + tl.arange(0, PAIRS * WIDTH)
    for piece in range(first_piece, piece_end):
        first_key = tl.maximum(begin_of(piece, BASE, PER_LEVEL, LEVELS), begin)
        key_end = tl.minimum(begin_of(piece + 1, BASE, PER_LEVEL, LEVELS), end)
        piece_m, piece_l, piece_z = attend_piece(
            x, keys, values, table, key_head, first_key, key_end, end, begins, ends, own, heads,
            bias, stride_bias, reach, scale, softcap, patterns, pattern[:, None],
            K, D, B, PAIRS, WIDTH, KEYS, HAS_WINDOW, HAS_CAP, HAS_BIAS, HAS_PATTERNS, WIDEN,
        )  # fmt: skip
        z = tl.reshape(tl.load(own_z, mask=piece > first_piece, other=0.0), [PAIRS, WIDTH])
        m, l, z = joined(m, l, z, piece_m, piece_l, piece_z)
        tl.store(own_z, tl.reshape(z, [PAIRS * WIDTH]))
        tl.debug_barrier()  # another thread may load it
    # Loaded again, so that they need no register while the keys are read.
    row, num_rows = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    at = (row + pair // G).to(tl.int64) * (K * G) + key_head * G + pair % G
    is_pair = pair < num_rows * G
    z = tl.reshape(tl.load(own_z), [PAIRS, WIDTH])
    if sinks is not None:
        m, l, shrink = with_sinks(m, l, sinks, key_head * G + pair % G, is_pair)
        z = z * shrink[:, None]
    if HAS_PATTERNS:
        tl.store(all_m + at, m, mask=is_pair)
        tl.store(all_l + at, l, mask=is_pair)
    z = z / tl.where(l == 0.0, 1.0, l)[:, None]
    is_out = is_pair[:, None] & (dim < D)[None, :]
    tl.store(out + at[:, None] * D + dim[None, :], z.to(out.dtype.element_ty), mask=is_out)


@triton.jit
def write_patterns_kernel(
    all_m, all_l, lengths, positions, tiles, window, slots, row_slots, pattern_starts, pattern_strides, patterns,
    H: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Write the patterns of a tile's rows and one head, from the scores and sums of `attend_tiles_kernel`."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first_row, num_rows = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    place = tl.arange(0, ROWS)
    if tl.max(tl.load(row_slots + first_row + place, mask=place < num_rows, other=-1), 0) < 0:
        return  # graphs launch this for all tiles, and few of them have requested patterns
    length = tl.load(lengths + tl.load(tiles + 3 * tile))
    for i in range(0, num_rows):
        row = first_row + i + tl.arange(0, 1)
        begin, end = seen_by(tl.load(positions + first_row + i), length, window, CAUSAL, HAS_WINDOW)
        pattern = pattern_of(row, head, row >= 0, slots, row_slots, pattern_starts, pattern_strides)
        if tl.max(pattern, 0) >= 0:
            at = row.to(tl.int64) * H + head
            write_patterns(patterns, pattern, begin, end, length, tl.load(all_m + at), tl.load(all_l + at), KEYS)


def num_pieces(num_keys: int) -> int:
    """Return the number of pieces of `num_keys` keys."""
    return pieces.num_pieces(num_keys, PIECE)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: PagedKeys,
    tiles: Tensor,
    parts: Parts,
    out: Tensor,
    *,
    are_single: bool,
    scale: float,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    patterns: PatternRows | None = None,
) -> None:
    """Write softmax(scores) V of each tile's rows to `out`.

    A score is q.k * scale, then softcap * tanh(score / softcap), plus bias[h, key - query + reach - 1].

    Args:
        q: [T, H, D], each row contiguous, of the dtype of keys.
        keys, values: [block, K, B, D], contiguous; B is a multiple of 16.
        tiles: [tile, 3] int32: a span, its first row in the tile, and the number of rows, at most TILE_ROWS; tiles of 0
            rows are padding.
        parts: room for sums: `Parts.of_single_rows` of these tiles and at least `num_pieces` of the longest span, or
            `Parts.of_tiles` of these tiles.
        out: [T, H, D], contiguous.
        are_single: whether each tile has one row; several programs then share its pieces.
        bias: [H, 2 * reach - 1] float32, or None.
        sinks: [H] float32, a further score of each row, without a value; or None.
    """
    num_heads, num_key_heads, block_size, dim = q.shape[1], *keys.shape[1:]
    shape, has_patterns = shape_of(q.dtype, dim, has_bias=bias is not None), patterns is not None
    of_pieces = {"BASE": PIECE, "PER_LEVEL": pieces.PER_LEVEL, "LEVELS": pieces.LEVELS}
    rule = {"CAUSAL": seen.causal, "HAS_WINDOW": seen.window is not None}
    window = seen.window or 0
    written = (tiles,) * 5
    if patterns is not None:
        written = patterns.slots, patterns.row_slots, patterns.starts, patterns.strides, patterns.out
    rows = seen.lengths, seen.positions, tiles, window
    inputs = q, keys, values, seen.blocks, seen.table_starts, *rows, tiles if bias is None else bias, sinks
    reach = 0 if bias is None else (bias.shape[1] + 1) // 2
    numbers = q.stride(0), 0 if bias is None else bias.stride(0), reach, scale, softcap or 0.0
    group = num_heads // num_key_heads
    sizes = shape.sizes | {"K": num_key_heads, "G": group, "D": dim, "B": block_size, "WIDEN": IS_INTERPRETED}
    kinds = {"HAS_CAP": softcap is not None, "HAS_BIAS": bias is not None, "HAS_PATTERNS": has_patterns}
    if not are_single:
        attend_tiles_kernel[(len(tiles), num_key_heads, num_chunks(group * TILE_ROWS))](
            *inputs, *written, out, parts.z, parts.m, parts.l, *numbers,
            **sizes, **of_pieces, **rule, **kinds, **shape.launch,
        )  # fmt: skip
        if has_patterns:
            write_patterns_kernel[(len(tiles), num_heads)](
                parts.m, parts.l, *rows, *written, H=num_heads, ROWS=TILE_ROWS, KEYS=PATTERN_KEYS, **rule, **OPTIONS
            )
        return
    chunks, most = num_chunks(group), parts.m.shape[2]
    shares = min(most, triton.cdiv(SHARES, len(tiles) * num_key_heads * chunks))
    attend_single_kernel[(len(tiles), num_key_heads * chunks, shares)](
        *inputs, *written, out, parts.z, parts.m, parts.l, parts.arrivals, *numbers, most,
        CHUNKS=chunks, PATTERN_KEYS=PATTERN_KEYS, **sizes, **of_pieces, **rule, **kinds, **shape.launch,
        **launch_options(q.device),
    )  # fmt: skip
