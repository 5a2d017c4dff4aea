"""Rows of tables gathered on a CPU, added up and normalised, compiled by numba. A row's bits depend on its token and
position alone.

Axes: T rows, d model width, W 4-byte words of a row, N blocks of 64 rows of a packed table.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.layer_norm_kernels import norm_row
from model.layers.row_kernels import RowKernel
from model.layers.vectors import LANES, load, narrow, store, widen


def _unpack(ids, words, out):
    """out [T, W] = the rows `ids` [T] of words [N, W, 64]."""
    num_words, size = words.shape[1], words.shape[2]
    for t in numba.prange(len(ids)):
        block, place = ids[t] // size, ids[t] % size
        for w in range(num_words):
            out[t, w] = words[block, w, place]


def _unpack_and_widen(ids, words, out):
    """The same of words that are two bfloat16 each, as the bits of float32: out [T, 2 W]."""
    num_words, size = words.shape[1], words.shape[2]
    for t in numba.prange(len(ids)):
        block, place = ids[t] // size, ids[t] % size
        for w in range(num_words):
            both = words[block, w, place]
            out[t, 2 * w] = both << np.uint32(16)
            out[t, 2 * w + 1] = both & np.uint32(0xFFFF0000)


@numba.njit(**COMPILE)
def _add_row(x, i, width, out, o):
    """out[o : o + width] += x[i : i + width], rounded to the type of out."""
    whole = width - width % LANES
    for at in range(0, whole, LANES):
        store(out, o + at, load(out, o + at) + load(x, i + at))
    for at in range(whole, width):
        out.flat[o + at] = narrow(widen(out.flat[o + at]) + widen(x.flat[i + at]), out)


def _embed(ids, places, tokens, token_type, positions, weight, bias, eps, out):
    """out [T, d] = LayerNorm of the rows `ids` [T] of tokens [vocab, d] + token_type [d] + the rows `places` [T] of
    positions [context, d]. Either of the latter may be empty: nothing is added then.
    """
    width = out.shape[1]
    for t in numba.prange(len(ids)):
        o = np.int64(t) * width
        source, target = tokens[ids[t]], out[t]
        for i in range(width):
            target[i] = source[i]
        if len(token_type):
            _add_row(token_type, 0, width, out, o)
        if len(positions):
            _add_row(positions, places[t] * width, width, out, o)
        norm_row(out, o, width, weight, bias, eps, out, o)


unpack = RowKernel(_unpack, rows_from=64)
unpack_and_widen = RowKernel(_unpack_and_widen, rows_from=64)
embed = RowKernel(_embed, rows_from=64)
