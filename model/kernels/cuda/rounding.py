"""Rounds numbers inside a kernel to the dtype that they are stored in."""

import triton
import triton.language as tl

from model.kernels.cuda.interpreter import IS_INTERPRETED

_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Return x, float32, rounded to the nearest number of a dtype, ties to even, as float32.

    Triton's interpreter cuts bfloat16 numbers off, so there they are rounded by their bits.
    """
    if _IS_INTERPRETED and tl.bfloat16 == DTYPE:
        bits = x.to(tl.uint32, bitcast=True)
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        is_nan = bits << 1 > 0xFF000000
        return tl.where(is_nan, x, (upper << 16).to(tl.float32, bitcast=True))
    return x.to(DTYPE).to(tl.float32)
