"""Rows of tables gathered on a CPU, compiled by numba. A row's bits depend on its token and position alone.

Axes: T rows, W 4-byte words of a row, N blocks of 64 rows of a packed table.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.row_kernels import RowKernel


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


unpack = RowKernel(_unpack, rows_from=64)
unpack_and_widen = RowKernel(_unpack_and_widen, rows_from=64)
