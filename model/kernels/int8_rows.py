"""Quantisation of a weight matrix to int8, with one scale for each output.

Quantisation is symmetric and to the nearest: scale = (largest |weight| of the output) / 127, values = round(weight /
scale). So the error of each number is at most half a scale.

Axes: in, out.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

Quantization = Literal["none", "int8", "int4", "fp8"]
"""The format of the weights of linear layers: the checkpoint's numbers in the model's dtype, int8 as here, int4
(`model.quantized`), or fp8 (`model.layers.fp8_weight`).
"""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A quantised weight [out, in], on any device."""

    values: torch.Tensor
    """[out, in] int8, -127 .. 127."""
    scales: torch.Tensor
    """[out] float32."""
    dtype: torch.dtype
    """The dtype of the original weight."""

    stored: ClassVar[str] = "int8, a scale for each output"
    """The format in which the numbers are stored, as text for people."""

    @classmethod
    def quantize(cls, weight: torch.Tensor) -> "Int8Rows":
        """Return the int8 nearest to each number of weight [out, in].

        Raises ValueError when a number is not finite: all other numbers of its output would become 0.
        """
        scales = weight.abs().amax(1).float() / 127
        if not torch.isfinite(scales).all():
            raise ValueError(f"int8 cannot represent a weight {list(weight.shape)} with infinite numbers or NaN")
        divisors = torch.where(scales > 0, scales, 1)[:, None]
        return cls((weight / divisors).round_().to(torch.int8), scales, weight.dtype)

    def to_dense(self) -> torch.Tensor:
        """Return the dequantised weight, [out, in], rounded to its dtype."""
        return (self.values * self.scales[:, None]).to(self.dtype)
