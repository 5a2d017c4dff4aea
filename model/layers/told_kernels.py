"""Patterns told while attention runs: each row's weights go where somebody wants them as soon as they are known, which
spares who looks at all of a prompt a second computation of its scores. Compiled by numba; knows memory and rows.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np
from llvmlite import ir
from numba import types

from model.layers.addresses import array_at
from model.layers.attention_blocks import INNER
from model.layers.told_table import FIRST_ROW, MAPS, NUM_KEYS, NUMBER_BYTES, ROW_BYTES
from model.layers.vectors import LANES, VECTOR, intrinsic, load

_BYTES = np.empty(0, np.uint8)
_FLOATS, _INTS, _SHORTS = (ir.VectorType(each, LANES) for each in (ir.FloatType(), ir.IntType(32), ir.IntType(16)))


def _ints(number: int) -> ir.Constant:
    return ir.Constant(_INTS, [number] * LANES)


@intrinsic
def store_half(typingctx, address, vector):
    """Sixteen numbers to an address as float16, rounded to the nearest, the even one of two. None is negative or above
    65504; what is no number stays none.

    By whole numbers: not every CPU converts, and where one does not, LLVM calls a library that is not there.
    """

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[1], _INTS)
        # A float16's exponent is biased by 15, a float32's by 127, and its fraction is 13 bits shorter.
        odd = builder.and_(builder.lshr(bits, _ints(13)), _ints(1))
        rebiased = builder.add(bits, _ints(0xFFF - (112 << 23)))
        normal = builder.lshr(builder.add(rebiased, odd), _ints(13))
        # Below 2**-14 a float16 counts in steps of 2**-24, which are the last bit of a float32 from 0.5 to 1.
        half = ir.Constant(_FLOATS, [0.5] * LANES)
        tiny = builder.sub(builder.bitcast(builder.fadd(args[1], half), _INTS), builder.bitcast(half, _INTS))
        is_tiny = builder.icmp_unsigned("<", bits, _ints(113 << 23))
        is_none = builder.fcmp_unordered("uno", args[1], args[1])
        found = builder.select(is_none, _ints(0x7E00), builder.select(is_tiny, tiny, normal))
        builder.store(builder.trunc(found, _SHORTS), builder.inttoptr(args[0], _SHORTS.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.none(types.intp, VECTOR), codegen


@numba.njit(inline="always")
def lanes_up(n):
    """n up to whole vectors."""
    return (n + LANES - 1) // LANES * LANES


@numba.njit(**INNER)
def _tell_numbers(place, weights, i, count):
    """weights[i : i + count] to the address `place`."""
    numbers = array_at(place, count, weights)
    for k in range(count):
        numbers[k] = weights[i + k]


@numba.njit(**INNER)
def _tell_halves(place, weights, i, count):
    """weights[i : i + count] to the address `place` as float16."""
    whole = count - count % LANES
    for k in range(0, whole, LANES):
        store_half(place + 2 * k, load(weights, i + k))
    if whole < count:
        halves = np.empty(LANES, np.uint16)
        store_half(halves.ctypes.data, load(weights, i + whole))
        rest = array_at(place + 2 * whole, count - whole, halves)
        for k in range(count - whole):
            rest[k] = halves[k]


@numba.njit(**INNER)
def _clear(place, num_bytes):
    """Zeros from the address `place` on."""
    array_at(place, num_bytes, _BYTES)[:] = 0


@numba.njit(**INNER)
def tell_row(table, place, position, weights, i, origin, lo, hi):
    """Put the weights of one row and head where a `ToldTable` at that address says. The row begins at weights[i], with
    key `origin`; it sees columns lo <= k < hi, and the others of their vectors become 0.

    place: span, row, head, H; position: any array of int64.
    """
    span, row, head, num_heads = place
    line = array_at(table + 8 * span * (MAPS + num_heads), MAPS + num_heads, position)
    if line[MAPS + head] == 0:
        return
    size = line[NUMBER_BYTES]
    begin = lo // LANES * LANES
    end = min(lanes_up(hi), line[NUM_KEYS] - origin)  # whole vectors take half the time
    to = line[MAPS + head] + (row - line[FIRST_ROW]) * line[ROW_BYTES] + (origin + begin) * size
    if size == 2:
        _tell_halves(to, weights, i + begin, end - begin)
    else:
        _tell_numbers(to, weights, i + begin, end - begin)
    _clear(to, (lo - begin) * size)
    _clear(to + (hi - begin) * size, (end - hi) * size)
