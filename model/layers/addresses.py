"""Arrays at addresses, in functions that numba compiles: a table of numbers says where a network's weights lie, so that
a call hands over one array instead of hundreds. Whoever made the memory keeps it alive.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
from numba import types
from numba.extending import overload

from model.layers.vectors import intrinsic


@intrinsic
def _pointer(typingctx, address, like):
    """address as a pointer to numbers of the type that the array `like` holds."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, like), codegen


def array_at(address, shape, like):
    """The contiguous array of that shape, an integer or a tuple of them, at an address, of numbers as `like` holds."""
    raise NotImplementedError("only for compiled code")


@overload(array_at, inline="always")
def _array_at_overload(address, shape, like):
    return lambda address, shape, like: numba.carray(_pointer(address, like), shape)
