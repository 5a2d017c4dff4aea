"""Adds to the residual stream and normalises it in one launch, between two products of a block.

The bits of a row depend only on the row: one program computes one row, in an order that depends only on its width and
dtype, and without fused multiply-adds.

Axes: R rows, d model width.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.dependent_launch import launch_options, wait_for_kernels_ahead
from lightwell.model.kernels.cuda.norms import check_norm, norm_step, normed_row
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, aligned, aligned_rows, check_tensor
from lightwell.model.kernels.program.steps import NormWeights

MAX_WIDTH = 16384
"""The longest row, which fits the registers of 16 warps."""


@triton.jit
def add_norm_kernel(
    x, first, second, stream, normed,
    after_weight, after_bias, of_sum_weight, of_sum_bias, before_weight, before_bias,
    x_distance, first_distance, second_distance, scale, stream_scale, after_eps, of_sum_eps, before_eps,
    D: tl.constexpr, BLOCK: tl.constexpr, AFTER: tl.constexpr, OF_SUM: tl.constexpr, BEFORE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute one row: grid (R,). AFTER, OF_SUM and BEFORE are of `NormStep`."""
    wait_for_kernels_ahead(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    within = column < D
    dtype: tl.constexpr = x.dtype.element_ty
    s = tl.load(x + row * x_distance + column, mask=within, other=0.0).to(tl.float32)
    if first is not None:
        y = tl.load(first + row * first_distance + column, mask=within, other=0.0).to(tl.float32)
        if second is not None:
            y = y + tl.load(second + row * second_distance + column, mask=within, other=0.0).to(tl.float32)
            y = rounded(y, dtype)
        if AFTER != "none":
            y = normed_row(y, column, after_weight, after_bias, after_eps, D, AFTER, dtype)
        s = rounded(s + rounded(y * scale, dtype), dtype)
        if OF_SUM != "none":
            s = normed_row(s, column, of_sum_weight, of_sum_bias, of_sum_eps, D, OF_SUM, dtype)
        s = rounded(s * stream_scale, dtype)
        tl.store(stream + row * D + column, s.to(dtype), mask=within)
    if BEFORE != "none":
        s = normed_row(s, column, before_weight, before_bias, before_eps, D, BEFORE, dtype)
        tl.store(normed + row * D + column, s.to(dtype), mask=within)


def num_warps(width: int) -> int:
    """Return the warps for a row of d numbers: 8 numbers a thread, or up to 32 in rows of more than 2048.

    With 32 warps a thread has 64 registers, too few for the widest rows of float32.
    """
    block = int(triton.next_power_of_2(width))
    return min(16, block // 512) if block > 2048 else max(1, block // 256)


def add_norm(
    x: Tensor,
    added: Sequence[Tensor],
    *,
    scale: float = 1.0,
    stream_scale: float = 1.0,
    after: NormWeights | None = None,
    of_sum: NormWeights | None = None,
    before: NormWeights | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the residual stream s after additions, and before(s): both [R, d], new and contiguous.

    x [R, d]: the stream. added: none, one or two tensors [R, d] of its dtype. With one,
    s = stream_scale * of_sum(x + scale * after(y)); with two, s = (y + z) + x, without norms; with none, s is x itself.
    Without `before` the second result is None. Each sum, product and norm is rounded to the dtype, as in
    model/network/block.py. Rows may be slices of wider rows.

    Raises ValueError for shapes and dtypes that do not fit, and rows of more than 16384 numbers.
    """
    check_tensor("x", x, DTYPES, (None, None))
    num_rows, width = x.shape
    if not 0 < width <= MAX_WIDTH:
        raise ValueError(f"x has rows of {width}; 1 to {MAX_WIDTH} are accepted")
    if len(added) > 2:
        raise ValueError(f"{len(added)} tensors are added; at most 2 are accepted")
    if len(added) != 1 and (after is not None or of_sum is not None):
        raise ValueError(f"{len(added)} tensors are added; with the norms after and of_sum 1 is accepted")
    for y in added:
        check_tensor("added", y, (x.dtype,), (num_rows, width))
    norms = {"after": after, "of_sum": of_sum, "before": before}
    for name, norm in norms.items():
        if norm is not None:
            check_norm(name, norm, width, x.dtype)
    stream = torch.empty(num_rows, width, dtype=x.dtype, device=x.device) if added else x
    normed = None if before is None else torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
    if not num_rows or (not added and before is None):
        return stream, normed
    rows, distance = aligned_rows(x)
    first, first_distance = aligned_rows(added[0]) if added else (None, width)
    second, second_distance = aligned_rows(added[1]) if len(added) > 1 else (None, width)
    weights = []
    for norm in norms.values():
        weights.append(None if norm is None else aligned(norm.weight))
        weights.append(None if norm is None or norm.bias is None else aligned(norm.bias))
    add_norm_kernel[(num_rows,)](
        rows, first, second, stream if added else None, normed, *weights, distance, first_distance, second_distance,
        float(scale), float(stream_scale), *(0.0 if norm is None else norm.eps for norm in norms.values()),
        D=width,
        BLOCK=triton.next_power_of_2(width),
        **{name.upper(): norm_step(norm, x.dtype) for name, norm in norms.items()},
        num_warps=num_warps(width),
        enable_fp_fusion=False,
        **launch_options(x.device),
    )  # fmt: skip
    return stream, normed
