"""Quantisation of rows to e4m3 numbers, with one scale for each row, in one launch (`model.layers.fp8_weight`).

Rounding uses the bits of the numbers, which works on every GPU and in the interpreter.

Axes: R rows, K numbers of a row.
"""

import triton
import triton.language as tl
from torch import Tensor, float8_e4m3fn, float32, uint8

from lightwell.model.kernels.cuda.tensors import DTYPES, aligned_rows, check_tensor

BLOCK, NUM_WARPS = 2048, 8
"""Numbers of a row that a program reads at once, and its warps."""


@triton.jit
def _e4m3(x):
    """Return the bits, uint8, of the e4m3 numbers nearest to x, float32 of at most 448, ties to even."""
    bits = tl.abs(x).to(tl.uint32, bitcast=True)
    # The fraction loses 20 bits, and the bias of the exponent falls by 120.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # From 2^14 the steps of float32 are 2^-9, like those of e4m3 below 2^-6.
    tiny = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(tl.abs(x) < 0.015625, tiny, normal)
    code = tl.where(tl.abs(x) < 512.0, code, 0x7F)  # else it is NaN
    return (code | ((x.to(tl.uint32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def quantize_rows_kernel(x, values, scales, distance, K, padded, BLOCK: tl.constexpr):
    """Quantise a row, and pad it with zeros: grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        number = tl.load(x + row * distance + start + column, mask=start + column < K, other=0.0).to(tl.float32)
        size = tl.abs(number)
        largest = tl.maximum(largest, tl.where(size < float("inf"), size, float("inf")))  # NaN too
    most = tl.max(largest, 0)
    # A row of zeros has a scale too: the least normal float32.
    scale = tl.where(most < float("inf"), tl.maximum(tl.div_rn(most, 448.0), 1.1754943508222875e-38), float("nan"))
    tl.store(scales + row, scale)
    for start in range(0, padded, BLOCK):
        number = tl.load(x + row * distance + start + column, mask=start + column < K, other=0.0).to(tl.float32)
        code = _e4m3(tl.div_rn(number, scale + tl.zeros([BLOCK], tl.float32)))
        tl.store(values + row * padded + start + column, code, mask=start + column < padded)


def quantize_rows(x: Tensor, padded: int) -> tuple[Tensor, Tensor]:
    """Return the e4m3 numbers nearest to x [R, K] / scale, ties to even, padded with zeros to [R, padded], and the
    scales [R, 1] float32, each its row's largest number / 448. A row with infinity or NaN becomes NaN.

    Raises ValueError for another shape or dtype.
    """
    check_tensor("x", x, DTYPES, (None, None))
    x, distance = aligned_rows(x)
    values = x.new_empty(len(x), padded, dtype=uint8)
    scales = x.new_empty(len(x), 1, dtype=float32)
    if len(x):
        quantize_rows_kernel[(len(x),)](
            x, values, scales, distance, x.shape[1], padded, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False
        )
    return values.view(float8_e4m3fn), scales
