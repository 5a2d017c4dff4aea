"""A whole layer of an encoder like BERT's (Devlin et al. 2018, arXiv:1810.04805) in one call, on a CPU with tiles.

Texts are dealt out in groups, and a thread takes a group through the whole layer, so that what lies between two
products stays in its own cache and nobody waits for anybody. Each step is that of the ordinary way (`TileWeight`,
`TileAttention`, `LayerNorm`), with the same bits.

Axes: T rows of all texts, d model width, H heads of D numbers, ff width of the mlp, P parts as in `tile_kernels`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np
from numba.np.ufunc.parallel import get_thread_id

from model.layers.attention_kernels import COMPILE
from model.layers.layer_norm_kernels import norm_row
from model.layers.row_kernels import RowKernel
from model.layers.tile_attention_kernels import attend_text
from model.layers.tile_kernels import lay_in_tiles, multiply_tiles
from model.layers.tiles import TILE_ROWS
from model.layers.vectors import LANES, load, store


@numba.njit(**COMPILE)
def _add_and_norm(x, added, row, num_rows, width, norm, eps, total, out):
    """Rows of out [T, d] from `row` on: the norm of those of x plus those of `added`, which begins there.

    The sum is rounded first.
    """
    weight, bias = norm
    for r in range(num_rows):
        o = (row + r) * width
        for i in range(0, width, LANES):
            store(total, i, load(x, o + i) + load(added, r * width + i))
        norm_row(total, 0, width, weight, bias, eps, out, o)


@numba.njit(**COMPILE)
def _encode_group(first_rows, begin, end, x, qkv, out, norm, up, down, last_norm, shape, scale, eps, tiled, rows, y):
    """`_encode_layer` of the texts from `begin` to `end`; tiled, rows: this thread's own."""
    heads, dim, ff, parts = shape
    width, row = heads * dim, first_rows[begin]
    num = first_rows[end] - row
    num_laid = (num + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS * parts
    laid, hidden, nowhere = tiled[: num_laid * width], tiled[num_laid * width :], tiled[:0]
    wide, z, total = rows[: num * 3 * width], rows[num * 3 * width :], np.empty(width, x.dtype)
    lay_in_tiles(x, row * width, width, num, width, parts, laid)
    multiply_tiles(laid, num, qkv[0], qkv[1], (width, 3 * width, parts, 0), (0, 3 * width), wide, nowhere)
    for text in range(begin, end):
        at, num_keys = (first_rows[text] - row) * width, first_rows[text + 1] - first_rows[text]
        attend_text(wide, 3 * at, num_keys, (heads, dim, parts), scale, z, at)
    lay_in_tiles(z, 0, width, num, width, parts, laid)
    multiply_tiles(laid, num, out[0], out[1], (width, width, parts, 0), (0, width), wide, nowhere)
    _add_and_norm(x, wide, row, num, width, norm, eps, total, y)
    lay_in_tiles(y, row * width, width, num, width, parts, laid)
    multiply_tiles(laid, num, up[0], up[1], (width, ff, parts, 1), (0, ff), wide, hidden)
    multiply_tiles(hidden, num, down[0], down[1], (ff, width, parts, 0), (0, width), wide, nowhere)
    _add_and_norm(y, wide, row, num, width, last_norm, eps, total, y)


def _encode_layer(groups, first_rows, x, qkv, out, norm, up, down, last_norm, shape, scale, eps, tiled, rows, y):
    """y = the stream behind a layer, x the one before it, [T, d] flat.

    groups [n + 1]: the first text of each group of texts, and their number; first_rows: the first row of each text, and
    T; qkv, out, up, down: (weight in tiles, bias); norm, last_norm: (weight, bias) of the norms behind the sums; shape:
    (H, D, ff, P); tiled, rows: memory of each thread [thread, numbers], for the largest group: in tiles, d + ff wide,
    and in rows, 4 d wide.
    """
    for group in numba.prange(len(groups) - 1):
        begin, end, thread = groups[group], groups[group + 1], get_thread_id()
        weights = qkv, out, norm, up, down, last_norm
        _encode_group(first_rows, begin, end, x, *weights, shape, scale, eps, tiled[thread], rows[thread], y)


encode_layer = RowKernel(_encode_layer, rows_from=3)
"""Two groups, of which `groups` has three numbers, are worth waking another thread."""
