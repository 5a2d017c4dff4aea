"""Sums of products of 32 rows and 32 columns that are laid in tiles, compiled by numba: by the matrix unit where the
CPU has one (AMX), else by vectors (AVX-512), from the same places.

Axes: T rows, P parts of a number as in `tile_kernels`. Rows are laid [T / 16][in / 32][P][16][32], columns of a weight
[out / 32][in / 32][P][2][16][16][2], with pairs of inputs side by side in each column. All are bfloat16 as its bits in
uint16. Without tiles float32 has no parts, but is laid as it is: a weight [out / 32][in / 32][1][2][32][16].
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError

from model.layers import tiles
from model.layers.attention_kernels import COMPILE
from model.layers.tiles import TILE_INPUTS, TILE_ROWS, clear, multiply, read, write
from model.layers.vector_code import BYTE, FLOATS, INDEX, INT, PAIRS, fetch_line, multiply_add, plus, pointer, spread
from model.layers.vectors import LANES, intrinsic

BLOCK = 2 * TILE_ROWS
"""Rows, and columns, whose sums are made together: in tiles 0 to 3, from rows in 4 and 5 and columns in 6 and 7."""
TILE = TILE_ROWS * TILE_INPUTS
"""Numbers in a tile, of either type."""
_ROWS = 8
"""Of a tile, whose sums over 32 columns stay in vectors' registers: 16 sums, enough not to wait for one another."""
_SECOND_CACHE = 2
"""LLVM's name of the one that columns fit in."""
_LINE = 64
"""Bytes that a cache fetches together."""

_SHAPES = tiles.shapes([TILE_ROWS] * 8)
"""For `tiles.use`: all of them whole. What stands in rows behind the last one costs less than another pass over weights
for the rest of the rows would, and is left out of what is kept."""


@numba.njit(inline="always")
def _multiply_block(both):
    multiply(0, 4, 6)
    multiply(1, 4, 7)
    if both:
        multiply(2, 5, 6)
        multiply(3, 5, 7)


@numba.njit(inline="always")
def _read_rows(x, first, second, both):
    read(4, x, first, 2 * TILE_INPUTS)
    if both:
        read(5, x, second, 2 * TILE_INPUTS)


@numba.njit(inline="always")
def _read_columns(weight, at):
    read(6, weight, at, 2 * TILE_INPUTS)
    read(7, weight, at + TILE, 2 * TILE_INPUTS)


@numba.njit(inline="always")
def _clear_sums(both):
    clear(0)
    clear(1)
    if both:
        clear(2)
        clear(3)


@numba.njit(inline="always")
def _add_step(x, a, second, both, weight, b, parts):
    """Add the products of 32 inputs, their parts side by side at x[a], x[second] and weight[b]."""
    if parts == 1:
        _read_rows(x, a, second, both)
        _read_columns(weight, b)
        _multiply_block(both)
    else:  # the smallest products first, each part read as rarely as can be
        _read_rows(x, a + 2 * TILE, second + 2 * TILE, both)
        _read_columns(weight, b)
        _multiply_block(both)
        _read_rows(x, a + TILE, second + TILE, both)
        _multiply_block(both)
        _read_columns(weight, b + 2 * TILE)
        _multiply_block(both)
        _read_rows(x, a, second, both)
        _multiply_block(both)
        _read_columns(weight, b + 4 * TILE)
        _multiply_block(both)
        _read_columns(weight, b)
        _multiply_block(both)


@numba.njit(inline="always")
def _write_sums(both, sums, o, stride):
    write(0, sums, o, 4 * stride)
    write(1, sums, o + TILE_ROWS, 4 * stride)
    if both:
        write(2, sums, o + TILE_ROWS * stride, 4 * stride)
        write(3, sums, o + TILE_ROWS * stride + TILE_ROWS, 4 * stride)


@intrinsic
def _sum_rows(typingctx, num_rows, x, a, weight, b, num_steps, far, sums, o, stride):
    """A constant number of rows of `sum_block`, of one tile: a sum is one chain over its inputs, from 0. Meanwhile
    every other line from weight[far] on is fetched, over as many numbers as are read.
    """
    if not isinstance(num_rows, types.IntegerLiteral):
        raise TypingError(f"how many rows stay in registers is a constant, not {num_rows}")
    rows, halves = range(num_rows.literal_value), (0, 1)
    together = 2 if isinstance(x.dtype, types.Integer) else 1
    word, words = (INT, PAIRS) if together == 2 else (ir.FloatType(), FLOATS)

    def add_inputs(builder, x, from_x, weight, from_weight, from_far, k, totals):
        """Those from k on that are multiplied at once."""
        line = plus(builder, from_far, builder.mul(k, ir.Constant(INDEX, 2 * LANES)))
        fetch_line(builder, pointer(builder, weight, line, BYTE), _SECOND_CACHE)
        places = (plus(builder, from_weight, builder.mul(k, ir.Constant(INDEX, LANES)), half * TILE) for half in halves)
        w = [builder.load(pointer(builder, weight, place, words), align=4) for place in places]
        for r in rows:
            number = builder.load(pointer(builder, x, plus(builder, from_x, k, r * TILE_INPUTS), word), align=4)
            lanes = spread(builder, number)
            for half in halves:
                total = totals[r, half]
                builder.store(multiply_add(builder, lanes, w[half], builder.load(total)), total)

    def codegen(context, builder, signature, args):
        x, weight, sums = (context.make_array(signature.args[n])(context, builder, args[n]).data for n in (1, 3, 7))
        _, _, a, _, b, num_steps, far, _, o, stride = args
        nothing = ir.Constant(FLOATS, [0.0] * LANES)
        totals = {(r, half): cgutils.alloca_once_value(builder, nothing) for r in rows for half in halves}
        with cgutils.for_range(builder, num_steps) as step:
            from_x = plus(builder, a, builder.mul(step.index, ir.Constant(INDEX, TILE)))
            done = builder.mul(step.index, ir.Constant(INDEX, 2 * TILE))
            from_weight, from_far = plus(builder, b, done), plus(builder, far, done)
            with cgutils.for_range(builder, ir.Constant(INDEX, TILE_INPUTS // together)) as loop:
                k = builder.mul(loop.index, ir.Constant(INDEX, together))
                add_inputs(builder, x, from_x, weight, from_weight, from_far, k, totals)
        for (r, half), total in totals.items():
            to = plus(builder, o, builder.mul(stride, ir.Constant(INDEX, r)), LANES * half)
            builder.store(builder.load(total), pointer(builder, sums, to, FLOATS), align=4)
        return context.get_dummy_value()

    number = types.intp
    return types.none(num_rows, x, number, weight, number, number, number, sums, number, number), codegen


@numba.njit(**COMPILE)
def _by_vectors(x, a, second, num_rows, weight, b, ahead, inputs, parts, sums, o, stride):
    for r in range(0, num_rows, _ROWS):
        begin = a + r * TILE_INPUTS if r < TILE_ROWS else second + (r - TILE_ROWS) * TILE_INPUTS
        far = b + ahead + (r // _ROWS * _LINE) // weight.itemsize if r <= _ROWS else b  # two passes fetch all lines
        _sum_rows(_ROWS, x, begin, weight, b, inputs // TILE_INPUTS, far, sums, o + r * stride, stride)


@numba.njit(**COMPILE)
def _by_tiles(x, a, second, num_rows, weight, b, ahead, inputs, parts, sums, o, stride):
    both = num_rows > TILE_ROWS
    _clear_sums(both)
    for step in range(inputs // TILE_INPUTS):
        done = step * parts * TILE
        _add_step(x, a + done, second + done, both, weight, b + 2 * done, parts)
    _write_sums(both, sums, o, stride)


@numba.njit(**COMPILE)
def _take_tiles():
    tiles.use(_SHAPES)


@numba.njit(**COMPILE)
def _give_up_tiles():
    tiles.give_up()


@numba.njit(**COMPILE)
def _do_nothing():
    pass


sum_block = _by_tiles if tiles.is_made_for_tiles() else _by_vectors
"""sum_block(x, a, second, num_rows, weight, b, ahead, inputs, parts, sums, o, stride): up to 32 rows of 32 sums from
sums[o] on, `stride` apart: those at x[a] times the columns at weight[b]. second: where the second tile of rows begins.
Sums of more rows than there are, up to the end of a tile, are written, too, and mean nothing. ahead: how much further
the columns lie that are wanted next, 0 where none are; without tiles they are fetched meanwhile.
"""

ready, done = (_take_tiles, _give_up_tiles) if tiles.is_made_for_tiles() else (_do_nothing, _do_nothing)
"""To be called by a thread before and after sums that nothing else comes in between."""
