"""Defines what a weight offers, whatever its form. It knows no form."""

from typing import Protocol

import torch
from torch import Tensor

from model.config import Activation


class Weight(Protocol):
    """A weight [N, K] that rows can be multiplied with."""

    @property
    def num_inputs(self) -> int:
        """Return K."""

    @property
    def num_outputs(self) -> int:
        """Return N."""

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K], contiguous, bias [N] of its dtype -> [R, N]."""

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number of each row of `multiply(x)`, int64 [R], and that number,
        float32 [R], or None if that takes the product itself.
        """

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
