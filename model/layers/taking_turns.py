"""Work that threads take piece by piece from one list, in its order, in functions that numba compiles.

Whoever is free takes the next piece, so a thread that was late or is held up takes fewer. A piece may wait for earlier
ones: those were all taken before it, so somebody is at them, and it waits for nobody who has not begun. So any number
of threads comes to the end of the list, one too.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils

from model.layers.attention_kernels import COMPILE
from model.layers.vectors import intrinsic

TAKEN, DONE = 0, 8
"""Places of the two counts in an array of 16 int64 that begins as zeros: in cache lines of their own."""
_PATIENCE = 1000
"""Looks at a count before the core is left to others: some tens of microseconds."""
_LONG = ir.IntType(64)
_yield = types.ExternalFunction("sched_yield", types.intc())


@intrinsic
def _add_one(typingctx, counts, place):
    """counts[place] += 1 in one piece; what it was."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _address(context, builder, signature, args), ir.Constant(_LONG, 1), "seq_cst")

    return types.intp(counts, types.intp), codegen


@intrinsic
def _read(typingctx, counts, place):
    """counts[place], as the other threads see it, and a moment for them."""

    def codegen(context, builder, signature, args):
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        return builder.load_atomic(_address(context, builder, signature, args), "seq_cst", 8)

    return types.intp(counts, types.intp), codegen


def _address(context, builder, signature, args):
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@numba.njit(**COMPILE)
def take(counts):
    """The number of the next piece."""
    return _add_one(counts, TAKEN)


@numba.njit(**COMPILE)
def finish(counts):
    """A piece is done."""
    _add_one(counts, DONE)


@numba.njit(**COMPILE)
def wait_for(counts, num_pieces):
    """Until so many pieces are done."""
    looks = 0
    while _read(counts, DONE) < num_pieces:
        looks += 1
        if looks > _PATIENCE:
            _yield()
