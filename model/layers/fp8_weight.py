"""Weights of 8-bit floating-point numbers, for GPUs of compute capability 8.9 and above.

Weights and rows are e4m3: a sign, 4 bits of exponent, 3 of mantissa, largest number 448, smallest 2^-9. Each output of
the weight and each input row has a scale: its largest absolute value / 448. Weights are quantised once, rows at each
product. Rounding changes a number by at most 2^-4 of itself, or by 2^-10 scales if it is tiny. torch sums the products
in float32.

Axes: R rows, K inputs, N outputs.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.forms import Weight
from lightwell.model.layers import fixed_shapes
from lightwell.model.layers.dense_weight import activate

LEAST_CAPABILITY = (8, 9)
"""The lowest compute capability with products of e4m3 numbers."""
LARGEST = 448.0
"""The largest number of e4m3."""
_MULTIPLE = 16
"""torch's product requires that K and N are multiples of this."""


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """Rows [n, K], each quantised with its own scale, on any device."""

    values: Tensor
    """[n, K] float8_e4m3fn."""
    scales: Tensor
    """[n, 1] float32."""

    @classmethod
    def quantize(cls, rows: Tensor) -> Self:
        """Return rows [n, K] / scale rounded to e4m3, ties to even. A row with infinity or NaN becomes NaN."""
        # Rows of zeros need a scale too: at least the smallest normal number of float32.
        # A tensor as divisor: on a GPU torch multiplies by the reciprocal of a Python number, which rounds differently.
        largest = torch.full((1, 1), LARGEST, device=rows.device)
        scales = (rows.abs().amax(1, keepdim=True).float() / largest).clamp_min(torch.finfo(torch.float32).tiny)
        # No clamp is needed: e4m3 rounds numbers up to 464 to 448, and the error of the division is far smaller.
        return cls((rows / scales).to(torch.float8_e4m3fn), scales)

    def to_dense(self) -> Tensor:
        """Return the dequantised rows, [n, K] float32."""
        return self.values.float() * self.scales


class Fp8Weight(Weight):
    """A weight [N, K] with a scale for each output, for rows of bfloat16 or float16."""

    def __init__(self, weight: Tensor, *, batch_invariant: bool = True, uses_triton: bool = False) -> None:
        """Quantise the weight.

        batch_invariant: whether the bits of an output row depend only on its input row. uses_triton: whether our
        Triton kernel quantises the rows, to the same bits in one launch.

        Raises ValueError when a number is infinity or NaN.
        """
        self.num_outputs, self.num_inputs = weight.shape
        self._dtype = weight.dtype
        self._batch_invariant = batch_invariant
        self._quantize = _quantized
        if uses_triton:
            from lightwell.model.kernels.cuda.quantize_rows import (
                quantize_rows,  # imports Triton, which a CPU does not need
            )

            self._quantize = quantize_rows
        if not torch.isfinite(weight).all():
            raise ValueError(f"fp8 cannot represent a weight {list(weight.shape)} with infinite numbers or NaN")
        padding = 0, -self.num_inputs % _MULTIPLE, 0, -self.num_outputs % _MULTIPLE
        self._rows = Fp8Rows.quantize(F.pad(weight, padding))

    @property
    def stored(self) -> str:
        return "fp8, a scale for each output"

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        y = self._in_tiles(x) if self._batch_invariant else self._product(x)
        y = y[:, : self.num_outputs].contiguous()
        if bias is not None:
            y += bias
        return y if activation is None else activate(y, activation, batch_invariant=self._batch_invariant)

    def to_dense(self) -> Tensor:
        """Return a dequantised copy of the weight [N, K], in the dtype of the original."""
        return self._rows.to_dense()[: self.num_outputs, : self.num_inputs].to(self._dtype)

    def _product(self, x: Tensor) -> Tensor:
        """Return x W^T: x [R, K] -> [R, N with padding], in x's dtype."""
        own = self._rows
        if not len(x):
            return x.new_empty(0, len(own.values))
        values, scales = self._quantize(x, own.values.shape[1])
        # torch before 2.10 and cuBLAS before 12.9 support scales of rows only with bfloat16 output.
        y = torch._scaled_mm(values, own.values.t(), scale_a=scales, scale_b=own.scales.t(), out_dtype=torch.bfloat16)
        return y.to(x.dtype)

    def _in_tiles(self, x: Tensor) -> Tensor:
        """Return `_product(x)`, computed by products of one shape, as in `fixed_shapes.linear`."""
        size = fixed_shapes.LINEAR_ROWS
        tiles = torch.split(F.pad(x, (0, 0, 0, -len(x) % size)), size)
        return torch.cat([self._product(tile) for tile in tiles])[: len(x)] if len(x) else self._product(x)


def _quantized(x: Tensor, padded: int) -> tuple[Tensor, Tensor]:
    """Return the numbers and scales of rows, as `quantize_rows` does."""
    padding = padded - x.shape[1]
    rows = Fp8Rows.quantize(F.pad(x, (0, padding)) if padding else x)  # F.pad copies even without padding
    return rows.values, rows.scales
