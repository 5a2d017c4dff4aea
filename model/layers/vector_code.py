"""Pieces of LLVM's code for vectors of 16 numbers of 4 bytes: float32, or pairs of bfloat16. For intrinsics whose sums
must stay in registers, for which numba gives no way. Knows no layout.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from llvmlite import ir
from numba.core import cgutils

from model.layers.vectors import LANES

BYTE, INT, INDEX = ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOATS, PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT, LANES)


class _Bfloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's bfloat16, which llvmlite has no name for."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, type(self))

    def __hash__(self):
        return hash(type(self))


_BFLOATS = ir.VectorType(_Bfloat(), 2 * LANES)


def plus(builder, *numbers):
    """The sum of indices, each a value or a constant."""
    total, *rest = (each if isinstance(each, ir.Value) else ir.Constant(INDEX, each) for each in numbers)
    for each in rest:
        total = builder.add(total, each)
    return total


def pointer(builder, data, i, kind):
    return builder.bitcast(builder.gep(data, [i]), kind.as_pointer())


def call(builder, name, result, *args):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def fetch_line(builder, pointer, locality=3):
    """locality: LLVM's, 3 for the first cache, 2 for the second."""
    how = (ir.Constant(INT, value) for value in (0, locality, 1))  # to read, ..., data
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *how)


def spread(builder, number):
    undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    lane = builder.insert_element(undefined, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(lane, undefined, ir.Constant(ir.VectorType(INT, LANES), None))


def multiply_add(builder, x, w, total):
    """total + x w in each lane; of pairs of bfloat16, both products."""
    if x.type == FLOATS:
        return call(builder, "llvm.fma.v16f32", FLOATS, x, w, total)
    pairs = (builder.bitcast(each, _BFLOATS) for each in (x, w))
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, *pairs)
