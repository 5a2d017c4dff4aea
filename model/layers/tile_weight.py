"""A weight matrix laid out for tiles of the matrix unit, and products with it: `tile_kernels` says how and how precise.

One layout serves whole layers of an encoder (`encoder_kernels`) and products by themselves, with the same bits.

Axes: rows, in, out, P parts of a number.
"""

import numpy as np
import torch

from model.layers.arrays import bits, why_not_compiled
from model.layers.packed_weight import PostOp

_POST_OPS: dict[PostOp, bool] = {("none", ""): False, ("gelu", "none"): True}
"""Whether gelu is applied."""
_ROWS_OF_A_PIECE = 128
"""That a thread multiplies at a time."""


def why_not_laid(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why products of this dtype are not made from tiles' layout here, or None when they are."""
    why = why_not_compiled(dtype, device)
    if why is not None:
        return why
    from model.layers import tiles  # here, as below: a GPU server needs no compiler

    if tiles.is_made_for_tiles():
        return None if tiles.has_tiles() else "this process may not use the CPU's tiles (AMX)"
    has_vectors = tiles.has_pairs() if dtype == torch.bfloat16 else tiles.has_wide_vectors()
    return None if has_vectors else "this CPU has neither tiles (AMX) nor vectors for them (AVX-512)"


def why_no_tiles(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why products of this dtype cannot be made on tiles here, or None when they can."""
    why = why_not_compiled(dtype, device)
    if why is not None:
        return why
    from model.layers.tiles import has_tiles  # here, as below: a GPU server needs no compiler

    return None if has_tiles() else "this CPU has no tiles (AMX)"


def num_parts(dtype: torch.dtype) -> int:
    """bfloat16 numbers to one of this dtype."""
    return 3 if laid_dtype(dtype) != dtype else 1


def laid_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of rows and weights as they are laid: bfloat16 for tiles, else the numbers' own."""
    from model.layers.tiles import is_made_for_tiles

    return torch.bfloat16 if is_made_for_tiles() else dtype


def numbers_in_tiles(num_rows: int, width: int, parts: int) -> int:
    """Numbers of bfloat16 in tiles that hold so many rows, a multiple of 32 wide, in parts. Kernels may call it."""
    return (num_rows + 15) // 16 * 16 * width * parts


class TileWeight:
    """Weight [out, in], both multiples of 32; a `PackedWeight`."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        self._dtype = weight.dtype
        parts, rest = [], weight.float()
        for _ in range(num_parts(weight.dtype)):
            parts.append(rest.to(laid_dtype(weight.dtype)))
            rest = rest - parts[-1].float()
        together = 4 // parts[0].itemsize
        shape = len(parts), self.outputs // 32, 2, 16, self.inputs // 32, 32 // together, together
        laid = torch.stack(parts).view(shape)
        self._tiles = laid.permute(1, 4, 0, 2, 5, 3, 6).contiguous()
        self._no_bias = torch.zeros(self.outputs, dtype=weight.dtype)

    @property
    def array(self) -> np.ndarray:
        """As `tile_kernels.multiply_tiles` takes it: the same memory."""
        return bits(self._tiles.view(-1))

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """Raises KeyError for a post-op other than none and gelu."""
        from model.layers.tile_kernels import multiply_rows

        out = x.new_empty(len(x), self.outputs)
        offset = bits(self._no_bias if bias is None else bias)
        starts = np.arange(0, len(x), _ROWS_OF_A_PIECE)
        shape = self.inputs, self.outputs, num_parts(self._dtype), int(_POST_OPS[post_op])
        num_shares = max(1, torch.get_num_threads() // max(1, len(starts)))
        multiply_rows(starts, num_shares, bits(x), self.array, offset, shape, bits(out.view(-1)), self.array[:0])
        return out

    def to_dense(self) -> torch.Tensor:
        parts = self._tiles.permute(2, 0, 3, 5, 1, 4, 6).reshape(-1, self.outputs, self.inputs).float()
        return parts.flip(0).sum(0).to(self._dtype)  # the small ones first: exact
