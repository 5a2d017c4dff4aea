"""Products of rows with a weight on tiles of the matrix unit (see `tiles`), compiled by numba: bfloat16, and float32 as
sums of three bfloat16.

A float32 has 24 significant bits and a bfloat16 8, so that x = a + b + c holds exactly with a, the bfloat16 nearest to
x, b, the one nearest to x - a, and c = x - a - b (Henry, Tang and Heinecke 2019, arXiv:1904.06376). Of the nine
products of the parts of two numbers the three smallest are left out: each is under 2**-25 of the product, half of what
rounding it to float32 may take away. Sums are float32. So products are as precise as float32's own, in little more than
half the time. Infinity has no such parts: it becomes no number.

Every number is a function of its own row alone: products are added in one order, 32 inputs at a time, whatever stands
beside the row.

Axes: T rows, P parts of a number: 1 in bfloat16, 3 in float32. Rows are laid in tiles, [T / 16][in / 32][P][16][32],
and weights [out / 32][in / 32][P][2][16][16][2]: for 32 columns two tiles, with pairs of inputs side by side in each
column. Arrays come flat.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import overload

from model.layers.attention_kernels import COMPILE
from model.layers.block_sums import BLOCK, TILE, done, ready, sum_block
from model.layers.tiles import TILE_INPUTS, TILE_ROWS
from model.layers.vectors import LANES, VECTOR, fma, intrinsic, load, store, where_greater

_ERF_IS_ONE = 5.401171684265137
"""Where the fit below gives exactly 1, and beyond which float32 has nothing nearer."""


_NARROW = "llvm.x86.avx512bf16.cvtneps2bf16.512"
"""LLVM's name of the instruction that rounds to bfloat16."""


def _narrowing(result: Any, finish: Any) -> Any:
    """The code of an intrinsic whose last argument is a vector that is rounded to bfloat16."""
    halves = ir.VectorType(ir.IntType(16), LANES)

    def codegen(context, builder, signature, args):
        of = ir.FunctionType(halves, [args[-1].type])
        rounded = builder.call(cgutils.get_or_insert_function(builder.module, of, _NARROW), args[-1:])
        return finish(context, builder, signature, args, rounded)

    return result, codegen


@intrinsic
def nearest(typingctx, vector):
    """The bfloat16 nearest to each number, the even one of two; 0 below the normal ones, as tiles take them."""

    def widen(context, builder, signature, args, rounded):
        wide = ir.VectorType(ir.IntType(32), LANES)
        shifted = builder.shl(builder.zext(rounded, wide), ir.Constant(wide, [16] * LANES))
        return builder.bitcast(shifted, args[-1].type)

    return _narrowing(VECTOR(vector), widen)


@intrinsic
def store_nearest(typingctx, array, i, vector):
    """array[i : i + 16] = nearest(vector), an array of uint16."""

    def put(context, builder, signature, args, rounded):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), rounded.type.as_pointer())
        builder.store(rounded, address, align=2)
        return context.get_dummy_value()

    return _narrowing(types.none(array, types.intp, vector), put)


@intrinsic
def _store_pairs_nearest(typingctx, array, i, a, b):
    """array[i : i + 32] = nearest(a) and nearest(b) in turns, an array of uint16."""
    halves, wide = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(32), LANES)

    def codegen(context, builder, signature, args):
        of = ir.FunctionType(halves, [args[2].type])
        narrow = cgutils.get_or_insert_function(builder.module, of, _NARROW)
        low, high = (builder.zext(builder.call(narrow, [each]), wide) for each in args[2:])
        pairs = builder.or_(low, builder.shl(high, ir.Constant(wide, [16] * LANES)))
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), wide.as_pointer())
        builder.store(pairs, address, align=2)
        return context.get_dummy_value()

    return types.none(array, types.intp, a, b), codegen


def store_parts(vector, out, o, parts):
    """out[o : o + 16] = the first part of each number, and so on, a tile's numbers further for each part; in float32
    the numbers themselves.
    """
    raise NotImplementedError("only for compiled code")


@overload(store_parts, jit_options={"forceinline": True})
def _store_parts_overload(vector, out, o, parts):
    if isinstance(out.dtype, types.Float):
        return lambda vector, out, o, parts: store(out, o, vector)

    def store_each(vector, out, o, parts):
        store_nearest(out, o, vector)
        for part in range(1, parts):
            vector = vector - nearest(vector)
            store_nearest(out, o + part * TILE, vector)

    return store_each


def store_pairs_of_parts(a, b, out, o, parts):
    """out[o : o + 32] = the first part of each number of a and of b in turns, and so on; one of weights' tiles further
    for each part. In float32 a, and b behind it.
    """
    raise NotImplementedError("only for compiled code")


@overload(store_pairs_of_parts, jit_options={"forceinline": True})
def _store_pairs_of_parts_overload(a, b, out, o, parts):
    def store_both(a, b, out, o, parts):
        store(out, o, a)
        store(out, o + LANES, b)

    def store_each(a, b, out, o, parts):
        _store_pairs_nearest(out, o, a, b)
        for part in range(1, parts):
            a, b = a - nearest(a), b - nearest(b)
            _store_pairs_nearest(out, o + part * 2 * TILE, a, b)

    return store_both if isinstance(out.dtype, types.Float) else store_each


@numba.njit(inline="always")
def _gelu(x):
    """x times the normal distribution's share below x (Hendrycks and Gimpel 2016, arXiv:1606.08415), which is
    (1 + e) / 2 with the odd function e = erf(x / sqrt(2)). That is fitted by a quotient of polynomials of x^2 where it
    is not 1 in float32, within 2e-8 but for rounding; the answer is within 1e-6, as torch's own.
    """
    inside = where_greater(x, np.float32(_ERF_IS_ONE), np.float32(_ERF_IS_ONE), x)
    inside = where_greater(np.float32(-_ERF_IS_ONE), inside, np.float32(-_ERF_IS_ONE), inside)
    u = inside * inside
    p = fma(u, np.float32(4.5498683931555206e-8), np.float32(1.2704263099294621e-5))
    q = fma(u, np.float32(1.1975042752965237e-6), np.float32(7.36479414626956e-5))
    p = fma(u, p, np.float32(3.3765393891371787e-4))
    q = fma(u, q, np.float32(1.8844521837309003e-3))
    p = fma(u, p, np.float32(9.354537352919579e-3))
    q = fma(u, q, np.float32(2.8645941987633705e-2))
    p = fma(u, p, np.float32(6.770553439855576e-2))
    q = fma(u, q, np.float32(0.2515222132205963))
    p = fma(u, p, np.float32(0.797884464263916))
    q = fma(u, q, np.float32(1))
    return np.float32(0.5) * x * (np.float32(1) + inside * p / q)


@numba.njit(**COMPILE)
def lay_in_tiles(x, i, stride, num_rows, width, parts, out):
    """Rows of `width` numbers from x[i] on, `stride` apart, into tiles."""
    for r in range(num_rows):
        at, o = i + r * stride, (r // TILE_ROWS * width * TILE_ROWS) * parts + r % TILE_ROWS * TILE_INPUTS
        for first in range(0, width, TILE_INPUTS):
            for half in range(0, TILE_INPUTS, LANES):
                store_parts(load(x, at + first + half), out, o + half, parts)
            o += parts * TILE


@numba.njit(**COMPILE)
def _finish_rows(sums, num_rows, bias, column, gelu, out, o, stride):
    """Rows of out from o on, `stride` apart: sums + bias, behind gelu if wanted."""
    left, right = load(bias, column), load(bias, column + LANES)
    for r in range(num_rows):
        a, b = load(sums, r * BLOCK) + left, load(sums, r * BLOCK + LANES) + right
        store(out, o + r * stride, _gelu(a) if gelu else a)
        store(out, o + r * stride + LANES, _gelu(b) if gelu else b)


@numba.njit(**COMPILE)
def _finish_tiles(sums, num_rows, bias, column, gelu, parts, out, o, stride):
    """The same into tiles: those of the first 16 rows at o, of the others `stride` further."""
    left, right = load(bias, column), load(bias, column + LANES)
    for r in range(num_rows):
        a, b = load(sums, r * BLOCK) + left, load(sums, r * BLOCK + LANES) + right
        at = o + r // TILE_ROWS * stride + r % TILE_ROWS * TILE_INPUTS
        store_parts(_gelu(a) if gelu else a, out, at, parts)
        store_parts(_gelu(b) if gelu else b, out, at + LANES, parts)


@numba.njit(**COMPILE)
def multiply_tiles(x, num_rows, weight, bias, shape, columns, rows, tiled):
    """x W^T + bias, behind gelu if wanted, into rows [T, out], or `tiled` where that has room.

    x: in tiles; bias [out]; shape: (in, out, P, 1 with gelu or 0); columns: the first, and the one behind the last.
    """
    inputs, outputs, parts, gelu = shape
    sums = np.empty(BLOCK * BLOCK, np.float32)
    ready()
    for column in range(columns[0], columns[1], BLOCK):
        for row in range(0, num_rows, BLOCK):
            num = min(BLOCK, num_rows - row)
            a, second = row * inputs * parts, (row + TILE_ROWS) * inputs * parts
            ahead = BLOCK * inputs * parts if row == 0 else 0
            sum_block(x, a, second, num, weight, column * inputs * parts, ahead, inputs, parts, sums, 0, BLOCK)
            if len(tiled):
                o = (row * outputs + column * TILE_ROWS) * parts
                _finish_tiles(sums, num, bias, column, gelu, parts, tiled, o, outputs * TILE_ROWS * parts)
            else:
                _finish_rows(sums, num, bias, column, gelu, rows, row * outputs + column, outputs)
    done()


@numba.njit(parallel=True, **COMPILE)
def multiply_rows(starts, num_shares, x, weight, bias, shape, out, nowhere):
    """out = x W^T + bias, behind gelu if wanted: x [T, in], out [T, out] flat.

    Threads take the rows in pieces that begin at `starts`, each in so many shares of columns; shape: as in
    `multiply_tiles`.
    """
    inputs, outputs, parts, _ = shape
    blocks = outputs // BLOCK
    for item in numba.prange(len(starts) * num_shares):
        piece, share = item // num_shares, item % num_shares
        row = starts[piece]
        num = (starts[piece + 1] if piece + 1 < len(starts) else len(x)) - row
        columns = (blocks * share // num_shares * BLOCK, blocks * (share + 1) // num_shares * BLOCK)
        laid = np.empty((num + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS * inputs * parts, nowhere.dtype)
        lay_in_tiles(x, row * inputs, inputs, num, inputs, parts, laid)
        own = out[row * outputs : (row + num) * outputs]
        multiply_tiles(laid, num, weight, bias, shape, columns, own, laid[:0])
