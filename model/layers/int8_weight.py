"""A weight in int8 as compiled kernels multiply by it on a CPU. Refuses to know what a layer is.

Batch invariant by construction, since whole numbers are added up exactly in any order (`int8_kernels`).

Axes: rows, in, out.
"""

import numpy as np
import torch
import torch.nn.functional as F

from model.layers import int8_kernels as kernels
from model.layers.arrays import bits
from model.layers.int8_dots import BLOCK, GROUP, HAS_FAST_DOTS, WIDTH
from model.layers.int8_rows import Int8Rows, dequantize
from model.layers.packed_weight import PostOp
from model.layers.tiles import TILE_ROWS

_ACTIVATIONS: dict[PostOp, int] = {
    ("none", ""): kernels.NONE,
    ("swish", ""): kernels.SILU,
    ("gelu", "none"): kernels.GELU,
    ("gelu", "tanh"): kernels.GELU_TANH,
    ("relu", ""): kernels.RELU,
}

_NUM_DIGITS = {2: 2, 4: 3}
"""Of each number of so many bytes, as `int8_kernels` says."""


def num_digits(num_rows: int, num_inputs: int, dtype: np.dtype) -> int:
    """Bytes that the digits of so many rows take."""
    return _filled_up(num_rows * _NUM_DIGITS[dtype.itemsize], TILE_ROWS) * _filled_up(num_inputs, WIDTH)


def _filled_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class Int8Weight:
    """A `PackedWeight`, of float32 or bfloat16 where kernels are compiled (`arrays.why_not_compiled`)."""

    is_fast = HAS_FAST_DOTS
    """Whether this CPU has instructions for its products."""

    def __init__(self, rows: Int8Rows) -> None:
        """Drop `rows`: this is a copy."""
        self.outputs, self.inputs = rows.values.shape
        self._dtype = rows.dtype
        self.scales = F.pad(rows.scales, (0, -self.outputs % BLOCK))
        """float32, of each output's numbers, filled up to a multiple of 32."""
        self.blocks = _in_blocks(rows.values)
        """As `int8_dots` has weights."""

    @property
    def address(self) -> int:
        """Of the blocks, while the weight lives."""
        return self.blocks.data_ptr()

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """As `PackedWeight` says."""
        out = x.new_empty(len(x), self.outputs)
        if len(x):
            y = bits(out.view(-1))
            offset = y[:0] if bias is None else bits(bias)
            weight, num_parts = (self.blocks.numpy(), self.scales.numpy()), torch.get_num_threads()
            kernels.multiply(bits(x.view(-1)), len(x), *weight, offset, _ACTIVATIONS[post_op], y, num_parts)
        return out

    def to_dense(self) -> torch.Tensor:
        """The numbers that stand for the weight [out, in], rounded to its dtype: a copy."""
        tiles = self.blocks.view(-1, _filled_up(self.inputs, WIDTH) // WIDTH, 2, WIDTH // GROUP, TILE_ROWS, GROUP)
        values = tiles.permute(0, 2, 4, 1, 3, 5).reshape(len(tiles) * BLOCK, -1)[: self.outputs, : self.inputs]
        return dequantize(values, self.scales[: self.outputs], self._dtype)


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    """values [out, in] as `int8_dots` has weights."""
    outputs, inputs = _filled_up(values.shape[0], BLOCK), _filled_up(values.shape[1], WIDTH)
    filled = F.pad(values, (0, inputs - values.shape[1], 0, outputs - values.shape[0]))
    tiles = filled.view(-1, 2, TILE_ROWS, inputs // WIDTH, WIDTH // GROUP, GROUP)
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten()
