"""The head's product for a few rows searched as it is made, compiled by numba: no logits are written, nor read again.

Every row's answer is the one that `search_kernels` finds in the product that `few_rows_kernels`, or `narrow_kernels`,
would have written.

Axes: R rows, K inputs, N outputs.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.addresses import array_at
from model.layers.attention_kernels import COMPILE
from model.layers.few_rows_kernels import BLOCK, multiply_columns
from model.layers.narrow_kernels import multiply_blocks, num_parts
from model.layers.row_kernels import alone_and_shared
from model.layers.vectors import LANES, fma, load, store, sum_of_lanes, where_greater

NARROW = 0
"""The chain of a weight in bfloat16 that multiplies rows of float32: see `narrow_kernels`."""
_BLOCKS_TOGETHER = 32
"""Of a narrow weight: their product stays in the second cache, and rows are laid in tiles once for all of them."""


@numba.njit(**COMPILE)
def _search_block(numbers, i, stride, num_rows, column, count, rounded, found):
    """Note the largest of a block of columns of each row, numbers[i + r stride] and the 63 behind it: lane by lane, at
    the first column.

    count: how many there are, the rest is overwritten; rounded [16], of the type of the product; found: as
    `_find_largest` makes them for a thread.
    """
    largest, columns, unusual = found
    for r in range(num_rows):
        first = i + r * stride
        # The last column again where there are no more: among equals the first one is taken.
        for j in range(first + count, first + BLOCK):
            numbers[j] = numbers[first + count - 1]
        best, at, odd = load(largest, r * LANES), load(columns, r * LANES), load(unusual, 0)
        for j in range(0, BLOCK, LANES):
            store(rounded, 0, load(numbers, first + j))
            each = load(rounded, 0)
            at = where_greater(each, best, np.float32(column + j), at)
            best = where_greater(each, best, each, best)
            odd = fma(each, np.float32(0), odd)
        store(largest, r * LANES, best)
        store(columns, r * LANES, at)
        store(unusual, 0, odd)


@numba.njit(**COMPILE)
def _search_few(x, num_rows, address, chain, num_inputs, num_outputs, blocks, found):
    """Some blocks of columns of a weight as `few_rows_kernels` has it."""
    weights = array_at(address, (num_outputs + BLOCK - 1) // BLOCK * BLOCK * num_inputs, x)
    sums, rounded = np.empty(num_rows * BLOCK, np.float32), np.empty(LANES, x.dtype)
    for block in range(blocks[0], blocks[1]):
        multiply_columns(x, num_rows, weights, chain, num_inputs, block, sums)
        count = min(BLOCK, num_outputs - block * BLOCK)
        _search_block(sums, 0, BLOCK, num_rows, block * BLOCK, count, rounded, found)


@numba.njit(**COMPILE)
def _search_narrow(x, num_rows, address, num_inputs, num_outputs, blocks, found):
    """Some blocks of columns of a narrow weight."""
    laid, sums = np.empty(num_parts(num_rows, num_inputs), np.uint16), np.empty(16 * BLOCK, np.float32)
    product, rounded = np.empty(num_rows * _BLOCKS_TOGETHER * BLOCK, np.float32), np.empty(LANES, np.float32)
    for start in range(blocks[0], blocks[1], _BLOCKS_TOGETHER):
        count = min(_BLOCKS_TOGETHER, blocks[1] - start)
        piece, stride = address + start * BLOCK * num_inputs * 2, count * BLOCK
        multiply_blocks(
            *(x, num_rows, piece, num_inputs, product[:0], (0, count), laid, sums, product[: num_rows * stride])
        )
        for block in range(count):
            column = (start + block) * BLOCK
            rest = min(BLOCK, num_outputs - column)
            _search_block(product, block * BLOCK, stride, num_rows, column, rest, rounded, found)


def _find_largest(x, address, chain, num_outputs, finite, places, numbers):
    """numbers[r] = the largest of row r of x W^T, which stands first at places[r]. Returns whether all are finite; if
    not, nothing is found.

    x [R, K], bfloat16 as its bits; address and chain: of the weight, as `few_rows_kernels` takes them, or NARROW;
    N <= 2**24, as columns are noted in float32; finite [threads] bool, to be overwritten; places [R] int64; numbers [R]
    float32.
    """
    (num_rows, num_inputs), num_threads = x.shape, len(finite)
    num_blocks = (num_outputs + BLOCK - 1) // BLOCK
    largest = np.full((num_threads, num_rows * LANES), -np.inf, np.float32)
    columns = np.zeros((num_threads, num_rows * LANES), np.float32)  # where the vector began in which it stands
    unusual = np.zeros((num_threads, LANES), np.float32)  # times zero, infinity and NaN are NaN, all else is 0
    rows = x.ravel()
    for thread in numba.prange(num_threads):
        mine = np.int64(thread)
        blocks = mine * num_blocks // num_threads, (mine + 1) * num_blocks // num_threads
        found = largest[mine], columns[mine], unusual[mine]
        if chain == NARROW:
            _search_narrow(rows, num_rows, address, num_inputs, num_outputs, blocks, found)
        else:
            _search_few(rows, num_rows, address, chain, num_inputs, num_outputs, blocks, found)
        finite[mine] = not np.isnan(sum_of_lanes(load(unusual[mine], 0)))
    for r in range(num_rows):
        place, number = num_outputs, np.float32(-np.inf)
        for thread in range(num_threads):
            for lane in range(LANES):
                here = largest[thread, r * LANES + lane]
                column = np.int64(columns[thread, r * LANES + lane]) + lane
                if here > number or (here == number and column < place):
                    place, number = column, here
        places[r], numbers[r] = place, number
    return finite.all()


find_largest_here, find_largest_shared = alone_and_shared(_find_largest)
"""`_find_largest` in this thread, and with its blocks shared among all."""
