"""Computes RMSNorm and LayerNorm over the last axis. It knows one row at a time, but not its place in a network.

Both give a row the same bits whatever rows are next to it: the statistics are sums over one row in an order that
depends on its length alone (torch splits a single row among threads only from 32768 elements on), and everything after
them is adding, multiplying, dividing and square roots, which are correctly rounded at any place.

Axes: rows, d.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from model.kernels import rows
from model.kernels.choice import AUTO, KernelConfig
from model.layers.fixed_shapes import row_sums


class Norm(Protocol):
    """A norm: x [rows, d] -> [rows, d], same dtype."""

    weight: Tensor
    """[d]"""

    def __call__(self, x: Tensor) -> Tensor: ...

    def scale(self, x: Tensor) -> Tensor:
        """Return what the (centred) rows are divided by: x [rows, d] -> [rows, 1], float32, or float64 in float64."""
        ...

    def normalized(self, x: Tensor) -> Tensor:
        """Return the (centred) rows divided by their scale, before weight and bias: x [rows, d] -> [rows, d], float32,
        or float64 in float64.
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

        `weight_offset` is added to it in float32, and the result is then rounded to the model's dtype once, after the
        product (Gemma), as `rounds_once` asks for without an offset. Otherwise the rounding comes before the product,
        the order in which Llama was trained.
        Low precisions are normalised in float32, float64 in float64.
        """
        self.eps = eps
        self._wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.rounds_once = rounds_once or weight_offset != 0
        """Whether rounding comes only after the product with `weight`, which then is float32."""
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
        wide = x if x.dtype == torch.float64 else x.float()
        if wide.device.type == "cpu":
            return torch.sqrt(wide.var(-1, correction=0, keepdim=True) + self.eps)
        centred = wide - row_means(wide)
        return torch.sqrt(row_means(centred * centred) + self.eps)

    def normalized(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return (wide - row_means(wide)) / self.scale(x)


def row_means(x: Tensor) -> Tensor:
    """Return the mean of each row, [rows, d] -> [rows, 1]. On a GPU torch's own mean sums in an order that depends on
    the number of rows.
    """
    return x.mean(-1, keepdim=True) if x.device.type == "cpu" else row_sums(x) / x.shape[-1]
