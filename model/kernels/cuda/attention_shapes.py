"""Says in what shape a card's programs compute attention: how many pairs and keys at a time, by how many warps.

Two kernels compute attention, for tiles of one row and of several, and a row's bits are the same by either: so a shape
depends on what all layers of a network share. Then the sums over keys and the products have one
layout over threads, and one order, in both. Nothing is contracted to fused multiply-adds, which a compiler might do in
one kernel and not in the other. `python -m benchmarks.gpu.compile_ahead` checks all of that.
"""

from typing import Any, NamedTuple

import torch

PAIRS = 16
"""Pairs of a row and a query head that a program computes: the rows of one instruction of the tensor cores. With 32 a
thread would need more registers than it has.
"""
TILE_ROWS = PAIRS
"""Rows of a tile, at most. A tile's pairs then fill whole programs, for any number of heads."""
MAX_REGISTERS = 128
"""Registers of a thread. The compiler takes up to 255 for loads that it moves far ahead, and fewer programs would fit a
multiprocessor; with this bound it does not, and still keeps everything in registers.
"""


class Shape(NamedTuple):
    """How a program computes attention."""

    width: int
    """Dimensions of a head, rounded up to a power of 2."""
    keys: int
    """Keys of a step, of one block or several."""
    num_warps: int
    num_stages: int

    @property
    def sizes(self) -> dict[str, int]:
        """Return the kernels' constants."""
        return {"PAIRS": PAIRS, "WIDTH": self.width, "KEYS": self.keys}

    @property
    def launch(self) -> dict[str, Any]:
        """Return Triton's options for the kernels of attention."""
        return OPTIONS | {"num_warps": self.num_warps, "num_stages": self.num_stages, "maxnreg": MAX_REGISTERS}


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""Triton's options for every kernel that touches sums."""


def num_chunks(num_pairs: int) -> int:
    """Return how many programs share so many pairs."""
    return -(-num_pairs // PAIRS)


def width_of(dim: int) -> int:
    """Return how many dimensions a program computes for a head of `dim`: a power of 2, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


def shape_of(dtype: torch.dtype, dim: int, *, has_bias: bool) -> Shape:
    """Return the shape for heads of a dimension and numbers of a dtype.

    has_bias: whether scores get a bias by position, which takes registers.
    """
    width = width_of(dim)
    row = width * dtype.itemsize
    # The sums of values and the products of queries are split over warps by dimension: a thread's share is constant.
    # Products in float32, without tensor cores, take more registers than the row's width says.
    # Narrow rows are few numbers for each of many warps, which wait for each other at every step.
    is_narrow = dtype.itemsize == 2 and row <= 128 and not has_bias
    num_warps = max(2 if is_narrow else 4 if dtype.itemsize == 2 else 8, row // 64)
    # One stage loads a block's number, the next its keys. With five, two steps are on their way; those of wide rows do
    # not fit the shared memory of every card, nor those of float32 or of few warps the registers.
    num_stages = 5 if dtype.itemsize == 2 and row <= 512 and not is_narrow else 3
    # A step in float32 has fewer keys, since it takes more registers for each.
    keys = 32 if dtype.itemsize == 2 else 16
    return Shape(width, keys, num_warps, num_stages)
