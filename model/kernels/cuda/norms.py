"""Norms of rows inside a kernel, with the roundings of model/layers/norm.py.

Axes: d numbers of a row.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.config import NormKind
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import check_tensor

NormStep = Literal["none", "rms", "rms, rounded once", "layer"]
"""The norm at one place of a kernel, or "none"."""


@dataclass(frozen=True, slots=True, eq=False)
class NormWeights:
    """A norm and its parameters: x / sqrt(mean(x^2) + eps) * weight, or (x - mean(x)) / sqrt(var(x) + eps) * weight +
    bias.

    Raises ValueError for parameters that its kind does not have.
    """

    kind: NormKind
    weight: Tensor
    """[d], of the rows' dtype; float32 if `rounds_once`."""
    eps: float
    bias: Tensor | None = None
    """The bias of a LayerNorm, [d], of the rows' dtype, or None for zeros."""
    rounds_once: bool = False
    """Whether an RMSNorm rounds to the rows' dtype only after the product with `weight`."""

    def __post_init__(self) -> None:
        if self.kind == "rmsnorm" and self.bias is not None:
            raise ValueError("an rmsnorm has a bias; None is accepted")
        if self.kind == "layernorm" and self.rounds_once:
            raise ValueError("a layernorm has rounds_once, which it always does; False is accepted")

    @property
    def step(self) -> NormStep:
        """Return the kernel's constant for this norm."""
        if self.kind == "layernorm":
            return "layer"
        return "rms, rounded once" if self.rounds_once else "rms"

    def check(self, name: str, width: int, dtype: torch.dtype) -> None:
        """Raise ValueError, with the norm's name, if it does not fit rows of this width and dtype."""
        check_tensor(f"{name}.weight", self.weight, (torch.float32 if self.rounds_once else dtype,), (width,))
        if self.bias is not None:
            check_tensor(f"{name}.bias", self.bias, (dtype,), (width,))


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
