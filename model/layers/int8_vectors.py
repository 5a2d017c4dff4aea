"""Sixteen int32 side by side in functions that numba compiles, and the dot products of bytes that add into them.

Beside `vectors`, which has float32. `add_dots` only for CPUs that have the instruction, see `HAS_BYTE_DOTS`: elsewhere
a function that uses it cannot be compiled.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from model.layers.tiles import has_feature
from model.layers.vectors import LANES, VECTOR

HAS_BYTE_DOTS = has_feature("avx512vnni")
"""Whether this CPU multiplies 64 bytes by 64 and adds them up in fours, in one instruction."""

_INT = ir.IntType(32)
_INTS, _BYTES = ir.VectorType(_INT, LANES), ir.VectorType(ir.IntType(8), LANES)


class IntegersType(types.Type):
    """numba's type of such a number."""

    def __init__(self) -> None:
        super().__init__(name="int32x16")


INTEGERS = IntegersType()


@register_model(IntegersType)
class _IntegersModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, _INTS)


@intrinsic
def integers(typingctx, number):
    """The lowest 32 bits of a whole number in each lane."""

    def codegen(context, builder, signature, args):
        return _in_all_lanes(builder, builder.trunc(args[0], _INT))

    return INTEGERS(types.int64), codegen


@intrinsic
def load_integers(typingctx, array, i):
    """64 bytes from array[i] on, of a contiguous array with one axis of any integers, as 16 int32."""

    def codegen(context, builder, signature, args):
        return builder.load(_address(context, builder, signature, args, _INTS), align=1)

    return INTEGERS(array, types.intp), codegen


@intrinsic
def store_integers(typingctx, array, i, integers):
    """The reverse of `load_integers`."""

    def codegen(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, signature, args, _INTS), align=1)
        return context.get_dummy_value()

    return types.none(array, types.intp, INTEGERS), codegen


@intrinsic
def sum_of_integers(typingctx, integers):
    """Of all lanes, modulo 2**32."""

    def codegen(context, builder, signature, args):
        return _call(builder, "llvm.vector.reduce.add.v16i32", _INT, args[0])

    return types.int32(INTEGERS), codegen


@intrinsic
def as_floats(typingctx, integers):
    """The same numbers as a vector of float32 (`vectors`), rounded to nearest even."""

    def codegen(context, builder, signature, args):
        return builder.sitofp(args[0], ir.VectorType(ir.FloatType(), LANES))

    return VECTOR(INTEGERS), codegen


@intrinsic
def signed_digits(typingctx, vector, moved):
    """Each number of a vector of float32, rounded to the nearest whole one, the even one of two, in digits of base 256
    from -128 to 127: a byte each in two's complement, the least significant one lowest.

    moved: what has the byte 128 in the place of each digit, which turns digits without sign into these and back.
    """

    def codegen(context, builder, signature, args):
        nearest = _call(builder, "llvm.rint.v16f32", args[0].type, args[0])
        moved = _in_all_lanes(builder, builder.trunc(args[1], _INT))
        return builder.xor(builder.add(builder.fptosi(nearest, _INTS), moved), moved)

    return INTEGERS(VECTOR, types.int64), codegen


@intrinsic
def store_bytes(typingctx, array, i, integers, place):
    """array[i : i + 16], of int8, = the byte at that place of each number, 0 the lowest."""

    def codegen(context, builder, signature, args):
        eight = ir.Constant(_INT, 8)
        shift = _in_all_lanes(builder, builder.mul(builder.trunc(args[3], _INT), eight))
        lowest = builder.trunc(builder.lshr(args[2], shift), _BYTES)
        builder.store(lowest, _address(context, builder, signature, args, _BYTES), align=1)
        return context.get_dummy_value()

    return types.none(array, types.intp, INTEGERS, types.int64), codegen


@intrinsic
def four_bytes(typingctx, array, i):
    """array[i : i + 4], of bytes, in each of the 16 lanes."""

    def codegen(context, builder, signature, args):
        return _in_all_lanes(builder, builder.load(_address(context, builder, signature, args, _INT), align=1))

    return INTEGERS(array, types.intp), codegen


@intrinsic
def without_sign(typingctx, bytes_):
    """128 added to each of the 64 bytes, from -128 .. 127 to 0 .. 255."""

    def codegen(context, builder, signature, args):
        return builder.xor(args[0], ir.Constant(_INTS, [0x80808080] * LANES))

    return INTEGERS(INTEGERS), codegen


@intrinsic
def add_dots(typingctx, total, bytes_, others):
    """total + the dot product of 4 bytes without sign with 4 with sign, lane by lane; exact, modulo 2**32."""

    def codegen(context, builder, signature, args):
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, *args)

    return INTEGERS(INTEGERS, INTEGERS, INTEGERS), codegen


def _address(context, builder, signature, args, element):
    """Of array[i], where array and i are the first two arguments, as a pointer to such an element."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), element.as_pointer())


def _in_all_lanes(builder, number):
    undefined = ir.Constant(_INTS, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))


def _call(builder, name, result, *args):
    of = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, of, name), args)
