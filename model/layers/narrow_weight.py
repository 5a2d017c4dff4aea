"""A float32 weight whose numbers are all bfloat16, as those of most published checkpoints are: in half the memory.

Knows how it lies for `narrow_kernels`, which say how products are made and how precise, and which rows a thread takes.

Axes: rows, in, out.
"""

import numpy as np
import torch
import torch.nn.functional as F

from model.layers.arrays import bits
from model.layers.packed_weight import NO_POST_OP, PostOp
from model.layers.tile_weight import num_parts as parts_of
from model.layers.tile_weight import numbers_in_tiles, why_no_tiles

_BLOCK, _INPUTS = 64, 32
"""Columns that lie side by side, and inputs of a tile; a rest of either is filled up with zeros."""
_TILE_ROWS = 16
_LEAST_ROWS, _MOST_ROWS, _MOST_NUMBERS = 64, 128, 1 << 17
"""Rows, and numbers in them, that a thread multiplies at a time: their parts fit the second cache, if that is not too
few for each weight that is read."""
_SHARED_BY_COLUMNS = 64
"""Rows up to which threads share the columns, so that each weight is read once."""
_ROWS_OF_A_TRY = 256
"""Rows of a weight that are tried together: most other weights end with the first piece."""


def can_narrow(weight: torch.Tensor) -> bool:
    """Whether the weight is float32, its numbers are all bfloat16 and finite (0 times infinity would make a number
    nothing), and this CPU has what multiplies them.
    """
    if weight.dtype != torch.float32 or why_no_tiles(weight.dtype, weight.device) is not None:
        return False
    pieces = (weight[row : row + _ROWS_OF_A_TRY] for row in range(0, len(weight), _ROWS_OF_A_TRY))
    return all(torch.equal(piece, piece.bfloat16().float()) and bool(piece.isfinite().all()) for piece in pieces)


def num_parts(num_rows: int, num_inputs: int) -> int:
    """Numbers of bfloat16 in tiles that hold so many rows of float32."""
    return numbers_in_tiles(num_rows, num_inputs, parts_of(torch.float32))


def rows_together(num_rows: int, num_inputs: int) -> int:
    """Of so many, how many a thread multiplies at a time."""
    return min(num_rows, _MOST_ROWS, max(_LEAST_ROWS, _MOST_NUMBERS // num_inputs))


class NarrowWeight:
    """Weight [out, in] that `can_narrow`; a `PackedWeight` without activations."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.outputs, self._given_inputs = weight.shape
        padded = F.pad(weight.bfloat16(), (0, -self._given_inputs % _INPUTS, 0, -self.outputs % _BLOCK))
        self.inputs = padded.shape[1]
        """With those that are filled up."""
        self.memory = padded.view(-1, _BLOCK, self.inputs // 2, 2).transpose(1, 2).contiguous()
        """[out / 64, in / 2, 64, 2]"""

    @property
    def address(self) -> int:
        """Of the memory, while the weight lives."""
        return self.memory.data_ptr()

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """As `PackedWeight` says. Raises ValueError for a post-op."""
        from model.layers import narrow_kernels as kernels  # here: a GPU server needs no compiler

        if post_op != NO_POST_OP:
            raise ValueError(f"post_op is {post_op}, but a narrow weight's products go through no activation")
        x = F.pad(x, (0, self.inputs - x.shape[1])) if self.inputs > x.shape[1] else x
        out = x.new_empty(len(x), self.outputs)
        if len(x):
            y = bits(out)
            threads = torch.get_num_threads()
            multiply = kernels.multiply_here if threads == 1 else kernels.multiply_shared
            offset = y[0, :0] if bias is None else bits(bias)
            multiply(*self._shares(len(x), threads), bits(x), self.address, offset, y)
        return out

    def _shares(self, num_rows: int, num_threads: int) -> tuple[np.ndarray, int]:
        """Where pieces of the rows begin, and behind the last one; and how many threads share a piece's columns."""
        if num_rows <= _SHARED_BY_COLUMNS:
            return np.array([0, num_rows]), num_threads
        together = rows_together(num_rows, self.inputs)
        num_tiles = -(-num_rows // _TILE_ROWS)
        num_pieces = -(-num_rows // (together * num_threads)) * num_threads  # as many for each thread
        num_pieces = min(num_pieces, num_tiles)
        starts = np.arange(num_pieces + 1) * num_tiles // num_pieces * _TILE_ROWS
        starts[-1] = num_rows
        return starts, 1

    def to_dense(self) -> torch.Tensor:
        """As `PackedWeight` says."""
        rows = self.memory.transpose(1, 2).reshape(-1, self.inputs)
        return rows[: self.outputs, : self._given_inputs].float()
