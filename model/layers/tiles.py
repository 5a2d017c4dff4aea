"""Tiles of a CPU's matrix unit (Intel AMX), in functions that numba compiles: bfloat16 products summed in float32.

A thread has eight tiles of 16 rows of 64 bytes. `multiply(c, a, b)` adds to tile c [rows, 16] float32 the product of
a [rows, 32] and b, 32 x 16 numbers as [16, 16, 2]: pairs of inputs side by side for each column, as oneDNN packs them.
Of the 32 the even ones are one chain of multiply-adds that starts at 0 and the odd ones another; their sum is added to
c. So an element depends on its own row alone. Numbers below the normal ones count as 0 (Intel's manual, TDPBF16PS).

    use(shapes)
    for j in range(0, num_inputs, 32):
        read(1, x, j, 2 * num_inputs)
        read(2, w, 16 * j, 64)
        multiply(0, 1, 2)
    write(0, out, 0, 4 * num_outputs)
    give_up()

Tiles are named by constants. Whoever calls anything in between that uses tiles itself (oneDNN does) loses them. Only
where `has_tiles`: elsewhere a function that uses these cannot be compiled.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import ctypes
import functools
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.core.errors import TypingError
from numba.extending import intrinsic as numba_intrinsic

TILE_ROWS = 16
TILE_INPUTS = 32
"""Numbers of bfloat16 in a row of a tile."""

_BYTE, _LONG = ir.IntType(8), ir.IntType(64)
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def intrinsic(function: Any) -> Any:
    """numba's, whose callers need not know that it takes the typing context by itself; constants keep their values."""
    return numba_intrinsic(prefer_literal=True)(function)


@functools.cache
def has_feature(*names: str) -> bool:
    """Whether this CPU has all of these, by LLVM's names, and numba compiles for it: it may be told of another one."""
    settings: Any = config
    if settings.CPU_NAME is not None or settings.CPU_FEATURES is not None or not settings.ENABLE_AVX:
        return False
    features = binding.get_host_cpu_features()
    return all(features.get(name) for name in names)


def is_made_for_tiles() -> bool:
    """Whether this CPU has tiles, whatever the kernel says: code is compiled, and kept, for a CPU."""
    return has_feature("amx-tile", "amx-bf16")


@functools.cache
def has_tiles() -> bool:
    """Whether this CPU has tiles and the kernel lets this process use them, which is asked for here."""
    if platform.system() != "Linux" or not is_made_for_tiles():
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


@functools.cache
def has_byte_tiles() -> bool:
    """Whether tiles multiply bytes, too."""
    return has_tiles() and has_feature("amx-int8")


@functools.cache
def has_wide_vectors() -> bool:
    """Whether this CPU has 32 registers of 16 float32 (AVX-512): the sums of several rows stay in them."""
    return has_feature("avx512f")


@functools.cache
def has_pairs() -> bool:
    """Whether vectors multiply pairs of bfloat16 (AVX512_BF16), on a CPU without tiles, see `is_made_for_tiles`."""
    return has_feature("avx512f", "avx512bf16") and not is_made_for_tiles()


def multiplies_bfloat16() -> bool:
    """Whether products of bfloat16 are made here, by tiles or by vectors."""
    return has_tiles() or has_pairs()


def shapes(rows: Sequence[int]) -> np.ndarray:
    """What `use` takes: how many rows each of the eight tiles has, 16 at most, each row 64 bytes."""
    told = np.zeros(64, np.uint8)  # as the instruction LDTILECFG reads it
    told[0] = 1
    told[16:32].view(np.uint16)[:] = 4 * TILE_ROWS
    told[48:56] = rows
    return told


@intrinsic
def use(typingctx, shapes):
    """Take this thread's tiles into use, all zero; an array that `shapes` has made."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], ir.Constant(_LONG, 0))
        return _call(context, builder, "llvm.x86.ldtilecfg", address)

    return types.none(shapes), codegen


@intrinsic
def give_up(typingctx):
    """End the use, after which switching threads is cheap again."""
    return types.none(), lambda context, builder, signature, args: _call(context, builder, "llvm.x86.tilerelease")


@intrinsic
def clear(typingctx, tile):
    """tile = 0."""

    def codegen(context, builder, signature, args):
        return _call(context, builder, "llvm.x86.tilezero", _number(tile))

    return types.none(tile), codegen


@intrinsic
def read(typingctx, tile, array, i, stride):
    """tile[r] = the 64 bytes at array[i] and r * stride bytes further; a contiguous array, as `vectors.load` counts."""
    return types.none(tile, array, types.intp, types.intp), _moving("llvm.x86.tileloadd64", tile)


@intrinsic
def fetch(typingctx, array, i, stride):
    """Have what `read` would read brought into the first cache; nothing happens where there is no such memory."""

    def codegen(context, builder, signature, args):
        first = _address(context, builder, signature.args[0], args[0], args[1])
        kind = [ir.Constant(ir.IntType(32), value) for value in (0, 3, 1)]  # to read, into the first cache, of data
        for row in range(TILE_ROWS):
            line = builder.gep(first, [builder.mul(args[2], ir.Constant(_LONG, row))])
            _call(context, builder, "llvm.prefetch.p0", line, *kind)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp), codegen


@intrinsic
def write(typingctx, tile, array, i, stride):
    """The reverse of `read`."""
    return types.none(tile, array, types.intp, types.intp), _moving("llvm.x86.tilestored64", tile)


@intrinsic
def multiply(typingctx, c, a, b):
    """c += a b, see above."""

    def codegen(context, builder, signature, args):
        return _call(context, builder, "llvm.x86.tdpbf16ps", *(_number(tile) for tile in (c, a, b)))

    return types.none(c, a, b), codegen


@intrinsic
def multiply_bytes(typingctx, c, a, b):
    """c += a b, exact modulo 2**32: c [rows, 16] int32, a [rows, 64] int8, and b, 64 x 16 int8 as [16, 16, 4]."""

    def codegen(context, builder, signature, args):
        return _call(context, builder, "llvm.x86.tdpbssd", *(_number(tile) for tile in (c, a, b)))

    return types.none(c, a, b), codegen


def _moving(instruction, tile):
    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[1], args[1], args[2])
        return _call(context, builder, instruction, _number(tile), address, args[3])

    return codegen


def _number(tile):
    """Of a tile, which the instruction has in its code."""
    if not isinstance(tile, types.IntegerLiteral):
        raise TypingError(f"a tile is named by a constant, not {tile}")
    return ir.Constant(_BYTE, tile.literal_value)


def _address(context, builder, array_type, array, i):
    """Of array[i], as a pointer to bytes."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [i]), _BYTE.as_pointer())


def _call(context, builder, name, *args):
    of = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
    builder.call(cgutils.get_or_insert_function(builder.module, of, name), args)
    return context.get_dummy_value()
