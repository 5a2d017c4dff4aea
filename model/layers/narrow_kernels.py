"""Products of float32 rows with weights whose numbers are all bfloat16, on tiles (see `tiles`), compiled by numba.

A row's number is the sum of three bfloat16, exactly (`tile_kernels` says why), so that its product with a bfloat16 is
the sum of three, which the unit makes in float32: as precise as float32's own products, in half the memory and less
time. Every number is a function of its own row alone: products are added in one order, 32 inputs at a time, the
smallest part first, whatever stands beside the row. Infinity has no such parts: it becomes no number.

Axes: R rows, K inputs, a multiple of 32, N outputs. Weights lie [N / 64, K / 2, 64, 2], as oneDNN lays bfloat16, the
last block of 64 filled up. Rows are laid in tiles, [R / 16][K / 32][3][16][32].
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from model.layers.addresses import array_at
from model.layers.attention_kernels import COMPILE
from model.layers.block_sums import TILE
from model.layers.few_rows_kernels import BLOCK, store_columns
from model.layers.row_kernels import alone_and_shared
from model.layers.tile_kernels import lay_in_tiles
from model.layers.tile_weight import numbers_in_tiles
from model.layers.tiles import TILE_INPUTS, TILE_ROWS, fetch, give_up, has_tiles, multiply, read, shapes, use, write

PARTS = 3
"""bfloat16 numbers to a float32."""

_SHAPES = np.stack([shapes([max(rows, 1)] * 7 + [TILE_ROWS]) for rows in range(TILE_ROWS + 1)])
"""By the number of rows: sums 0 to 3, the rows' parts 4 to 6, weights 7."""

_AHEAD = 4096
"""Numbers by which weights are asked for before they are used (8 KB); in every pass, a tenth faster than in the first.
"""

_numbers_in_tiles = register_jitable(numbers_in_tiles)


@register_jitable
def num_parts(num_rows, num_inputs):
    """Numbers in tiles of so many rows."""
    return _numbers_in_tiles(num_rows, num_inputs, PARTS)


@numba.njit(inline="always")
def _multiply_parts(column, weights, at, stride):
    """Add to the sums of a constant column of tiles its products with all parts of the rows."""
    fetch(weights, at + _AHEAD, stride)
    read(7, weights, at, stride)
    multiply(column, 6, 7)
    multiply(column, 5, 7)
    multiply(column, 4, 7)


@numba.njit(**COMPILE)
def _sum_tile(laid, row, num_rows, weights, num_inputs, block, sums):
    """sums [16, 64] = up to 16 rows from `row` on, a multiple of 16, times one block of columns."""
    use(_SHAPES[num_rows])
    i, at, stride = row * num_inputs * PARTS, block * num_inputs * BLOCK, 4 * BLOCK
    for _ in range(0, num_inputs, TILE_INPUTS):
        read(4, laid, i, 2 * TILE_INPUTS)
        read(5, laid, i + TILE, 2 * TILE_INPUTS)
        read(6, laid, i + 2 * TILE, 2 * TILE_INPUTS)
        _multiply_parts(0, weights, at, stride)
        _multiply_parts(1, weights, at + 32, stride)
        _multiply_parts(2, weights, at + 64, stride)
        _multiply_parts(3, weights, at + 96, stride)
        i += PARTS * TILE
        at += TILE_INPUTS * BLOCK
    write(0, sums, 0, stride)
    write(1, sums, 16, stride)
    write(2, sums, 32, stride)
    write(3, sums, 48, stride)


@numba.njit(**COMPILE)
def _multiply_blocks(x, num_rows, address, num_inputs, bias, blocks, laid, sums, out):
    """`multiply_blocks` on a CPU that has tiles."""
    num_outputs, (first, end) = len(out) // num_rows, blocks
    weights = array_at(address, (num_outputs + BLOCK - 1) // BLOCK * BLOCK * num_inputs, laid)
    together = len(laid) // num_parts(TILE_ROWS, num_inputs) * TILE_ROWS
    for begin in range(0, num_rows, together):
        count = min(together, num_rows - begin)
        lay_in_tiles(x, begin * num_inputs, num_inputs, count, num_inputs, PARTS, laid)
        for block in range(first, end):
            for row in range(0, count, TILE_ROWS):
                num = min(TILE_ROWS, count - row)
                _sum_tile(laid, row, num, weights, num_inputs, block, sums)
                store_columns(sums, num, bias, block, num_outputs, out[(begin + row) * num_outputs :])
    give_up()


def multiply_blocks(x, num_rows, address, num_inputs, bias, blocks, laid, sums, out):
    """out [R, N] flat, in the columns of blocks[0] up to blocks[1] = x [R, K] W^T + bias [N] or empty.

    x: flat, of float32; address: of the weights; laid: uint16, where as many rows at a time lie in tiles as find room,
    16 at least; sums float32 [>= 1024]. The work of one thread: callers share the blocks. Only where the CPU
    `has_tiles`.
    """
    raise NotImplementedError("only for compiled code")


@overload(multiply_blocks)
def _multiply_blocks_overload(x, num_rows, address, num_inputs, bias, blocks, laid, sums, out):
    if isinstance(x.dtype, types.Integer) or not has_tiles():  # compiled, but never reached: there is no such weight
        return lambda x, num_rows, address, num_inputs, bias, blocks, laid, sums, out: None
    return lambda x, num_rows, address, num_inputs, bias, blocks, laid, sums, out: _multiply_blocks(  # noqa: PLW0108
        x, num_rows, address, num_inputs, bias, blocks, laid, sums, out
    )


def _multiply(starts, num_shares, x, address, bias, out):
    """out [R, N] = x [R, K] W^T + bias [N] or empty.

    starts [pieces + 1]: where pieces of rows begin, and R; each is made in so many shares of columns.
    """
    num_inputs, num_outputs = x.shape[1], out.shape[1]
    rows, numbers = x.ravel(), out.ravel()
    num_blocks = (num_outputs + BLOCK - 1) // BLOCK
    for item in numba.prange((len(starts) - 1) * num_shares):
        piece, share = item // num_shares, item % num_shares
        start, end = starts[piece], starts[piece + 1]
        laid = np.empty(num_parts(end - start, num_inputs), np.uint16)
        blocks = share * num_blocks // num_shares, (share + 1) * num_blocks // num_shares
        _multiply_blocks(
            *(rows[start * num_inputs : end * num_inputs], end - start, address, num_inputs, bias, blocks, laid),
            *(np.empty(TILE_ROWS * BLOCK, np.float32), numbers[start * num_outputs : end * num_outputs]),
        )


multiply_here, multiply_shared = alone_and_shared(_multiply)
"""`_multiply` in this thread, and with pieces and shares spread over all."""
