"""The middle of a gated feed-forward network, activation(gate) * up, in one launch.

Axes: R rows, ff.
"""

from typing import Literal, get_args

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.config import Activation, ClampedGate
from lightwell.model.kernels.cuda.dependent_launch import launch_options, wait_for_kernels_ahead
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, check_tensor

BLOCK, NUM_WARPS = 1024, 4
"""Numbers and warps of a program: 8 numbers a thread, which one instruction loads in 16 bits."""
ACTIVATIONS = (*get_args(Activation), "sigmoid")


@triton.jit
def _sigmoid(x):
    """Return 1 / (1 + exp(-x)) without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """Return the activation of x in float32."""
    if ACTIVATION == "silu":
        return x * _sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # the root of 1 / 2
    elif ACTIVATION == "gelu_tanh":
        # 0.5 (1 + tanh(u)) is sigmoid(2 u), where u is sqrt(2 / pi) (x + 0.044715 x^3).
        return x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "sigmoid":
        return _sigmoid(x)
    else:
        return tl.where(x <= 0, 0.0, x)


@triton.jit
def gated_kernel(
    gate, up, out, gate_distance, up_distance, ff, limit, alpha,
    ACTIVATION: tl.constexpr, IS_CLAMPED: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK numbers of a row: grid (R, blocks)."""
    wait_for_kernels_ahead(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dtype: tl.constexpr = gate.dtype.element_ty
    x = tl.load(gate + row * gate_distance + column, mask=column < ff, other=0.0).to(tl.float32)
    y = tl.load(up + row * up_distance + column, mask=column < ff, other=0.0).to(tl.float32)
    if IS_CLAMPED:
        x, y = tl.minimum(x, limit) * alpha, (tl.clamp(y, -limit, limit) + 1.0) / alpha
        product = rounded(activated(x, ACTIVATION) * y, dtype)
    else:
        product = rounded(rounded(activated(x, ACTIVATION), dtype) * y, dtype)
    tl.store(out + row * ff + column, product.to(dtype), mask=column < ff)


def gated(
    gate: Tensor, up: Tensor, activation: Activation | Literal["sigmoid"], clamps: ClampedGate | None = None
) -> Tensor:
    """Return activation(gate) * up [R, ff] of gate and up [R, ff]. Rows may be slices of wider rows.

    The activation is computed in float32 and rounded to the dtype before the product, which is rounded again. With
    `clamps` (gpt-oss) the product is activation(alpha min(gate, limit)) * (clamp(up) + 1) / alpha, rounded once.

    Raises ValueError for another shape, dtype or activation.
    """
    check_tensor("gate", gate, DTYPES, (None, None))
    check_tensor("up", up, (gate.dtype,), gate.shape)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; {', '.join(ACTIVATIONS)} are accepted")
    gate, up = (each if each.stride(1) == 1 else each.contiguous() for each in (gate, up))
    num_rows, ff = gate.shape
    out = torch.empty(num_rows, ff, dtype=gate.dtype, device=gate.device)
    limit, alpha = (1.0, 1.0) if clamps is None else (clamps.limit, clamps.alpha)
    if out.numel():
        gated_kernel[(num_rows, triton.cdiv(ff, BLOCK))](
            gate, up, out, gate.stride(0), up.stride(0), ff, float(limit), float(alpha), ACTIVATION=activation,
            IS_CLAMPED=clamps is not None, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
            **launch_options(gate.device),
        )  # fmt: skip
    return out
