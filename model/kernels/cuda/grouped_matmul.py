"""Products x W^T + bias on a GPU with weights of 4 to 8 bits (`PackedRows`), dequantised in registers.

A number of the weight is rounded to the dtype of x before its products, and the sums have the order of
`model.kernels.cuda.matmul`. So a product has the bits of the dense product with the dequantised weight, whichever of
the two computes it.

Axes: R rows, K inputs, N outputs of a part, C outputs of a tile, G groups of half a block, W inputs of a group.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.cuda.matmul import (
    GROUP,
    JOIN_WARPS,
    JOINED,
    Tile,
    _place,
    choose_tile,
    join_kernel,
    none,
    piece_length,
)
from lightwell.model.kernels.cuda.packed_rows import BLOCK, HALF, PackedRows
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import aligned, aligned_rows, check_tensor

DTYPES = (torch.bfloat16, torch.float16)
"""The dtypes of rows that `grouped_matmul` multiplies."""
TILES = (
    Tile(32, 2, 64, BLOCK, num_warps=8, num_stages=3),
    Tile(32, 1, 64, BLOCK, num_warps=8, num_stages=3),
    Tile(16, 1, 64, BLOCK, num_warps=8, num_stages=4),
    Tile(16, 1, 32, BLOCK, num_warps=4, num_stages=4),
)
"""The tiles, from the largest."""
MAX_REGISTERS = 168
"""The compiler's limit of registers per thread, so that 12 warps fit on a multiprocessor; its own limit spills some."""
UNPACKED, UNPACK_WARPS = 32, 4
"""Outputs and warps of a program of `unpack_kernel`."""
_HALF, _BLOCK = tl.constexpr(HALF), tl.constexpr(BLOCK)


@triton.jit
def _codes(codes, high, at, high_at, k, inner, half: tl.constexpr, BITS: tl.constexpr):
    """Return the codes of half a block, int32 [G, W, C]. at, high_at: the bytes of each output before block 0
    [1, 1, C]; inner: the numbers 0 to 63 [G, W, 1].
    """
    if BITS == 8:
        code = tl.load(codes + at + (k + half * _HALF + inner)).to(tl.int32)
    else:
        code = (tl.load(codes + at + (k // 2 + inner)).to(tl.int32) >> 4 * half) & 15
        if BITS > 4:
            EXTRA: tl.constexpr = BITS - 4
            S: tl.constexpr = 16 * EXTRA
            upper = tl.load(high + high_at + (k // _BLOCK * S + inner % S)).to(tl.int32)
            upper = (upper >> EXTRA * (inner // S + half * _HALF // S)) & ((1 << EXTRA) - 1)
            code = code | (upper << 4)
    return code


@triton.jit
def _of_group(numbers, k, SIZE: tl.constexpr, K, N, column):
    """Return the numbers of the groups of half a block, [G, 1, C], of [K / SIZE, N]. k: their first inputs."""
    return tl.load(numbers + tl.minimum(k // SIZE, (K - 1) // SIZE) * N + column)


@triton.jit
def _half_weight(rows, at, high_at, column, k, N, K, half: tl.constexpr, FORM: tl.constexpr, DTYPE: tl.constexpr):
    """Return the numbers of half a block, rounded to a dtype, float32 [64, C]. rows: the tensors of `PackedRows`;
    column: the outputs [1, 1, C]; FORM: `_form`.
    """
    codes, high, scales, mins, scale_factors, min_factors, zeros = rows
    VALUES: tl.constexpr = FORM[2]
    SIZE: tl.constexpr = FORM[3]
    SUPERBLOCK: tl.constexpr = FORM[4]
    W: tl.constexpr = min(SIZE, _HALF)
    group = tl.arange(0, _HALF // W)[:, None, None]
    inner = group * W + tl.arange(0, W)[None, :, None]
    code = _codes(codes, high, at, high_at, k, inner, half, FORM[0])
    if VALUES is not None:
        word = tl.where(code < 8, tl.where(code < 4, VALUES[0], VALUES[1]), tl.where(code < 12, VALUES[2], VALUES[3]))
        code = (word >> 8 * (code & 3)) & 255
    first = k + half * _HALF + group * W
    # A whole number below 2^23 is the fraction of a float32 of 2^23 plus that number.
    base = 8388608.0 - FORM[1]
    if zeros is not None:
        base = base + _of_group(zeros, first, SIZE, K, N, column).to(tl.float32)
    value = (code | 0x4B000000).to(tl.float32, bitcast=True) - base
    scale = _of_group(scales, first, SUPERBLOCK, K, N, column)
    if scales.dtype.element_ty == tl.uint8:
        scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    else:
        scale = scale.to(tl.float32)
    if scale_factors is not None:
        scale = scale * _of_group(scale_factors, first, SIZE, K, N, column).to(tl.float32)
    if mins is None:
        number = value * scale
    else:
        least = _of_group(mins, first, SUPERBLOCK, K, N, column).to(tl.float32)
        if min_factors is not None:
            least = least * _of_group(min_factors, first, SIZE, K, N, column).to(tl.float32)
        number = tl.fma(value, scale, least)
    return tl.reshape(rounded(number, DTYPE), (_HALF, code.shape[2]))


@triton.jit(do_not_specialize=["R", "start"])
def grouped_matmul_kernel(
    x, codes, high, scales, mins, scale_factors, min_factors, zeros, bias, out, x_distance, code_distance,
    high_distance, start, R, N, K, piece, all_outputs,
    ROWS: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, IS_WHOLE: tl.constexpr,
    WIDEN: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one piece of K: grid (tiles, pieces).

    piece: its length. out: [R, all outputs], or float32 [pieces, R, all outputs]; these rows are the N outputs from
    `start` on. code_distance, high_distance: bytes of an output. IS_WHOLE: whether K is a multiple of 128.
    """
    DTYPE: tl.constexpr = x.dtype.element_ty
    first_row, first_column = _place(tl.program_id(0), R, N, ROWS * CHUNKS, COLUMNS, GROUP)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    # Addresses of 64 bits for the tile, and distances of 32 bits within it, which take half the registers.
    codes += first_column.to(tl.int64) * code_distance
    scales += first_column
    if high is not None:
        high += first_column.to(tl.int64) * high_distance
    if mins is not None:
        mins += first_column
    if scale_factors is not None:
        scale_factors += first_column
    if min_factors is not None:
        min_factors += first_column
    if zeros is not None:
        zeros += first_column
    weight = (codes, high, scales, mins, scale_factors, min_factors, zeros)
    # Rows and outputs after the last are copies of the last, and are not stored.
    own = (tl.minimum(column, N - 1) - first_column)[None, None, :]
    inner = tl.arange(0, _HALF)
    rows, sums = none(), none()
    for i in tl.static_range(CHUNKS):
        last = tl.minimum(row + i * ROWS, R - 1).to(tl.int64)
        rows += (x + last[:, None] * x_distance + inner[None, :],)
        sums += (tl.zeros([ROWS, COLUMNS], tl.float32),)
    begin = tl.program_id(1) * piece
    for k in range(begin, tl.minimum(begin + piece, K), _BLOCK):
        for half in tl.static_range(2):
            b = _half_weight(weight, own * code_distance, own * high_distance, own, k, N, K, half, FORM, DTYPE)
            is_in = inner < K - k - half * _HALF
            if not IS_WHOLE:  # a padded code may be infinite in float16
                b = tl.where(is_in[:, None], b, 0.0)
            if not WIDEN:
                b = b.to(DTYPE)
            following = none()
            for i in tl.static_range(CHUNKS):
                place = rows[i] + (k + half * _HALF)
                a = tl.load(place) if IS_WHOLE else tl.load(place, mask=is_in[None, :], other=0.0)
                if WIDEN:
                    a = a.to(tl.float32)
                following += (tl.dot(a, b, sums[i], input_precision="ieee"),)
            sums = following
    is_out = column < N
    added = 0.0
    if bias is not None:
        added = tl.load(bias + start + column, mask=is_out, other=0.0).to(tl.float32)[None, :]
    stored: tl.constexpr = out.dtype.element_ty
    for i in tl.static_range(CHUNKS):
        to = row + i * ROWS
        place = out + (tl.program_id(1).to(tl.int64) * R + to)[:, None] * all_outputs + (start + column)[None, :]
        y = sums[i] if bias is None else sums[i] + added
        tl.store(place, rounded(y, stored).to(stored), mask=(to < R)[:, None] & is_out[None, :])


@triton.jit(do_not_specialize=["R", "first"])
def unpack_kernel(
    ids, codes, high, scales, mins, scale_factors, min_factors, zeros, out, code_distance, high_distance, first, R, N,
    K, COLUMNS: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Write the numbers of one block of some outputs to out [R, K]: grid (tiles of outputs, blocks). The outputs are
    `ids` [R] int64, or R from `first` on.
    """
    DTYPE: tl.constexpr = out.dtype.element_ty
    row, k = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * _BLOCK
    last = tl.minimum(row, R - 1)
    own = ((first + last).to(tl.int64) if ids is None else tl.load(ids + last))[None, None, :]
    weight = (codes, high, scales, mins, scale_factors, min_factors, zeros)
    for half in tl.static_range(2):
        number = _half_weight(weight, own * code_distance, own * high_distance, own, k, N, K, half, FORM, DTYPE)
        at = k + half * _HALF + tl.arange(0, _HALF)
        place = out + row.to(tl.int64)[None, :] * K + at[:, None]
        tl.store(place, number.to(DTYPE), mask=(at < K)[:, None] & (row < R)[None, :])


def _tensors(part: PackedRows) -> tuple[Tensor | None, ...]:
    return (part.codes, part.high, part.scales, part.mins, part.scale_factors, part.min_factors, part.zeros)


def _distances(part: PackedRows) -> tuple[int, int]:
    return part.codes.shape[1], 0 if part.high is None else part.high.shape[1]


def _form(part: PackedRows) -> tuple[Any, ...]:
    """Return bits, lowest number, values, and inputs of a group and of a superblock."""
    return part.bits, part.lowest, part.values, part.group, part.superblock


def grouped_matmul(x: Tensor, parts: Sequence[PackedRows], bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias: x [R, K], parts of [N, K] each, and bias [all outputs] of x's dtype -> [R, all outputs].
    Meant for at most `FEW_ROWS` rows: pieces of K always have separate programs.

    The sum and the bias are added in float32 and rounded once. Rows may be slices of wider rows.

    Raises ValueError for shapes and dtypes that do not fit.
    """
    num_outputs = sum(part.num_outputs for part in parts)
    check_tensor("x", x, DTYPES, (None, None))
    num_rows, num_inputs = x.shape
    if bias is not None:
        check_tensor("bias", bias, (x.dtype,), (num_outputs,))
        bias = aligned(bias)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    x, distance = aligned_rows(x)
    length = piece_length(num_outputs, num_inputs)
    pieces = -(-num_inputs // length)
    sums = torch.empty(pieces, num_rows, num_outputs, dtype=torch.float32, device=x.device) if pieces > 1 else out
    start = 0
    for part in parts:
        tile = choose_tile(num_rows, part.num_outputs, pieces, x.dtype, TILES)
        grouped_matmul_kernel[(tile.count(num_rows, part.num_outputs), pieces)](
            x, *_tensors(part), None if pieces > 1 else bias, sums, distance, *_distances(part), start, num_rows,
            part.num_outputs, num_inputs, length, num_outputs,
            ROWS=tile.rows, CHUNKS=tile.chunks, COLUMNS=tile.columns, GROUP=GROUP, IS_WHOLE=num_inputs % BLOCK == 0,
            WIDEN=IS_INTERPRETED, FORM=_form(part),
            num_warps=tile.num_warps, num_stages=tile.num_stages, maxnreg=MAX_REGISTERS,
        )  # fmt: skip
        start += part.num_outputs
    if pieces > 1:
        join_kernel[(num_rows, triton.cdiv(num_outputs, JOINED))](
            sums, bias, out, num_rows, num_outputs, PIECES=pieces, BLOCK=JOINED, num_warps=JOIN_WARPS
        )
    return out


def unpack(part: PackedRows, num_inputs: int, outputs: Tensor | range, out: Tensor) -> None:
    """Write the numbers of some outputs, int64 [n] or a range, to out [n, K], contiguous, rounded to its dtype."""
    if len(outputs):
        ids, first = (None, outputs.start) if isinstance(outputs, range) else (outputs, 0)
        unpack_kernel[(triton.cdiv(len(outputs), UNPACKED), triton.cdiv(num_inputs, BLOCK))](
            ids, *_tensors(part), out, *_distances(part), first, len(outputs), part.num_outputs, num_inputs,
            COLUMNS=UNPACKED, FORM=_form(part), num_warps=UNPACK_WARPS,
        )  # fmt: skip
