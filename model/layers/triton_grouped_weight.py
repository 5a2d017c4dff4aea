"""Weights of 4 to 8 bits on a GPU, which our Triton kernels dequantise.

Few rows are multiplied by a kernel that dequantises in registers. For many rows the numbers are first written to
memory, so that each is dequantised only once. Both give the same bits with `batch_invariant`.

Axes: R rows, K inputs, N outputs.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.cuda.packed_rows import PackedRows, joined, why_not_packed
from lightwell.model.kernels.forms import Weight
from lightwell.model.kernels.int8_rows import Int8Rows, Quantization
from lightwell.model.layers.dense_weight import activate
from lightwell.model.quantized import LEAST_GROUP, GroupedRows, QuantizedMatrix

MOST_ROWS = 256
"""Most rows of a product that dequantises in registers."""
_MOST_NUMBERS = 1 << 27
"""Most dequantised numbers in memory at a time, 256 MiB in 16 bits."""
_LEAST_OUTPUTS = 4096
"""Least outputs of a slice that is dequantised at a time, enough that its sums are not cut into pieces."""


class TritonGroupedWeight(Weight):
    """A weight [N, K] with rows of one or several quantised formats, in a GPU's memory."""

    def __init__(
        self, parts: Sequence[GroupedRows], dtype: torch.dtype, device: torch.device, *, batch_invariant: bool
    ) -> None:
        """Pack the parts, and copy them to the device. dtype: of the rows that the weight multiplies. batch_invariant:
        whether the bits of an output row depend only on its input row.

        Raises ValueError for parts that `why_not_packed` rejects.
        """
        from lightwell.model.kernels.cuda import grouped_matmul  # imports Triton, which a CPU does not need
        from lightwell.model.kernels.cuda.matmul import matmul

        packed = [PackedRows.of(part).to(device) for part in parts]
        self._parts = [joined(list(alike)) for _, alike in groupby(packed, key=lambda part: part.kind)]
        self.num_outputs, self.num_inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        self._stored = " or ".join(dict.fromkeys(part.stored for part in parts))
        self.dtype, self.device = dtype, device
        self._batch_invariant = batch_invariant
        self._kernels, self._dense_product = grouped_matmul, matmul if batch_invariant else F.linear

    @property
    def stored(self) -> str:
        return self._stored

    @property
    def num_bytes(self) -> int:
        """Return the bytes in the GPU's memory."""
        return sum(part.num_bytes for part in self._parts)

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        if len(x) <= MOST_ROWS and x.dtype in self._kernels.DTYPES:
            y = self._kernels.grouped_matmul(x, self._parts, bias)
        else:
            y = self._multiply_unpacked(x, bias)
        return y if activation is None else activate(y, activation, batch_invariant=self._batch_invariant)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows `ids` [T] int64 of a weight of one format: [T, K]. They are not checked."""
        (part,) = self._parts
        out = torch.empty(len(ids), self.num_inputs, dtype=self.dtype, device=self.device)
        self._kernels.unpack(part, self.num_inputs, ids.contiguous(), out)
        return out

    def to_dense(self) -> Tensor:
        """Return the numbers [N, K] in the CPU's memory, since the KV cache fills the GPU's."""
        out = torch.empty(self.num_outputs, self.num_inputs, dtype=self.dtype)
        for first in range(0, self.num_outputs, _LEAST_OUTPUTS):
            last = min(first + _LEAST_OUTPUTS, self.num_outputs)
            out[first:last] = self._unpacked(first, last, self.dtype)
        return out

    def _unpacked(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Return the numbers of outputs first .. last."""
        out = torch.empty(last - first, self.num_inputs, dtype=dtype, device=self.device)
        start = 0
        for part in self._parts:
            begin, end = max(first, start), min(last, start + part.num_outputs)
            if begin < end:
                self._kernels.unpack(
                    part, self.num_inputs, range(begin - start, end - start), out[begin - first : end - first]
                )
            start += part.num_outputs
        return out

    def _multiply_unpacked(self, x: Tensor, bias: Tensor | None) -> Tensor:
        slices = min(-(-self.num_outputs * self.num_inputs // _MOST_NUMBERS), self.num_outputs // _LEAST_OUTPUTS)
        if slices <= 1:
            return self._dense_product(x, self._unpacked(0, self.num_outputs, x.dtype), bias)
        y = x.new_empty(len(x), self.num_outputs)
        for first, last in pairwise(self.num_outputs * i // slices for i in range(slices + 1)):
            own = None if bias is None else bias[first:last]
            y[:, first:last] = self._dense_product(x, self._unpacked(first, last, x.dtype), own)
        return y


def lay_on_card(
    weight: Tensor | QuantizedMatrix, quantize: Quantization, *, batch_invariant: bool
) -> TritonGroupedWeight | Tensor:
    """Return a weight to be stored quantised, or the dequantised weight if the kernels have no form for it. quantize:
    the format of a weight in floating point.

    Raises ValueError for a weight to quantise that has a number that is not finite.
    """
    parts: Sequence[GroupedRows]
    parts = weight.read() if isinstance(weight, QuantizedMatrix) else [quantized(weight, quantize)]
    if any(why_not_packed(part) is not None for part in parts):
        return QuantizedMatrix.of(parts, weight.dtype).to_dense().to(weight.device)
    return TritonGroupedWeight(parts, weight.dtype, weight.device, batch_invariant=batch_invariant)


def quantized(weight: Tensor, quantize: Quantization) -> GroupedRows:
    """Return a weight in int8 or int4. Raises ValueError for a number that is not finite."""
    if quantize == "int4" and weight.shape[1] % LEAST_GROUP == 0:
        return GroupedRows.quantize(weight)
    rows = Int8Rows.quantize(weight)
    return GroupedRows(rows.values, rows.scales[:, None])
