"""What a weight offers, in whatever form it lies. Knows no form."""

from typing import Protocol

import torch
from torch import Tensor

from model.config import Activation


class Weight(Protocol):
    """A weight [N, K] as products with it are made."""

    @property
    def num_inputs(self) -> int:
        """K"""

    @property
    def num_outputs(self) -> int:
        """N"""

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K], contiguous, bias [N] of its dtype -> [R, N]."""

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return where the largest number of each row of `multiply(x)` first stands, int64 [R], and that number,
        float32 [R]; None where it takes the product itself to tell.
        """

    def to_dense(self) -> Tensor:
        """Return the numbers of the weight [N, K], in the dtype of the rows that it multiplies."""


class LaidWeight(Weight, Protocol):
    """A weight that lies as our kernels read it: what kernels that fuse several steps need of it."""

    packed: Tensor
    """The memory."""
    row_dtype: torch.dtype
    """Of the rows that it multiplies."""

    @property
    def form(self) -> int:
        """Which of `Form` in decoder.h."""
