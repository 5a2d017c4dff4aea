"""Products of rows with a weight in int8, stored in blocks of 64 outputs, as `cpu/products/int8.h` describes.

Sums of integers are exact, so the bits of a row depend only on the row, on any number of threads and at every level of
CPU.

Axes: R rows, K inputs, N outputs.
"""

import torch
from torch import Tensor

from lightwell.model.kernels.checks import SUFFIXES, check_axes, check_tensor
from lightwell.model.kernels.int8_rows import Int8Rows
from lightwell.model.kernels.library import kernels
from lightwell.model.kernels.products import BLOCK, Form, LaidWeight

_GROUP, _LINE = 4, 64
"""Adjacent inputs of one output, and the multiple to which the number of inputs is padded."""
MOST_INPUTS = 131_071
"""The most inputs with sums that fit 32 bits: see `cpu/products/int8.h`."""
_HEADER = 2 * 4 * BLOCK
"""Bytes of a block before its numbers."""


class Int8BlockedWeight(LaidWeight):
    """A weight [N, K] in int8 with one scale for each output."""

    stored = Int8Rows.stored

    def __init__(
        self,
        values: Tensor,
        scales: Tensor,
        row_dtype: torch.dtype = torch.float32,
        *,
        int8_activations: bool = False,
    ) -> None:
        """Copy the weight values [N, K] int8 * scales [N] float32. row_dtype: of the rows that the weight multiplies.
        int8_activations: whether the rows are rounded to 8 bits first, with one scale for each row.

        A row with a number that is not finite has NaN as its product.
        """
        self.row_dtype = row_dtype
        self.form = Form.INT8_BYTES if int8_activations else Form.INT8
        self._kernels = {dtype: (f"int8_{kind}", (int(int8_activations),)) for dtype, kind in SUFFIXES.items()}
        check_axes("values", values, (torch.int8,), 2)
        check_tensor("scales", scales, (torch.float32,), values.shape[:1])
        self.num_outputs, self.num_inputs = values.shape
        if self.num_inputs > MOST_INPUTS:
            raise ValueError(f"values has {self.num_inputs} inputs; sums of at most {MOST_INPUTS} fit 32 bits")
        num_blocks, num_lines = -(-self.num_outputs // BLOCK), -(-self.num_inputs // _LINE)
        self.packed = values.new_empty(num_blocks, _HEADER + num_lines * _LINE * BLOCK)
        """The memory, [blocks, bytes of a block]."""
        addresses = values.data_ptr(), scales.data_ptr(), self.packed.data_ptr()
        kernels().call("pack_int8", "pppll", *addresses, self.num_inputs, self.num_outputs)

    def values_and_scales(self) -> tuple[Tensor, Tensor]:
        """Return copies of the original values [N, K] and scales [N]."""
        scales = self.packed[:, : _HEADER // 2].view(torch.float32).flatten()
        num_blocks, num_bytes = self.packed.shape
        steps = self.packed[:, _HEADER:].view(num_blocks, (num_bytes - _HEADER) // (BLOCK * _GROUP), BLOCK, _GROUP)
        values = steps.transpose(1, 2).flatten(2).flatten(0, 1)
        return values[: self.num_outputs, : self.num_inputs].contiguous(), scales[: self.num_outputs].clone()

    def to_dense(self) -> Tensor:
        """Return the dequantised weight, [N, K], in the dtype of its rows."""
        return Int8Rows(*self.values_and_scales(), self.row_dtype).to_dense()

    def find_largest(self, x: Tensor) -> None:
        """Return None: no kernel searches int8 products."""
