"""The middle of a gated feed-forward network, activation(gate) * up, in one launch.

Axes: R rows, ff.
"""

from typing import get_args

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.cuda.dependent_launch import launch_options, wait_for_kernels_ahead
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, check_tensor

BLOCK, NUM_WARPS = 1024, 4
"""Numbers and warps of a program: 8 numbers a thread, which one instruction loads in 16 bits."""


@triton.jit
def _sigmoid(x):
    """Return 1 / (1 + exp(-x)) without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """Return the activation of x in float32."""
    if ACTIVATION == "silu":
        return x * _sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # the root of 1 / 2
    elif ACTIVATION == "gelu_tanh":
        # 0.5 (1 + tanh(u)) is sigmoid(2 u), where u is sqrt(2 / pi) (x + 0.044715 x^3).
        return x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        return tl.where(x <= 0, 0.0, x)


@triton.jit
def gated_kernel(
    gate_up, out, distance, ff, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Compute BLOCK numbers of a row: grid (R, blocks)."""
    wait_for_kernels_ahead(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dtype: tl.constexpr = gate_up.dtype.element_ty
    gate = tl.load(gate_up + row * distance + column, mask=column < ff, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * distance + ff + column, mask=column < ff, other=0.0).to(tl.float32)
    product = rounded(rounded(_activated(gate, ACTIVATION), dtype) * up, dtype)
    tl.store(out + row * ff + column, product.to(dtype), mask=column < ff)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return activation(gate) * up [R, ff] from gate_up [R, 2 ff]: in each row the gate, then up.

    The activation is computed in float32 and rounded to the dtype before the product, which is rounded again.

    Raises ValueError for another shape, dtype or activation.
    """
    check_tensor("gate_up", gate_up, DTYPES, (None, None))
    num_rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up has rows of {both}; an even number is accepted")
    if activation not in get_args(Activation):
        raise ValueError(f"activation is {activation!r}; {', '.join(get_args(Activation))} are accepted")
    if gate_up.stride(1) != 1:
        gate_up = gate_up.contiguous()
    ff = both // 2
    out = torch.empty(num_rows, ff, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        gated_kernel[(num_rows, triton.cdiv(ff, BLOCK))](
            gate_up, out, gate_up.stride(0), ff, ACTIVATION=activation, BLOCK=BLOCK, num_warps=NUM_WARPS,
            enable_fp_fusion=False, **launch_options(gate_up.device),
        )  # fmt: skip
    return out
