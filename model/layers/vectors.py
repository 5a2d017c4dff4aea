"""Sixteen float32 side by side, as one number in functions that numba compiles.

LLVM lays them in whatever registers the CPU has. Loops over such numbers say what is kept in registers and in which
order sums are made, which numba's own vectorising leaves to chance: explicit, attention is three times as fast.

    total = zeros()
    for i in range(0, len(a), LANES):
        total = fma(load(a, i), load(b, i), total)

A load of an array of uint16 takes them for the upper halves of float32, that is for bfloat16. Arrays are contiguous,
of any number of axes; an index counts their numbers as if there were one axis, and needs no alignment. Arithmetic takes
a float32 in the place of any vector, which then stands in all lanes; of numbers alone it gives a number, by the same
operations.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, overload, register_model

LANES = 16
_CACHE_LINE = 64

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS, _SHORTS = (ir.VectorType(each, LANES) for each in (_FLOAT, _INT, ir.IntType(16)))


def intrinsic(function: Any) -> Any:
    """numba's, whose callers need not know that it takes the typing context by itself."""
    return numba_intrinsic(function)


class VectorType(types.Type):
    """numba's type of such a number."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


VECTOR = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, _FLOATS)


@intrinsic
def zeros(typingctx):
    """A vector of zeros."""
    return VECTOR(), lambda context, builder, signature, args: ir.Constant(_FLOATS, [0.0] * LANES)


@intrinsic
def load(typingctx, array, i):
    """array[i : i + 16]; of uint16, the float32 whose upper halves they are."""
    _check_contiguous(array)
    is_bfloat16 = isinstance(array.dtype, types.Integer)

    def codegen(context, builder, signature, args):
        if not is_bfloat16:
            return builder.load(_address(context, builder, signature, args, _FLOATS), align=4)
        halves = builder.load(_address(context, builder, signature, args, _SHORTS), align=2)
        wide = builder.shl(builder.zext(halves, _INTS), _int_constant(VECTOR, 16))
        return builder.bitcast(wide, _FLOATS)

    return VECTOR(array, types.intp), codegen


@intrinsic
def in_all_lanes(typingctx, array, i):
    """array[i], of float32, in every lane. (To index an array by a sum has numba ask whether that is negative.)"""
    _check_contiguous(array)

    def codegen(context, builder, signature, args):
        number = builder.load(_address(context, builder, signature, args, _FLOAT), align=4)
        return _in_all_lanes(builder, number)

    return VECTOR(array, types.intp), codegen


@intrinsic
def store(typingctx, array, i, vector):
    """array[i : i + 16] = vector; in uint16, rounded to the nearest bfloat16, the even one of two."""
    _check_contiguous(array)
    is_bfloat16 = isinstance(array.dtype, types.Integer)

    def codegen(context, builder, signature, args):
        if not is_bfloat16:
            builder.store(args[2], _address(context, builder, signature, args, _FLOATS), align=4)
            return context.get_dummy_value()
        bits = builder.bitcast(args[2], _INTS)
        sixteen, one, half = (_int_constant(VECTOR, value) for value in (16, 1, 0x7FFF))
        odd = builder.and_(builder.lshr(bits, sixteen), one)
        halves = builder.trunc(builder.lshr(builder.add(builder.add(bits, half), odd), sixteen), _SHORTS)
        builder.store(halves, _address(context, builder, signature, args, _SHORTS), align=2)
        return context.get_dummy_value()

    return types.none(array, types.intp, VECTOR), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, in one rounding where the CPU can."""

    def codegen(context, builder, signature, args):
        kind = signature.return_type
        name = "llvm.fmuladd.v16f32" if kind == VECTOR else "llvm.fmuladd.f32"
        return _call(builder, name, _floats(kind), _alike(builder, signature, args))

    kind = _widest(a, b, c)
    return _signature(kind, a, b, c), codegen


@intrinsic
def where_greater(typingctx, a, b, yes, no):
    """`yes` where a > b, else `no`."""

    def codegen(context, builder, signature, args):
        a, b, yes, no = _alike(builder, signature, args)
        return builder.select(builder.fcmp_ordered(">", a, b), yes, no)

    kind = _widest(a, b, yes, no)
    return _signature(kind, a, b, yes, no), codegen


@intrinsic
def only_lanes(typingctx, vector, low, high):
    """The vector in its lanes low <= lane < high, minus infinity in the others."""

    def codegen(context, builder, signature, args):
        lanes = ir.Constant(_INTS, list(range(LANES)))
        low, high = (_in_all_lanes(builder, builder.trunc(arg, _INT)) for arg in args[1:])
        seen = builder.and_(builder.icmp_signed(">=", lanes, low), builder.icmp_signed("<", lanes, high))
        return builder.select(seen, args[0], ir.Constant(_FLOATS, [float("-inf")] * LANES))

    return VECTOR(vector, types.intp, types.intp), codegen


@intrinsic
def times_power_of_two(typingctx, a, exponent):
    """a * 2**exponent, of whole numbers -126 <= exponent <= 127."""

    def codegen(context, builder, signature, args):
        kind = signature.return_type
        a, exponent = _alike(builder, signature, args)
        whole = builder.add(builder.fptosi(exponent, _ints(kind)), _int_constant(kind, 127))
        return builder.fmul(a, builder.bitcast(builder.shl(whole, _int_constant(kind, 23)), _floats(kind)))

    kind = _widest(a, exponent)
    return _signature(kind, a, exponent), codegen


def widen(x):
    """float32 of one number of an array that `load` takes."""
    raise NotImplementedError("only for compiled code")


@overload(widen, inline="always")
def _widen_overload(x):
    if isinstance(x, types.Integer):
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


def narrow(x, like):
    """x, float32, as an element of the array `like`: rounded as `store` does where that holds uint16."""
    raise NotImplementedError("only for compiled code")


@overload(narrow, inline="always")
def _narrow_overload(x, like):
    if isinstance(like.dtype, types.Integer):

        def round_to_bfloat16(x, like):
            bits = np.float32(x).view(np.uint32)
            odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
            return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return round_to_bfloat16
    return lambda x, like: x


@intrinsic
def prefetch(typingctx, array, i, count):
    """Have array[i : i + count] brought near; nothing happens where there is no such memory."""
    _check_contiguous(array)

    def codegen(context, builder, signature, args):
        first = builder.ptrtoint(_address(context, builder, signature, args, ir.IntType(8)), ir.IntType(64))
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        step, offset = ir.Constant(ir.IntType(64), _CACHE_LINE), ir.Constant(ir.IntType(64), 0)
        num_bytes = builder.mul(args[2], ir.Constant(ir.IntType(64), size))
        with cgutils.for_range_slice(builder, offset, num_bytes, step) as (at, _):
            line = builder.inttoptr(builder.add(first, at), ir.IntType(8).as_pointer())
            kind = [ir.Constant(_INT, value) for value in (0, 2, 1)]  # to read, into the second cache, of data
            _call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, *kind])
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp), codegen


def _folded(name, combine):
    """An intrinsic that folds the lanes of a vector into one, halves first: lane i with lane i + 8, and so on."""

    def fold(typingctx, vector):
        def codegen(context, builder, signature, args):
            value, width = args[0], LANES
            while width > 1:
                width //= 2
                low, high = (ir.Constant(ir.VectorType(_INT, width), list(range(s, s + width))) for s in (0, width))
                undefined = ir.Constant(value.type, ir.Undefined)
                value = combine(
                    builder,
                    builder.shuffle_vector(value, undefined, low),
                    builder.shuffle_vector(value, undefined, high),
                )
            return builder.extract_element(value, ir.Constant(_INT, 0))

        return types.float32(VECTOR), codegen

    fold.__name__ = name
    return intrinsic(fold)


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


sum_of_lanes = _folded("sum_of_lanes", lambda builder, a, b: builder.fadd(a, b))
largest_lane = _folded("largest_lane", _larger)


@numba.njit(inline="always")
def exp(x):
    """e**x for x <= 0, within 2 ulp, and exactly 0 below -87, where normal numbers end: 2**n times a polynomial in the
    rest (coefficients of Cephes' expf).
    """
    least = np.float32(-87.0)
    inside = where_greater(least, x, least, x)
    n = fma(inside, np.float32(1.4426950408889634), np.float32(12582912.0)) - np.float32(12582912.0)
    f = fma(n, np.float32(2.12194440e-4), fma(n, np.float32(-0.693359375), inside))
    p = fma(f, np.float32(1.9875691500e-4), np.float32(1.3981999507e-3))
    p = fma(p, f, np.float32(8.3334519073e-3))
    p = fma(p, f, np.float32(4.1665795894e-2))
    p = fma(p, f, np.float32(1.6666665459e-1))
    p = fma(p, f, np.float32(5.0000001201e-1))
    p = fma(p * f, f, f) + np.float32(1.0)
    return where_greater(least, x, np.float32(0), times_power_of_two(p, n))


def _arithmetic(symbol, instruction):
    """Let compiled functions write `a symbol b` where one of the two is a vector."""

    @intrinsic
    def combine(typingctx, a, b):
        def codegen(context, builder, signature, args):
            return getattr(builder, instruction)(*_alike(builder, signature, args))

        return _signature(VECTOR, a, b), codegen

    @overload(symbol, inline="always")
    def on_vectors(a, b):
        return (lambda a, b: combine(a, b)) if VECTOR in (a, b) else None  # noqa: PLW0108 (its names must be a and b)

    return on_vectors


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _arithmetic(_symbol, _instruction)


def _check_contiguous(array):
    if array.layout != "C":
        raise TypingError(f"an index into all of an array needs a contiguous one, not {array}")


def _widest(*operands):
    return VECTOR if VECTOR in operands else types.float32


def _signature(result, *operands):
    return result(*(_widest(operand) for operand in operands))


def _floats(kind):
    return _FLOATS if kind == VECTOR else _FLOAT


def _ints(kind):
    return _INTS if kind == VECTOR else _INT


def _int_constant(kind, value):
    return ir.Constant(_INTS, [value] * LANES) if kind == VECTOR else ir.Constant(_INT, value)


def _alike(builder, signature, args):
    """The arguments; numbers in all lanes where the result is a vector."""
    if signature.return_type != VECTOR:
        return args
    return [
        arg if kind == VECTOR else _in_all_lanes(builder, arg) for kind, arg in zip(signature.args, args, strict=True)
    ]


def _in_all_lanes(builder, number):
    undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, _int_constant(VECTOR, 0))


def _address(context, builder, signature, args, element):
    """Of array[i], where array and i are the first two arguments, as a pointer to such an element."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), element.as_pointer())


def _call(builder, name, result, args):
    of = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, of, name), args)
