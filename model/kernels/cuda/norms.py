"""Norms of rows inside a kernel, with the roundings of model/layers/norm.py.

Axes: d numbers of a row.
"""

from typing import Literal

import torch
import triton
import triton.language as tl

from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import check_tensor
from lightwell.model.kernels.program.steps import NormWeights

NormStep = Literal["none", "rms", "rms, rounded once", "layer"]
"""The norm at one place of a kernel, or "none"."""


def norm_step(norm: NormWeights | None, dtype: torch.dtype) -> NormStep:
    """Return the kernel's constant for a norm, or for none, of rows of a dtype."""
    if norm is None:
        return "none"
    if norm.is_centred:
        return "layer"
    return "rms" if norm.weight.dtype == dtype else "rms, rounded once"


def check_norm(name: str, norm: NormWeights, width: int, dtype: torch.dtype) -> None:
    """Raise ValueError, with the norm's name, if it does not fit rows of this width and dtype."""
    dtypes = {dtype: None} if norm.is_centred else {dtype: None, torch.float32: None}
    check_tensor(f"{name}.weight", norm.weight, tuple(dtypes), (width,))
    if norm.bias is not None:
        check_tensor(f"{name}.bias", norm.bias, (dtype,), (width,))


@triton.jit
def inverse_root(mean_of_squares, eps):
    """Return 1 / sqrt(mean + eps), both operations correctly rounded."""
    root = tl.sqrt_rn(mean_of_squares + eps)
    return tl.div_rn(tl.full(root.shape, 1.0, tl.float32), root)


@triton.jit
def rms_weighted(x, inverse, weight, ROUNDS_ONCE: tl.constexpr, DTYPE: tl.constexpr):
    """Return x * inverse * weight, rounded to DTYPE after each product or only after the last."""
    x = x * inverse
    if not ROUNDS_ONCE:
        x = rounded(x, DTYPE)
    return rounded(x * weight, DTYPE)


@triton.jit
def normed_row(
    x, column, weight, bias, eps, D: tl.constexpr, STEP: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """Return a row normalised and rounded to DTYPE, as float32. x: float32, with zeros from column D."""
    within = column < D
    # The weights are loaded before the sums, at which all threads wait.
    w = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    if STEP != "layer":
        inverse = inverse_root(tl.sum(x * x, 0) / D, eps)
        return rms_weighted(x, inverse, w, STEP == "rms, rounded once", DTYPE)
    x = tl.where(within, x - tl.sum(x, 0) / D, 0.0)
    x = x * inverse_root(tl.sum(x * x, 0) / D, eps) * w
    if bias is not None:
        x = x + tl.load(bias + column, mask=within, other=0.0).to(tl.float32)
    return rounded(x, DTYPE)
