"""Multiplies by a weight of 8-bit floating-point numbers on cards that can (compute capability 8.9 and above).

Weight and rows are e4m3: a sign, 4 bits of exponent, 3 of mantissa, largest 448, least 2^-9. Each output of the weight
and each row has a scale, its largest number / 448: the weight's once, the rows' anew at every product. Rounding moves a
number by 2^-4 of itself at most, or by 2^-10 scales if it is tiny. torch sums the products in float32.

Axes: R rows, K inputs, N outputs.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from model.config import Activation
from model.kernels.forms import Weight
from model.layers import fixed_shapes
from model.layers.dense_weight import activate, activate_in_any_batch

LEAST_CAPABILITY = (8, 9)
"""The compute capability from which cards multiply such numbers."""
LARGEST = 448.0
"""The largest number of e4m3."""
_MULTIPLE = 16
"""The number that torch's product wants K and N to be multiples of."""


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """Rows [n, K] quantised one by one, on any device."""

    values: Tensor
    """[n, K] float8_e4m3fn."""
    scales: Tensor
    """[n, 1] float32."""

    @classmethod
    def quantize(cls, rows: Tensor) -> Self:
        """Return the e4m3 numbers nearest to rows [n, K] / scale, ties to even. A row that has infinity or NaN becomes
        NaN.
        """
        # Zeros have a scale too, and the least is one with all of float32's digits.
        # By a tensor: torch on a card would multiply by a plain number's reciprocal, which rounds otherwise.
        largest = torch.full((1, 1), LARGEST, device=rows.device)
        scales = (rows.abs().amax(1, keepdim=True).float() / largest).clamp_min(torch.finfo(torch.float32).tiny)
        # No quotient needs to be clamped: up to 464 e4m3 rounds to 448, and what float32 rounds is far below that.
        return cls((rows / scales).to(torch.float8_e4m3fn), scales)

    def to_dense(self) -> Tensor:
        """Return the dequantised rows, [n, K] float32."""
        return self.values.float() * self.scales


class Fp8Weight(Weight):
    """A weight [N, K] quantised output by output, for rows of bfloat16 or float16."""

    def __init__(self, weight: Tensor, *, batch_invariant: bool = True, uses_triton: bool = False) -> None:
        """Quantise the weight. batch_invariant: whether the bits of a row of a product may depend on that row alone.
        uses_triton: whether a card's kernel rounds the rows, to the same bits in one launch.

        Raises ValueError when a number is not finite.
        """
        self.num_outputs, self.num_inputs = weight.shape
        self._dtype = weight.dtype
        self._batch_invariant = batch_invariant
        self._quantize = _quantized
        if uses_triton:
            from model.kernels.cuda.quantize_rows import quantize_rows  # here: a CPU has no need of Triton

            self._quantize = quantize_rows
        if not torch.isfinite(weight).all():
            raise ValueError(f"fp8 cannot hold a weight {list(weight.shape)} with numbers that are not finite")
        filling = 0, -self.num_inputs % _MULTIPLE, 0, -self.num_outputs % _MULTIPLE
        self._rows = Fp8Rows.quantize(F.pad(weight, filling))

    @property
    def stored(self) -> str:
        return "fp8, a scale for each output"

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        y = self._in_tiles(x) if self._batch_invariant else self._product(x)
        y = y[:, : self.num_outputs].contiguous()
        if bias is not None:
            y += bias
        if activation is None:
            return y
        return (activate_in_any_batch if self._batch_invariant else activate)(y, activation)

    def to_dense(self) -> Tensor:
        """Return a dequantised copy of the weight [N, K], in the dtype that was given."""
        return self._rows.to_dense()[: self.num_outputs, : self.num_inputs].to(self._dtype)

    def _product(self, x: Tensor) -> Tensor:
        """Return x W^T: x [R, K] -> [R, N and the padding], in x's dtype."""
        if not len(x):
            return x.new_empty(0, len(self._rows.values))
        values, scales = self._quantize(x, self._rows.values.shape[1])
        # Out of bfloat16 alone, since releases before 2.10 and cuBLAS before 12.9 have no other with scales of rows.
        own = self._rows
        y = torch._scaled_mm(values, own.values.t(), scale_a=scales, scale_b=own.scales.t(), out_dtype=torch.bfloat16)
        return y.to(x.dtype)

    def _in_tiles(self, x: Tensor) -> Tensor:
        """Return the same by products of one shape, as `fixed_shapes.linear` does."""
        size = fixed_shapes.LINEAR_ROWS
        tiles = torch.split(F.pad(x, (0, 0, 0, -len(x) % size)), size)
        return torch.cat([self._product(tile) for tile in tiles])[: len(x)] if len(x) else self._product(x)


def _quantized(x: Tensor, padded: int) -> tuple[Tensor, Tensor]:
    """Return the numbers and scales of rows, as `quantize_rows` does."""
    filling = padded - x.shape[1]
    rows = Fp8Rows.quantize(F.pad(x, (0, filling)) if filling else x)  # or it would be copied for nothing
    return rows.values, rows.scales
