"""Products of few rows with weights that oneDNN has packed, compiled by numba, with the bits of oneDNN's own products.

A decode step reads every weight once for a handful of rows; as a function among others of numba's such a product costs
no call of an operator, and the memory behind what is read can be asked for in time. What makes the bits equal is the
order of a sum, which `few_rows` tries out before it trusts this file:

- float32: the inputs are cut into chains of so many; a chain is one multiply-add after the other, from 0; the chains'
  sums are added up in order. Weights lie [N / 64, K, 64].
- bfloat16 with tiles: what the matrix unit does, 32 inputs at a time (`tiles`). Weights lie [N / 64, K / 2, 64, 2].
- bfloat16 without: as float32, but two inputs at a time (VDPBF16PS), from the same memory.

Axes: R rows, K inputs, N outputs, the last block of 64 filled up with zeros.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import overload

from model.layers.attention_kernels import COMPILE
from model.layers.tiles import (
    TILE_INPUTS,
    TILE_ROWS,
    clear,
    fetch,
    give_up,
    has_tiles,
    intrinsic,
    multiplies_bfloat16,
    multiply,
    read,
    shapes,
    use,
    write,
)
from model.layers.vector_code import BYTE, FLOATS, INDEX, INT, PAIRS, fetch_line, multiply_add, plus, pointer, spread
from model.layers.vectors import LANES, load, narrow, store, widen, zeros

BLOCK = 64
"""Outputs that lie side by side, and are computed together."""

MOST_ROWS = 128
"""Of a step in one call. From 65 on oneDNN's products are as fast, but not what stands between them."""

_ROWS_TOGETHER = 6
"""Rows whose sums over a block, four vectors each, stay in registers. Twice as many over half a block, which halve how
often weights are read again, take a tenth longer: memory is then read two lines here and two lines there.
"""

_AHEAD = 8192
"""Bytes by which weights are asked for before they are used, into the first cache: a quarter faster than not at all,
from 2 KB on; into the second cache alone half of that.
"""

_TILE_SHAPES = np.stack([shapes([min(rows, TILE_ROWS)] * 5 + [TILE_ROWS] * 3) for rows in range(TILE_ROWS + 1)])
"""For `_by_one_tile`, by its number of rows: sums 0 to 3, rows 4, weights 5 to 7."""

_TWO_TILE_SHAPES = np.stack([shapes([16, 16, rows, rows, 16, rows, 16, 16]) for rows in range(TILE_ROWS + 1)])
"""For `_by_two_tiles`, by its number of rows beyond 16: sums 0 to 3, rows 4 and 5, weights 6 and 7."""


@intrinsic
def _add_chain(typingctx, num_rows, x, i, stride, weights, at, count, sums, s):
    """sums[s + 64 r + j] += the chain over k of x[i + r * stride + k] * weights[at + 64 k + j], each j < 64 and
    each r < num_rows, a constant, k from 0 to count. All float32 and contiguous, indexed as if they had one axis; or x
    and weights bfloat16 as bits, k then over pairs of numbers that lie side by side.

    Written for LLVM as it stands, since numba gives no way to keep so many sums in registers for certain.
    """
    if not isinstance(num_rows, types.IntegerLiteral):
        raise TypingError(f"how many rows stay in registers is a constant, not {num_rows}")
    rows = range(num_rows.literal_value)
    together = 2 if isinstance(x.dtype, types.Integer) else 1
    word, words = (INT, PAIRS) if together == 2 else (ir.FloatType(), FLOATS)
    places = range(0, BLOCK, LANES)

    def codegen(context, builder, signature, args):
        x, weights, sums = (context.make_array(signature.args[n])(context, builder, args[n]).data for n in (1, 4, 7))
        _, _, i, stride, _, at, count, _, s = args
        starts = [plus(builder, i, builder.mul(stride, ir.Constant(INDEX, r))) for r in rows]
        nothing = ir.Constant(FLOATS, [0.0] * LANES)
        totals = {(r, place): cgutils.alloca_once_value(builder, nothing) for r in rows for place in places}
        with cgutils.for_range(builder, count) as loop:
            line = plus(builder, at, builder.mul(loop.index, ir.Constant(INDEX, BLOCK * together)))
            k = builder.mul(loop.index, ir.Constant(INDEX, together))
            for place in places:
                far = plus(builder, line, together * place, _AHEAD * together // 4)
                fetch_line(builder, pointer(builder, weights, far, BYTE))
            w = {
                place: builder.load(pointer(builder, weights, plus(builder, line, together * place), words), align=4)
                for place in places
            }
            numbers = [builder.load(pointer(builder, x, plus(builder, start, k), word), align=4) for start in starts]
            lanes = [spread(builder, number) for number in numbers]
            for (r, place), total in totals.items():
                builder.store(multiply_add(builder, lanes[r], w[place], builder.load(total)), total)
        for (r, place), total in totals.items():
            to = pointer(builder, sums, plus(builder, s, BLOCK * r + place), FLOATS)
            builder.store(builder.fadd(builder.load(to, align=4), builder.load(total)), to, align=4)
        return context.get_dummy_value()

    signature = types.none(num_rows, x, types.intp, types.intp, weights, types.intp, types.intp, sums, types.intp)
    return signature, codegen


@numba.njit(**COMPILE)
def _by_vectors(x, num_rows, weights, chain, num_inputs, block, sums):
    """`multiply_columns` in float32, or in bfloat16 without tiles."""
    together = 4 // x.itemsize
    for i in range(0, num_rows * BLOCK, LANES):
        store(sums, i, zeros())
    for first in range(0, num_inputs, chain):
        count = min(chain, num_inputs - first) // together
        at = (block * num_inputs + first) * BLOCK
        for r in range(0, num_rows, _ROWS_TOGETHER):
            i, s, left = r * num_inputs + first, r * BLOCK, num_rows - r
            if left >= _ROWS_TOGETHER:
                _add_chain(_ROWS_TOGETHER, x, i, num_inputs, weights, at, count, sums, s)
            elif left == 5:
                _add_chain(5, x, i, num_inputs, weights, at, count, sums, s)
            elif left == 4:
                _add_chain(4, x, i, num_inputs, weights, at, count, sums, s)
            elif left == 3:
                _add_chain(3, x, i, num_inputs, weights, at, count, sums, s)
            elif left == 2:
                _add_chain(2, x, i, num_inputs, weights, at, count, sums, s)
            else:
                _add_chain(1, x, i, num_inputs, weights, at, count, sums, s)


@numba.njit(**COMPILE)
def _by_one_tile(x, first, num_rows, weights, num_inputs, block, sums):
    """`_by_tiles` of up to 16 rows from `first` on."""
    use(_TILE_SHAPES[num_rows])
    at, stride = block * num_inputs * BLOCK, 4 * BLOCK
    for k in range(0, num_inputs, TILE_INPUTS):
        far = at + _AHEAD // 2
        read(4, x, first * num_inputs + k, 2 * num_inputs)
        fetch(weights, far, stride)
        read(5, weights, at, stride)
        multiply(0, 4, 5)
        fetch(weights, far + 32, stride)
        read(6, weights, at + 32, stride)
        multiply(1, 4, 6)
        fetch(weights, far + 64, stride)
        read(7, weights, at + 64, stride)
        multiply(2, 4, 7)
        fetch(weights, far + 96, stride)
        read(5, weights, at + 96, stride)
        multiply(3, 4, 5)
        at += TILE_INPUTS * BLOCK
    s = first * BLOCK
    write(0, sums, s, stride)
    write(1, sums, s + 16, stride)
    write(2, sums, s + 32, stride)
    write(3, sums, s + 48, stride)


@numba.njit(**COMPILE)
def _by_two_tiles(x, first, num_rows, weights, num_inputs, block, sums):
    """`_by_tiles` of 17 to 32 rows from `first` on, 32 columns at a time."""
    use(_TWO_TILE_SHAPES[num_rows - TILE_ROWS])
    stride, second = 4 * BLOCK, first + TILE_ROWS
    for column in range(0, BLOCK, 32):
        at = block * num_inputs * BLOCK + 2 * column
        clear(0)
        clear(1)
        clear(2)
        clear(3)
        for k in range(0, num_inputs, TILE_INPUTS):
            far = at + _AHEAD // 2
            read(4, x, first * num_inputs + k, 2 * num_inputs)
            fetch(weights, far, stride)
            read(6, weights, at, stride)
            multiply(0, 4, 6)
            fetch(weights, far + 32, stride)
            read(7, weights, at + 32, stride)
            multiply(1, 4, 7)
            read(5, x, second * num_inputs + k, 2 * num_inputs)
            multiply(2, 5, 6)
            multiply(3, 5, 7)
            at += TILE_INPUTS * BLOCK
        write(0, sums, first * BLOCK + column, stride)
        write(1, sums, first * BLOCK + column + 16, stride)
        write(2, sums, second * BLOCK + column, stride)
        write(3, sums, second * BLOCK + column + 16, stride)


@numba.njit(**COMPILE)
def _by_tiles(x, num_rows, weights, num_inputs, block, sums):
    """`multiply_columns` in bfloat16 with tiles."""
    for first in range(0, num_rows, 2 * TILE_ROWS):
        together = min(2 * TILE_ROWS, num_rows - first)
        if together > TILE_ROWS:
            _by_two_tiles(x, first, together, weights, num_inputs, block, sums)
        else:
            _by_one_tile(x, first, together, weights, num_inputs, block, sums)
    give_up()


def multiply_columns(x, num_rows, weights, chain, num_inputs, block, sums):
    """sums [R, 64] float32 = rows of x times one block of 64 columns of the weights; nothing is allocated.

    x [R, K], weights as at the top and sums are contiguous, of any axes; float32, or bfloat16 as its bits in uint16, K
    then a multiple of 32. chain: inputs that are summed in one go, see the top (with tiles 32). The work of one thread:
    callers share the blocks.
    """
    raise NotImplementedError("only for compiled code")


@overload(multiply_columns)
def _multiply_columns_overload(x, num_rows, weights, chain, num_inputs, block, sums):
    is_bfloat16 = isinstance(x.dtype, types.Integer)
    if is_bfloat16 and not multiplies_bfloat16():
        raise TypingError("this CPU has no products of bfloat16")
    if is_bfloat16 and has_tiles():
        return lambda x, num_rows, weights, chain, num_inputs, block, sums: _by_tiles(
            x, num_rows, weights, num_inputs, block, sums
        )
    return lambda x, num_rows, weights, chain, num_inputs, block, sums: _by_vectors(  # noqa: PLW0108 (it is no function)
        x, num_rows, weights, chain, num_inputs, block, sums
    )


@numba.njit(**COMPILE)
def store_columns(sums, num_rows, bias, block, num_outputs, out):
    """out[:, the block's columns] = sums + bias, rounded once. sums as `multiply_columns` leaves them; bias [N] or
    empty; out [R, N].
    """
    first = block * BLOCK
    count = min(BLOCK, num_outputs - first)
    whole = count - count % LANES
    for r in range(num_rows):
        s, o = r * BLOCK, r * num_outputs + first
        for j in range(0, whole, LANES):
            y = load(sums, s + j)
            if bias.size:
                y = y + load(bias, first + j)
            store(out, o + j, y)
        for j in range(whole, count):
            number = sums.flat[s + j]
            if bias.size:
                number = number + widen(bias.flat[first + j])
            out.flat[o + j] = narrow(number, out)


@numba.njit(**COMPILE)
def _multiply_block(x, weights, chain, bias, block, out):
    """The columns of one block of `multiply_here`."""
    num_rows, num_inputs = x.shape
    sums = np.empty(num_rows * BLOCK, np.float32)
    multiply_columns(x, num_rows, weights, chain, num_inputs, block, sums)
    store_columns(sums, num_rows, bias, block, out.shape[1], out)


@numba.njit(**COMPILE)
def multiply_here(x, weights, chain, bias, out):
    """out = x W^T + bias, in this thread. x [R, K], weights of any axes, bias [N] or empty, out [R, N]."""
    for block in range((out.shape[1] + BLOCK - 1) // BLOCK):
        _multiply_block(x, weights, chain, bias, block, out)


@numba.njit(parallel=True, **COMPILE)
def multiply_shared(x, weights, chain, bias, out):
    """`multiply_here` with the blocks shared among all threads."""
    for block in numba.prange((out.shape[1] + BLOCK - 1) // BLOCK):
        _multiply_block(x, weights, chain, bias, block, out)
