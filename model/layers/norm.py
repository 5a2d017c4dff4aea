"""RMSNorm and LayerNorm over the last axis.

Both give a row the same bits in any batch: the statistics are sums over one row in an order that depends only on its
length (torch divides a row among threads from 32768 elements on), and all later operations (+, *, /, square root) are
correctly rounded at any place.

Axes: rows, d.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.kernels import rows
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.fixed_shapes import row_sums


class Norm(Protocol):
    """A norm: x [rows, d] -> [rows, d], same dtype."""

    weight: Tensor
    """[d]"""

    def __call__(self, x: Tensor) -> Tensor: ...

    def scale(self, x: Tensor) -> Tensor:
        """Return the divisor of the (centred) rows: x [rows, d] -> [rows, 1], float32 (float64 in float64)."""
        ...

    def normalized(self, x: Tensor) -> Tensor:
        """Return the (centred) rows divided by their scale, before weight and bias: x [rows, d] -> [rows, d], float32
        (float64 in float64).
        """
        ...


class RmsNorm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(
        self,
        weight: Tensor,
        eps: float,
        *,
        weight_offset: float = 0.0,
        rounds_once: bool = False,
        kernels: KernelConfig = AUTO,
    ) -> None:
        """Keep weight [d], of the model's dtype.

        weight_offset: a number added to the weight in float32 (Gemma). With it, or with rounds_once, the output is
        rounded to the model's dtype once, after the product with the weight. Otherwise it is also rounded before the
        product, as in Llama's training. Low precisions are normalised in float32, float64 in float64.
        """
        self.eps = eps
        self._wide = at_least_float32(weight.dtype)
        self.rounds_once = rounds_once or weight_offset != 0
        """Whether only the product with `weight`, which is then float32, is rounded."""
        self.weight = weight.to(self._wide) + weight_offset if self.rounds_once else weight
        self.native = kernels.why_not_native(weight.dtype, weight.device) is None
        """Whether our kernels normalise the rows."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.native:
            return rows.rms_norm(x.contiguous(), self.weight, self.eps)
        if x.dtype == self._wide or self.rounds_once:
            return F.rms_norm(x.to(self._wide), self.weight.shape, self.weight, self.eps).to(x.dtype)
        return F.rms_norm(x.to(self._wide), self.weight.shape, None, self.eps).to(x.dtype) * self.weight

    def scale(self, x: Tensor) -> Tensor:
        wide = x.to(self._wide)
        return torch.sqrt(row_means(wide * wide) + self.eps)

    def normalized(self, x: Tensor) -> Tensor:
        return x.to(self._wide) / self.scale(x)


class LayerNorm:
    """LayerNorm: (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float, *, kernels: KernelConfig = AUTO) -> None:
        """Keep weight [d] and bias [d]. Low precisions are normalised in float32, float64 in float64."""
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self.native = kernels.why_not_native(weight.dtype, weight.device) is None
        """Whether our kernels normalise the rows."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.native:
            return rows.layer_norm(x.contiguous(), self.weight, self.bias, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def scale(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_float32(x.dtype))
        if wide.device.type == "cpu":
            return torch.sqrt(wide.var(-1, correction=0, keepdim=True) + self.eps)
        centred = wide - row_means(wide)
        return torch.sqrt(row_means(centred * centred) + self.eps)

    def normalized(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_float32(x.dtype))
        return (wide - row_means(wide)) / self.scale(x)


def row_means(x: Tensor) -> Tensor:
    """Return the mean of each row, [rows, d] -> [rows, 1]. On a GPU torch.mean's order of sums depends on `rows`."""
    return x.mean(-1, keepdim=True) if x.device.type == "cpu" else row_sums(x) / x.shape[-1]
