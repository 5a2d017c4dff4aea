"""The largest number of each row of logits, in two launches. torch's search uses one program for each row, and takes as
long as fifteen other kernels of a step.

Axes: R rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.tensors import DTYPES, check_tensor

BLOCK, NUM_WARPS = 2048, 4
"""Numbers of a row that a program reads, and its warps."""


@triton.jit
def row_max_kernel(x, found, distance, V, BLOCK: tl.constexpr):
    """Find the largest number of a block of a row: grid (R, blocks). The result, int64, orders blocks by their largest
    number, then by the lower column; NaN is larger than all numbers.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + row * distance + column, mask=column < V, other=float("-inf")).to(tl.float32)
    bits = tl.where(numbers == 0.0, 0.0, numbers).to(tl.int32, bitcast=True)  # -0 equals 0
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, order)
    best = tl.max(order, 0)
    first = tl.min(tl.where(order == best, column, 0x7FFFFFFF), 0)
    tl.store(found + row * tl.num_programs(1) + block, (best.to(tl.int64) << 32) | (0x7FFFFFFF - first))


@triton.jit
def join_row_max_kernel(x, found, out, distance, num_blocks, BLOCKS: tl.constexpr):
    """Write the column of a row's largest number, and the number: grid (R,)."""
    row, block = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS)
    best = tl.max(tl.load(found + row * num_blocks + block, mask=block < num_blocks, other=-(1 << 63)), 0)
    column = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    tl.store(out + 2 * row, column)
    number = tl.load(x + row * distance + column).to(tl.float64)
    tl.store(out + 2 * row + 1, number.to(tl.int64, bitcast=True))


def row_max(x: Tensor) -> Tensor:
    """Return [R, 2] int64: for each row of x [R, V] the lowest column of its largest number, or of the first NaN, and
    the bits of that number as float64.

    Raises ValueError for another shape or dtype.
    """
    check_tensor("x", x, DTYPES, (None, None))
    x = x if x.stride(1) == 1 else x.contiguous()
    num_rows, size = x.shape
    num_blocks = triton.cdiv(size, BLOCK)
    found = torch.empty(num_rows, num_blocks, dtype=torch.int64, device=x.device)
    out = torch.empty(num_rows, 2, dtype=torch.int64, device=x.device)
    if num_rows:
        row_max_kernel[(num_rows, num_blocks)](x, found, x.stride(0), size, BLOCK=BLOCK, num_warps=NUM_WARPS)
        join_row_max_kernel[(num_rows,)](
            x, found, out, x.stride(0), num_blocks, BLOCKS=triton.next_power_of_2(num_blocks), num_warps=1
        )
    return out
