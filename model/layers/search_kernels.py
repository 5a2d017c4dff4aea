"""Searches along rows on a CPU, compiled by numba: at memory's speed, where torch's and numpy's take each number alone.

Every answer is exact and depends on its own row alone. bfloat16 arrives as its bits in uint16.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.row_kernels import RowKernel
from model.layers.vectors import LANES, fma, largest_lane, load, prefetch, sum_of_lanes, where_greater, widen, zeros

_STRIDE = 4 * LANES
_PIECE = 16 * _STRIDE
"""Numbers whose largest is known before the place of any: what is searched again for the place."""


@numba.njit(**COMPILE)
def _first_of(x, t, start, number):
    """The first i >= start with x[t, i] = number, which is there; the first that is no number where that is none."""
    for i in range(start, x.shape[1]):
        if widen(x[t, i]) == number or (np.isnan(number) and np.isnan(widen(x[t, i]))):
            return i
    return start


@numba.njit(**COMPILE)
def _largest_by_one(x, t):
    """The largest number of row t, NaN where it holds one."""
    largest = np.float32(-np.inf)
    for i in range(x.shape[1]):
        number = widen(x[t, i])
        if np.isnan(number):
            return number
        largest = max(number, largest)
    return largest


def _argmax(x, places, numbers):
    """numbers[t] = x[t, places[t]] = the largest number of x[t], at its first place; a NaN where it holds one.

    x [R, V]; places [R] int64; numbers [R] float32.
    """
    width = x.shape[1]
    whole = width - width % _STRIDE
    for t in numba.prange(len(x)):
        first = t * width
        largest, at = np.float32(-np.inf), 0
        unusual = zeros()  # times zero, infinity and NaN are NaN, all else is 0
        for piece in range(0, whole, _PIECE):
            a, b, c, d = largest + zeros(), largest + zeros(), largest + zeros(), largest + zeros()
            # What the head's product wrote has left this core's caches, and fetching by itself ends with each page.
            prefetch(x, first + piece + 2 * _PIECE, _PIECE)
            for i in range(first + piece, first + min(whole, piece + _PIECE), _STRIDE):
                p, q, r, s = load(x, i), load(x, i + LANES), load(x, i + 2 * LANES), load(x, i + 3 * LANES)
                a, b = where_greater(p, a, p, a), where_greater(q, b, q, b)
                c, d = where_greater(r, c, r, c), where_greater(s, d, s, d)
                unusual = fma((p + q) + (r + s), np.float32(0), unusual)
            a, c = where_greater(a, b, a, b), where_greater(c, d, c, d)
            largest_here = largest_lane(where_greater(a, c, a, c))
            if largest_here > largest:
                largest, at = largest_here, piece
        rest = np.float32(0)
        for i in range(whole, width):
            number = widen(x[t, i])
            rest += number * np.float32(0)
            if number > largest:
                largest, at = number, i
        rest += sum_of_lanes(unusual)
        if np.isnan(rest):
            largest, at = _largest_by_one(x, t), 0
        places[t], numbers[t] = _first_of(x, t, at, largest), largest


argmax = RowKernel(_argmax, rows_from=8)
