"""The head's product for a few rows searched as it is made, compiled by numba: no logits are written, nor read again.

Every row's answer is the one that `search_kernels` finds in the product that `few_rows_kernels` would have written.

Axes: R rows, K inputs, N outputs.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.few_rows_kernels import BLOCK, multiply_columns
from model.layers.row_kernels import alone_and_shared
from model.layers.vectors import LANES, fma, load, store, sum_of_lanes, where_greater, zeros


@numba.njit(**COMPILE)
def _search_blocks(x, weights, chain, first, end, num_outputs, largest, columns):
    """The largest numbers of some blocks of columns, rounded to the type of x: lane by lane, each at its first column.

    largest [16 R] float32, -inf where nothing was seen yet; columns [16 R] float32: where the vector began, which
    float32 holds exactly up to 2**24. Returns whether all numbers are finite; if not, both are of no use.
    """
    num_rows, num_inputs = x.shape
    sums, rounded = np.empty(num_rows * BLOCK, np.float32), np.empty(LANES, x.dtype)
    unusual = zeros()  # times zero, infinity and NaN are NaN, all else is 0
    for block in range(first, end):
        multiply_columns(x, num_rows, weights, chain, num_inputs, block, sums)
        count = min(BLOCK, num_outputs - block * BLOCK)
        for r in range(num_rows):
            # The last column again where there are no more: among equals the first one is taken.
            for j in range(r * BLOCK + count, (r + 1) * BLOCK):
                sums[j] = sums[r * BLOCK + count - 1]
            best, at = load(largest, r * LANES), load(columns, r * LANES)
            for j in range(0, BLOCK, LANES):
                store(rounded, 0, load(sums, r * BLOCK + j))
                numbers = load(rounded, 0)
                at = where_greater(numbers, best, np.float32(block * BLOCK + j), at)
                best = where_greater(numbers, best, numbers, best)
                unusual = fma(numbers, np.float32(0), unusual)
            store(largest, r * LANES, best)
            store(columns, r * LANES, at)
    return not np.isnan(sum_of_lanes(unusual))


def _find_largest(x, weights, chain, num_outputs, finite, places, numbers):
    """numbers[r] = the largest of row r of x W^T, which stands first at places[r]. Returns whether all are finite; if
    not, nothing is found.

    x [R, K] and weights as `few_rows_kernels` has them, bfloat16 as its bits; N < 2**24; finite [threads] bool, to be
    overwritten; places [R] int64; numbers [R] float32.
    """
    num_rows, num_parts = len(x), len(finite)
    num_blocks = (num_outputs + BLOCK - 1) // BLOCK
    largest = np.full((num_parts, num_rows * LANES), -np.inf, np.float32)
    columns = np.zeros((num_parts, num_rows * LANES), np.float32)
    for part in numba.prange(num_parts):
        mine = np.int64(part)
        first, end = mine * num_blocks // num_parts, (mine + 1) * num_blocks // num_parts
        finite[mine] = _search_blocks(x, weights, chain, first, end, num_outputs, largest[mine], columns[mine])
    for r in range(num_rows):
        place, number = num_outputs, np.float32(-np.inf)
        for part in range(num_parts):
            for lane in range(LANES):
                here = largest[part, r * LANES + lane]
                column = np.int64(columns[part, r * LANES + lane]) + lane
                if here > number or (here == number and column < place):
                    place, number = column, here
        places[r], numbers[r] = place, number
    return finite.all()


find_largest_here, find_largest_shared = alone_and_shared(_find_largest)
"""`_find_largest` in this thread, and with its blocks shared among all."""
