"""The interface of a weight, and the choice of its form for the CPU kernels. A new form needs a file with a
`LaidWeight`, its C++, and a line in `lay_weight`.
"""

from typing import Protocol

import torch
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.group_quantized import GroupedWeight, why_not_grouped
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.int8_rows import Int8Rows, Quantization
from lightwell.model.kernels.products import Arithmetic, BlockedWeight, LaidWeight
from lightwell.model.quantized import LEAST_GROUP, GroupedRows, QuantizedMatrix


class Weight(Protocol):
    """A weight [N, K] that multiplies rows."""

    num_inputs: int
    """K"""
    num_outputs: int
    """N"""

    @property
    def stored(self) -> str:
        """Return the format of the stored numbers, as text: "bfloat16", "4 bits, a scale for 32 inputs"."""

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K], contiguous, bias [N] of its dtype -> [R, N]."""

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number of each row of `multiply(x)`, int64 [R], and that number,
        float32 [R], or None if the search needs the product itself.
        """
        return None

    def to_dense(self) -> Tensor:
        """Return the numbers of the weight [N, K], in the dtype of the rows that it multiplies."""


def lay_weight(
    weight: Tensor | QuantizedMatrix,
    quantize: Quantization = "none",
    *,
    arithmetic: Arithmetic,
    keep_dtype: bool = False,
    int8_activations: bool = False,
) -> LaidWeight:
    """Copy a weight [N, K], float32 or bfloat16, into the layout that the CPU kernels read.

    A quantised weight keeps its format, unless `quantize` names another one or the kernels do not support its groups.

    A float32 weight with numbers that are exact in bfloat16, such as a weight of a bfloat16 checkpoint, is stored in
    bfloat16: in half the memory, with the same bits of every product. keep_dtype: store it in float32. arithmetic: of
    products of bfloat16 weights with bfloat16 rows. int8_activations: whether rows are rounded to 8 bits before a
    product with a weight of 8 or 4 bits.

    Raises ValueError for fp8, which is for GPUs, and for a weight to quantise that has a number that is not finite.
    """
    if isinstance(weight, QuantizedMatrix):
        parts = weight.read()
        if quantize == "none" and why_not_grouped(parts) is None:
            return GroupedWeight(parts, weight.dtype, arithmetic, int8_activations=int8_activations)
        weight = QuantizedMatrix.of(parts, weight.dtype).to_dense()
    weight = weight.contiguous()
    if quantize == "fp8":
        raise ValueError("the CPU kernels do not support fp8; int8, int4 and none are accepted")
    if quantize == "int4" and weight.shape[1] % LEAST_GROUP == 0:
        rounded = [GroupedRows.quantize(weight)]
        return GroupedWeight(rounded, weight.dtype, arithmetic, int8_activations=int8_activations)
    if quantize in ("int8", "int4"):
        rows = Int8Rows.quantize(weight)
        return Int8BlockedWeight(rows.values, rows.scales, weight.dtype, int8_activations=int8_activations)
    if weight.dtype == torch.float32 and not keep_dtype and is_exact_in_bfloat16(weight):
        return BlockedWeight(weight.bfloat16(), row_dtype=torch.float32)
    return BlockedWeight(weight, arithmetic)


def is_exact_in_bfloat16(weight: Tensor) -> bool:
    """Return whether every number of a float32 weight is exact in bfloat16. A weight with NaN is not."""
    return all(torch.equal(part.bfloat16().float(), part) for part in torch.split(weight, 1024))
