"""Rounding of numbers inside a kernel to the dtype of their storage."""

import triton
import triton.language as tl

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED

_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Return x, float32, rounded to the nearest number of a dtype, ties to even, as float32.

    Triton's interpreter truncates to bfloat16, so there the bits are rounded.
    """
    if _IS_INTERPRETED and tl.bfloat16 == DTYPE:
        bits = x.to(tl.uint32, bitcast=True)
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        is_nan = bits << 1 > 0xFF000000
        return tl.where(is_nan, x, (upper << 16).to(tl.float32, bitcast=True))
    return x.to(DTYPE).to(tl.float32)
