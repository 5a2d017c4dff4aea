"""Defines what a weight offers, whatever its form, and chooses its form for our kernels. A new form is a file with its
C++, and a line in `lay_weight`.
"""

from typing import Protocol

import torch
from torch import Tensor

from model.config import Activation
from model.kernels.grouped import GroupedWeight, why_not_grouped
from model.kernels.int8 import Int8BlockedWeight
from model.kernels.int8_rows import Int8Rows, Quantization
from model.kernels.products import Arithmetic, BlockedWeight
from model.quantized import LEAST_GROUP, GroupedRows, QuantizedMatrix


class Weight(Protocol):
    """A weight [N, K] that rows can be multiplied with."""

    num_inputs: int
    """K"""
    num_outputs: int
    """N"""

    @property
    def stored(self) -> str:
        """Return the format in which the numbers are stored, as text for people: "bfloat16", "4 bits, a scale for 32
        inputs".
        """

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K], contiguous, bias [N] of its dtype -> [R, N]."""

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number of each row of `multiply(x)`, int64 [R], and that number,
        float32 [R], or None if that takes the product itself.
        """
        return None

    def to_dense(self) -> Tensor:
        """Return the numbers of the weight [N, K], in the dtype of the rows that it multiplies."""


class LaidWeight(Weight, Protocol):
    """A weight in a layout that our kernels read: what kernels that fuse several steps need of it."""

    packed: Tensor
    """The memory."""
    row_dtype: torch.dtype
    """The dtype of the rows that it multiplies."""

    @property
    def form(self) -> int:
        """Return the weight's form, one of `Form` in decoder.h."""


def lay_weight(
    weight: Tensor | QuantizedMatrix,
    quantize: Quantization = "none",
    *,
    arithmetic: Arithmetic,
    keep_dtype: bool = False,
    int8_activations: bool = False,
) -> LaidWeight:
    """Copy a weight [N, K], float32 or bfloat16, into the layout that our kernels read.

    A weight that is stored quantised stays so, unless it is to be quantised otherwise or its groups do not fit.

    A float32 weight whose numbers bfloat16 holds, such as one of a checkpoint saved in it, is kept in bfloat16, in half
    the memory and with the same bits of every product; unless keep_dtype says not to. Products of a weight kept in
    bfloat16 with rows of bfloat16 are made by `arithmetic`. int8_activations: whether rows are rounded to 8 bits where
    the weight is kept in 8 or 4.

    Raises ValueError when a weight to be quantised has a number that is not finite, and for fp8, which is for cards.
    """
    if isinstance(weight, QuantizedMatrix):
        parts = weight.read()
        if quantize == "none" and why_not_grouped(parts) is None:
            return GroupedWeight(parts, weight.dtype, arithmetic, int8_activations=int8_activations)
        weight = QuantizedMatrix.of(parts, weight.dtype).to_dense()
    weight = weight.contiguous()
    if quantize == "fp8":
        raise ValueError("our kernels have no form of fp8; int8, int4 and none are accepted")
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
    """Return whether bfloat16 holds every number of a float32 weight, which has no NaN among them."""
    return all(torch.equal(part.bfloat16().float(), part) for part in torch.split(weight, 1024))
