"""Attention within whole texts on tiles of the matrix unit, compiled by numba: every row of a text sees all of it.

Keys are a weight that queries are multiplied by, values one that patterns are: as in `tile_kernels`, with its parts and
its precision. A pattern is e**(score - largest), divided by its sum behind the product with the values; in bfloat16 it
is rounded before that, much as `transformers` rounds it. Every number depends on its own text alone.

Axes: T rows of all texts, n of one, N the same up to whole blocks, H heads, D head dimension, P parts of a number.
Arrays of tensors come flat.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.block_sums import BLOCK, TILE, done, ready, sum_block
from model.layers.tile_kernels import lay_in_tiles, store_pairs_of_parts, store_parts
from model.layers.tiles import TILE_INPUTS, TILE_ROWS
from model.layers.vectors import LANES, exp, fma, largest_lane, load, store, sum_of_lanes, where_greater, zeros


@numba.njit(**COMPILE)
def _lay_keys(qkv, i, stride, num_keys, size, heads, dim, parts, like):
    """Keys as a weight [N, D] of each head; the first is at qkv[i], the next `stride` further."""
    width = heads * dim
    laid = np.zeros(size * width * parts, like.dtype)
    lay_in_tiles(qkv, i, stride, num_keys, width, parts, laid)
    weight = np.empty(size * width * parts, like.dtype)
    words = TILE_INPUTS * like.itemsize // 4
    pairs, turned = laid.view(np.uint32), weight.view(np.uint32)
    steps = dim // TILE_INPUTS
    for tile in range(size // TILE_ROWS * heads * steps):  # of 16 keys and 32 of their dimensions
        rows, rest = tile // (heads * steps), tile % (heads * steps)
        head, step = rest // steps, rest % steps
        block = head * size // BLOCK + rows // 2
        for part in range(parts):
            a = (tile * parts + part) * TILE_ROWS * words
            b = (((block * steps + step) * parts + part) * 2 + rows % 2) * TILE_ROWS * words
            for pair in range(words):
                for key in range(TILE_ROWS):
                    turned[b + pair * TILE_ROWS + key] = pairs[a + key * words + pair]
    return weight


@numba.njit(**COMPILE)
def _lay_values(qkv, i, stride, num_keys, size, heads, dim, parts, like):
    """Values as a weight [D, N] of each head, as `_lay_keys`."""
    width = heads * dim
    weight = np.zeros(size * width * parts, like.dtype)
    for key in range(0, num_keys, 2):
        at, place = i + key * stride, key // BLOCK * parts * 2 * TILE + key % BLOCK // 2 * BLOCK
        for d in range(0, width, LANES):
            even = load(qkv, at + d)
            odd = load(qkv, at + stride + d) if key + 1 < num_keys else zeros()
            o = d // BLOCK * BLOCK * size * parts + d % BLOCK // LANES * TILE
            store_pairs_of_parts(even, odd, weight, place + o, parts)
    return weight


@numba.njit(**COMPILE)
def _exponentiate(scores, num_rows, size, num_keys, scale, unseen, parts, pattern, inverse):
    """Rows of scores [32, N], scaled, become those of `pattern` in tiles, and 1 / their sums. unseen [N]: 0, or -inf
    from num_keys on; pattern is 0 where there are no keys.
    """
    end = (num_keys + LANES - 1) // LANES * LANES
    for r in range(num_rows):
        row = r * size
        top = fma(load(scores, row), scale, load(unseen, 0))
        store(scores, row, top)
        for k in range(LANES, end, LANES):
            scaled = fma(load(scores, row + k), scale, load(unseen, k))
            store(scores, row + k, scaled)
            top = where_greater(scaled, top, scaled, top)
        largest, total = largest_lane(top), zeros()
        o = (r // TILE_ROWS * size * TILE_ROWS) * parts + r % TILE_ROWS * TILE_INPUTS
        for k in range(0, end, LANES):
            weights = exp(load(scores, row + k) - largest)
            store_parts(weights, pattern, o + k // TILE_INPUTS * parts * TILE + k % TILE_INPUTS, parts)
            total = total + weights
        inverse[r] = np.float32(1) / sum_of_lanes(total)


@numba.njit(**COMPILE)
def _finish_mix(sums, num_rows, inverse, width, column, parts, z, o, tiled, row):
    """32 columns of rows of sums, each row times its number of `inverse`, into z from z[o] on, or `tiled`, from its row
    and column on, where that has room.
    """
    for r in range(num_rows):
        for half in range(0, BLOCK, LANES):
            mixed = load(sums, r * BLOCK + half) * inverse[r]
            if len(tiled):
                at = ((row + r) // TILE_ROWS * width + column) * TILE_ROWS * parts
                store_parts(mixed, tiled, at + (row + r) % TILE_ROWS * TILE_INPUTS + half, parts)
            else:
                store(z, o + r * width + half, mixed)


@numba.njit(**COMPILE)
def attend_text(qkv, i, num_keys, shape, scale, z, tiled, row):
    """softmax(scale q K^T) V of the text whose qkv [n, 3, H, D] begins at qkv[i], into z [n, H D], or into `tiled` from
    its row `row` on where that has room.

    shape: (H, D, P, the first head, and the one behind the last).
    """
    heads, dim, parts, first, last = shape
    width, size, num_heads = heads * dim, (num_keys + BLOCK - 1) // BLOCK * BLOCK, last - first
    own, stride = num_heads * dim, 3 * width
    begin = i + first * dim
    keys = _lay_keys(qkv, begin + width, stride, num_keys, size, num_heads, dim, parts, tiled)
    values = _lay_values(qkv, begin + 2 * width, stride, num_keys, size, num_heads, dim, parts, tiled)
    queries = np.empty(size * own * parts, tiled.dtype)
    lay_in_tiles(qkv, begin, stride, num_keys, own, parts, queries)
    pattern, inverse = np.zeros(BLOCK * size * parts, tiled.dtype), np.empty(BLOCK, np.float32)
    scores, sums = np.empty(BLOCK * size, np.float32), np.empty(BLOCK * BLOCK, np.float32)
    unseen = np.zeros(size, np.float32)
    unseen[num_keys:] = -np.inf
    ready()
    for start in range(0, num_keys, BLOCK):
        num = min(BLOCK, num_keys - start)
        for head in range(num_heads):
            a, b, second = (start * own + head * dim * TILE_ROWS) * parts, head * dim * size * parts, TILE_ROWS * parts
            for key in range(0, size, BLOCK):
                at = b + key * dim * parts
                sum_block(queries, a, a + second * own, num, keys, at, 0, dim, parts, scores, key, size)
            _exponentiate(scores, num, size, num_keys, scale, unseen, parts, pattern, inverse)
            for d in range(0, dim, BLOCK):
                at, column = b + d * size * parts, (first + head) * dim + d
                sum_block(pattern, 0, second * size, num, values, at, 0, size, parts, sums, 0, BLOCK)
                _finish_mix(sums, num, inverse, width, column, parts, z, start * width + column, tiled, row + start)
    done()


@numba.njit(parallel=True, **COMPILE)
def attend_texts(texts, first_rows, qkv, shape, scale, z, nowhere):
    """softmax(scale q K^T) V of texts, into z [T, H, D]. texts [n]: which; first_rows: of each text, and T; qkv
    [T, 3, H, D]; shape (H, D, P).
    """
    heads, dim, parts = shape
    width = heads * dim
    for text in numba.prange(len(texts)):
        row = first_rows[texts[text]]
        num_keys = first_rows[texts[text] + 1] - row
        own = z[row * width : (row + num_keys) * width]
        attend_text(qkv, row * 3 * width, num_keys, (heads, dim, parts, 0, heads), scale, own, nowhere, 0)
