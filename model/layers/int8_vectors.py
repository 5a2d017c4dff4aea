"""Sixteen int32 side by side in functions that numba compiles, and the dot products of bytes that add into them.

Beside `vectors`, which has float32. Only for CPUs that have the instruction, see `HAS_BYTE_DOTS`: elsewhere a function
that uses these cannot be compiled.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from model.layers.vectors import LANES, VECTOR

HAS_BYTE_DOTS = bool(binding.get_host_cpu_features().get("avx512vnni"))
"""Whether this CPU multiplies 64 bytes by 64 and adds them up in fours, in one instruction."""

_INT = ir.IntType(32)
_INTS = ir.VectorType(_INT, LANES)


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
def load_integers(typingctx, array, i):
    """64 bytes from array[i] on, of a contiguous array with one axis of any integers, as 16 int32."""

    def codegen(context, builder, signature, args):
        return builder.load(_address(context, builder, signature, args, _INTS), align=1)

    return INTEGERS(array, types.intp), codegen


@intrinsic
def as_floats(typingctx, integers):
    """The same numbers as a vector of float32 (`vectors`), rounded to nearest even."""

    def codegen(context, builder, signature, args):
        return builder.sitofp(args[0], ir.VectorType(ir.FloatType(), LANES))

    return VECTOR(INTEGERS), codegen


@intrinsic
def four_bytes(typingctx, array, i):
    """array[i : i + 4], of uint8, in each of the 16 lanes."""

    def codegen(context, builder, signature, args):
        four = builder.load(_address(context, builder, signature, args, _INT), align=1)
        undefined = ir.Constant(_INTS, ir.Undefined)
        first = builder.insert_element(undefined, four, ir.Constant(_INT, 0))
        return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))

    return INTEGERS(array, types.intp), codegen


@intrinsic
def add_dots(typingctx, total, bytes_, weights):
    """total + the dot product of 4 bytes without sign with 4 with sign, lane by lane; exact, modulo 2**32."""

    def codegen(context, builder, signature, args):
        of = ir.FunctionType(_INTS, [_INTS, _INTS, _INTS])
        name = "llvm.x86.avx512.vpdpbusd.512"
        return builder.call(cgutils.get_or_insert_function(builder.module, of, name), args)

    return INTEGERS(INTEGERS, INTEGERS, INTEGERS), codegen


def _address(context, builder, signature, args, element):
    """Of array[i], where array and i are the first two arguments, as a pointer to such an element."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), element.as_pointer())
