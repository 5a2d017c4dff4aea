"""Products of few rows by kernels of our own from the memory that oneDNN has packed, where they have oneDNN's bits.

Which they have is not believed but tried: how the memory lies is looked up in the weight at hand, and the order of sums
is found by products that are 0 but for rounding, for each shape once on a machine. Refuses to know what a layer is.

Axes: rows, in, out.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from model.layers.arrays import bits, why_not_compiled
from model.layers.kept_answers import kept
from model.layers.packed_weight import (
    NO_POST_OP,
    ConvolutionWeight,
    InnerProductWeight,
    PackedWeight,
    PostOp,
    WideInnerProductWeight,
    as_wide,
    rounding_alone,
)

BLOCK = 64
"""Columns that oneDNN lays side by side; weights that it lays otherwise are left to it."""

_PROBED_ROWS = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64)
_CHAINS, _CHAIN_OF_TILES = (512, 1024, 1280), 32
"""Inputs that oneDNN 3.12 was seen to sum in one go: cut for the sake of caches, or as tiles are."""

_MOST_ROWS = {torch.float32: 64, torch.bfloat16: 32}
"""Up to which our own products are faster than oneDNN's: beyond, both wait for arithmetic."""

_PACKINGS: dict[str, Callable[[torch.Tensor], InnerProductWeight | ConvolutionWeight]] = {
    packing.__name__: packing for packing in (InnerProductWeight, WideInnerProductWeight, ConvolutionWeight)
}


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Where a packed weight's rows lie, 64 side by side: [blocks, 4-byte words of a row, 64]."""

    address: int
    """Of the packed memory, while the weight lives."""
    inputs: int
    """As the weight has them: more than the layer where they are filled up with zeros, as rows then must be."""
    outputs: int
    """Of the layer."""

    @property
    def num_blocks(self) -> int:
        """Of 64 columns, the last one filled up with zeros."""
        return -(-self.outputs // BLOCK)


@dataclass(frozen=True, slots=True)
class FewRows(PackedBlocks):
    """What `few_rows_kernels.multiply_columns` must know of a weight."""

    chain: int
    """Inputs that are summed in one go, see there."""


class FewRowsWeight:
    """A `PackedWeight` whose products of few rows without an activation are made here."""

    def __init__(self, packed: PackedWeight, few_rows: FewRows, dtype: torch.dtype) -> None:
        """few_rows: what `few_rows_of` says of `packed`."""
        self._packed, self._few_rows = packed, few_rows
        num_bytes = few_rows.num_blocks * BLOCK * few_rows.inputs * dtype.itemsize
        self._memory = _memory_at(few_rows.address, num_bytes, dtype)
        self._most_rows = _MOST_ROWS[dtype]

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """As `PackedWeight` says."""
        if post_op == NO_POST_OP and 0 < len(x) <= self._most_rows:
            return _product(x, self._memory, self._few_rows, bias)
        return self._packed.multiply(x, bias, post_op)

    def to_dense(self) -> torch.Tensor:
        """As `PackedWeight` says."""
        return self._packed.to_dense()


def blocks_of(packed: PackedWeight, weight: torch.Tensor) -> PackedBlocks | None:
    """Where the rows of `packed`, made of weight [out, in], lie; None where they lie in no such blocks."""
    place = packed.memory() if isinstance(packed, InnerProductWeight | ConvolutionWeight) else None
    if place is None or weight.dtype not in _MOST_ROWS:
        return None
    memory = _memory_at(*place, weight.dtype)
    inputs, rest = divmod(len(memory), -(-len(weight) // BLOCK) * BLOCK)
    if rest or not _lies_in_blocks(memory, inputs, weight):
        return None
    return PackedBlocks(memory.ctypes.data, inputs, len(weight))


def few_rows_of(packed: PackedWeight, weight: torch.Tensor) -> FewRows | None:
    """How to multiply few rows by `packed`, made of weight [out, in], with the same bits; None where that cannot be."""
    if not _has_instructions(weight.dtype) or (blocks := blocks_of(packed, weight)) is None:
        return None
    outputs, inputs = weight.shape
    chain = _chain(type(packed).__name__, inputs, as_wide(outputs), weight.dtype, torch.get_num_threads())
    return FewRows(blocks.address, blocks.inputs, outputs, chain) if chain else None


def _memory_at(address: int, num_bytes: int, dtype: torch.dtype) -> np.ndarray:
    """As `arrays.bits` would have it; the weight must outlive this view."""
    memory = np.ctypeslib.as_array((ctypes.c_int8 * num_bytes).from_address(address))
    return memory.view(np.float32 if dtype == torch.float32 else np.uint16)


def _has_instructions(dtype: torch.dtype) -> bool:
    """Whether this CPU has what makes the kernels fast, and this process a compiler for them."""
    if why_not_compiled(dtype, torch.device("cpu")) is not None:
        return False
    from model.layers import tiles  # here, as below: a GPU server needs no compiler

    return tiles.multiplies_bfloat16() if dtype == torch.bfloat16 else tiles.has_wide_vectors()


def _has_tiles(dtype: torch.dtype) -> bool:
    from model.layers import tiles

    return dtype == torch.bfloat16 and tiles.has_tiles()


def _lies_in_blocks(memory: np.ndarray, inputs: int, weight: torch.Tensor) -> bool:
    """Whether memory holds the weight as the kernels read it, by the first, the last and a few other rows."""
    if inputs < weight.shape[1] or (weight.dtype == torch.bfloat16 and inputs % 32):
        return False
    together = 1 if weight.dtype == torch.float32 else 2
    blocks = memory.reshape(-1, inputs // together, BLOCK, together)
    last = len(weight) - 1
    return all(
        blocks[row // BLOCK, :, row % BLOCK].tobytes()
        == bits(F.pad(weight[row], (0, inputs - weight.shape[1]))).tobytes()
        for row in {0, min(1, last), last // 2, last}
    )


@cache
@kept
def _chain(packing: str, inputs: int, outputs: int, dtype: torch.dtype, num_threads: int) -> int:
    """`FewRows.chain` of such a weight with which rows have oneDNN's bits; 0 if there is none.

    `num_threads` are those in use: oneDNN may share a sum among them.
    """
    x, weight = rounding_alone(max(_PROBED_ROWS), inputs, outputs, dtype)
    packed = _PACKINGS[packing](weight)
    place = packed.memory()
    assert place is not None
    memory = _memory_at(*place, dtype)
    packed_inputs = len(memory) // (-(-outputs // BLOCK) * BLOCK)
    bias = weight[:, 0].contiguous()

    def agrees(chain: int) -> bool:
        few = FewRows(memory.ctypes.data, packed_inputs, outputs, chain)
        return all(
            torch.equal(_product(x[-rows:], memory, few, of), packed.multiply(x[-rows:], of, NO_POST_OP))
            for rows in _PROBED_ROWS
            for of in (None, bias)
        )

    if not _lies_in_blocks(memory, packed_inputs, weight):
        return 0
    chains = (_CHAIN_OF_TILES,) if _has_tiles(dtype) else _CHAINS
    return next((chain for chain in dict.fromkeys(min(chain, packed_inputs) for chain in chains) if agrees(chain)), 0)


def _product(x: torch.Tensor, memory: np.ndarray, few: FewRows, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + bias."""
    from model.layers import few_rows_kernels as kernels

    x = F.pad(x, (0, few.inputs - x.shape[1])) if few.inputs > x.shape[1] else x
    out = x.new_empty(len(x), few.outputs)
    y = bits(out)
    multiply = kernels.multiply_here if torch.get_num_threads() == 1 else kernels.multiply_shared
    multiply(bits(x), memory, few.chain, y[0, :0] if bias is None else bits(bias), y)
    return out
