"""All layers of an encoder like BERT's (Devlin et al. 2018, arXiv:1810.04805) in one call, on a CPU with
tiles or with vectors in their stead (`block_sums`).

Texts know nothing of each other. So they are dealt out in groups, and a thread takes a group through all layers: what
lies between two products stays in its own cache, and nobody waits for anybody. Where there are fewer texts than threads
they share each product by its columns instead, attention by its heads, norms by rows, one after the other. Each step
is that of the ordinary way (`TileWeight`, `TileAttention`, `LayerNorm`), with the same bits.

Axes: T rows of all texts, L layers, d model width, H heads of D numbers, ff width of the mlp, P parts as in
`tile_kernels`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.addresses import array_at
from model.layers.attention_kernels import COMPILE
from model.layers.block_sums import BLOCK
from model.layers.layer_norm_kernels import norm_row
from model.layers.taking_turns import finish, take, wait_for
from model.layers.tile_attention_kernels import attend_text
from model.layers.tile_kernels import lay_in_tiles, multiply_tiles
from model.layers.tiles import TILE_ROWS
from model.layers.vectors import LANES, load, store

QKV, OUT, NORM, UP, DOWN, LAST_NORM = range(0, 12, 2)
"""Where a layer's row of the table of addresses has a weight, in tiles or of a norm; behind each, its bias."""
_PIECES = 6
"""Into which a layer is cut; before those of the first, rows are laid in tiles."""


@numba.njit(**COMPILE)
def _add_and_norm(y, added, row, num_rows, width, norm, eps, total):
    """Rows of y [T, d] from `row` on become the norm of themselves plus those of `added`. The sum is rounded first."""
    weight, bias = norm
    for r in range(num_rows):
        o = (row + r) * width
        for i in range(0, width, LANES):
            store(total, i, load(y, o + i) + load(added, r * width + i))
        norm_row(total, 0, width, weight, bias, eps, y, o)


@numba.njit(**COMPILE)
def _multiply(x, num, layer, place, shape, share, num_shares, rows, tiled):
    """`multiply_tiles` by a layer's weight at `place`, a share of its columns."""
    inputs, outputs, parts, _ = shape
    weight = array_at(layer[place], inputs * outputs * parts, x)
    bias = array_at(layer[place + 1], outputs, rows)
    blocks = outputs // BLOCK
    columns = blocks * share // num_shares * BLOCK, blocks * (share + 1) // num_shares * BLOCK
    multiply_tiles(x, num, weight, bias, shape, columns, rows, tiled)


@numba.njit(**COMPILE)
def _attend(laid, texts, first_rows, layer, shape, scale, share, num_shares, wide, tiled):
    """Queries, keys and values of a share of the heads, into `wide`, and what they mix, into `tiled`."""
    heads, dim, _, parts = shape
    width, row = heads * dim, first_rows[texts[0]]
    num = first_rows[texts[1]] - row
    first, last = heads * share // num_shares, heads * (share + 1) // num_shares
    weight = array_at(layer[QKV], width * 3 * width * parts, laid)
    bias = array_at(layer[QKV + 1], 3 * width, wide)
    for each in range(3):
        columns = each * width + first * dim, each * width + last * dim
        multiply_tiles(laid, num, weight, bias, (width, 3 * width, parts, 0), columns, wide, laid[:0])
    for text in range(texts[0], texts[1]):
        at, num_keys = first_rows[text] - row, first_rows[text + 1] - first_rows[text]
        own = heads, dim, parts, first, last
        attend_text(wide, at * 3 * width, num_keys, own, scale, wide[:0], tiled, at)


@numba.njit(**COMPILE)
def _add_norm_and_lay(wide, y, texts, first_rows, layer, place, shape, eps, share, num_shares, laid):
    """The norm of the stream y plus `wide`, of a share of the rows, also into tiles; y as it is where place is -1."""
    heads, dim, _, parts = shape
    width, row = heads * dim, first_rows[texts[0]]
    num = first_rows[texts[1]] - row
    tiles = (num + TILE_ROWS - 1) // TILE_ROWS
    begin, end = tiles * share // num_shares * TILE_ROWS, min(tiles * (share + 1) // num_shares * TILE_ROWS, num)
    if place >= 0:
        norm = array_at(layer[place], width, y), array_at(layer[place + 1], width, y)
        total = np.empty(width, y.dtype)
        _add_and_norm(y, wide[begin * width :], row + begin, end - begin, width, norm, eps, total)
    own = laid[begin * width * parts :]
    lay_in_tiles(y, (row + begin) * width, width, end - begin, width, parts, own)


@numba.njit(**COMPILE)
def _run_piece(piece, share, num_shares, texts, first_rows, y, layers, shape, scale, eps, tiled, rows):
    """One piece of a pass over the texts from texts[0] to texts[1], or a share of it."""
    heads, dim, ff, parts = shape
    width, num = heads * dim, first_rows[texts[1]] - first_rows[texts[0]]
    num_laid = (num + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS * parts
    laid, hidden, nowhere = tiled[: num_laid * width], tiled[num_laid * width :], tiled[:0]
    if piece == 0:
        _add_norm_and_lay(rows, y, texts, first_rows, layers[0], -1, shape, eps, share, num_shares, laid)
        return
    layer, kind = layers[(piece - 1) // _PIECES], (piece - 1) % _PIECES
    if kind == 0:
        _attend(laid, texts, first_rows, layer, shape, scale, share, num_shares, rows, hidden)
    elif kind == 1:
        _multiply(hidden, num, layer, OUT, (width, width, parts, 0), share, num_shares, rows, nowhere)
    elif kind == 2:
        _add_norm_and_lay(rows, y, texts, first_rows, layer, NORM, shape, eps, share, num_shares, laid)
    elif kind == 3:
        _multiply(laid, num, layer, UP, (width, ff, parts, 1), share, num_shares, rows, hidden)
    elif kind == 4:
        _multiply(hidden, num, layer, DOWN, (ff, width, parts, 0), share, num_shares, rows, nowhere)
    else:
        _add_norm_and_lay(rows, y, texts, first_rows, layer, LAST_NORM, shape, eps, share, num_shares, laid)


@numba.njit(**COMPILE)
def encode_here(counts, groups, num_shares, first_rows, y, layers, shape, scale, eps, tiled, rows):
    """What this thread takes of `encode_shared`'s work; all of it where no other does. tiled, rows: one's own, or
    everybody's where pieces are shared.
    """
    num_pieces = 1 + _PIECES * len(layers)
    while True:
        turn = take(counts)
        if num_shares == 1:
            if turn >= len(groups) - 1:
                return
            texts = groups[turn], groups[turn + 1]
            for piece in range(num_pieces):
                _run_piece(piece, 0, 1, texts, first_rows, y, layers, shape, scale, eps, tiled, rows)
        else:
            piece, share, texts = turn // num_shares, turn % num_shares, (groups[0], groups[1])
            if piece >= num_pieces:
                return
            wait_for(counts, piece * num_shares)
            _run_piece(piece, share, num_shares, texts, first_rows, y, layers, shape, scale, eps, tiled, rows)
            finish(counts)


@numba.njit(parallel=True, **COMPILE)
def encode_shared(num_threads, counts, groups, num_shares, first_rows, y, layers, shape, scale, eps, tiled, rows):
    """The stream y [T, d], flat, becomes the one behind all layers.

    num_threads: that take part; counts: for `taking_turns`; groups [n + 1]: the first text of each group of texts, and
    where the last one ends; num_shares: 1, or of the one group how many each piece is cut into; first_rows: the first
    row of each text, and T; layers [L, 12]: addresses; shape: (H, D, ff, P); tiled, rows: memory for each thread, or
    for all, [thread, numbers], for the largest group: in tiles, d and the larger of d and ff wide, and in rows, 3 d.
    """
    for thread in numba.prange(num_threads):
        own = thread % len(tiled)
        encode_here(counts, groups, num_shares, first_rows, y, layers, shape, scale, eps, tiled[own], rows[own])
