"""Sizes of the GPU programs that compute attention: pairs and keys of a step, warps and stages.

Two kernels compute attention, for tiles of one row and of several, and both give a row the same bits. So the sizes
depend only on properties that all layers of a network share: the sums over keys and the products then have one layout
over threads, and one order, in both kernels. Fused multiply-adds are off, since the compiler might use them in only one
of the kernels. `python -m benchmarks.gpu.compile_ahead` checks all of this.
"""

from typing import Any, NamedTuple

import torch

PAIRS = 16
"""Pairs of a row and a query head in a program: the rows of one instruction of the tensor cores. With 32 pairs a thread
would run out of registers.
"""
TILE_ROWS = PAIRS
"""Most rows of a tile. The pairs of a full tile fill whole programs, for any number of heads."""
MAX_REGISTERS = 128
"""Registers of a thread. Without this bound the compiler uses up to 255 for early loads, and fewer programs fit on a
multiprocessor. With it everything still fits in registers.
"""


class Shape(NamedTuple):
    """The sizes of a program of attention."""

    width: int
    """Dimensions of a head, rounded up to a power of 2."""
    keys: int
    """Keys of a step, in one block or several."""
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
    """Return the number of programs that share `num_pairs` pairs."""
    return -(-num_pairs // PAIRS)


def width_of(dim: int) -> int:
    """Return the dimensions that a program computes for a head of `dim`: a power of 2, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


def shape_of(dtype: torch.dtype, dim: int, *, has_bias: bool) -> Shape:
    """Return the shape for heads of a dimension and numbers of a dtype.

    has_bias: whether a bias by position, which needs registers, is added to scores.
    """
    width = width_of(dim)
    row = width * dtype.itemsize
    # Warps split the sums of values and the products of queries by dimension: a thread's share is constant. Products in
    # float32, without tensor cores, need more registers. For narrow rows many warps would have few numbers each, and
    # wait for each other at every step.
    is_narrow = dtype.itemsize == 2 and row <= 128 and not has_bias
    num_warps = max(2 if is_narrow else 4 if dtype.itemsize == 2 else 8, row // 64)
    # One stage loads the number of a block, the next its keys. With five stages two steps are in flight. Five stages do
    # not fit in every GPU's shared memory for wide rows, and not in the registers for float32 or few warps.
    num_stages = 5 if dtype.itemsize == 2 and row <= 512 and not is_narrow else 3
    # A step in float32 has fewer keys, since each needs more registers.
    keys = 32 if dtype.itemsize == 2 else 16
    return Shape(width, keys, num_warps, num_stages)
