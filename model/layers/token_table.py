"""The table in which token ids are looked up. Knows where a packed weight keeps its rows; not what becomes of them.

A network whose head has the table's own weight (a tied head) holds it twice, as it is and packed. A large table is let
go then, and its rows are gathered from the packed memory, bit for bit: 24 KB of it are read for a row of 768 bfloat16,
as a row's neighbours lie in between, which takes about a microsecond: a fifth of a percent of what the network does
with the row.

Axes: T ids, e width, N blocks of 64 rows of the table.
"""

import ctypes
from typing import TYPE_CHECKING

import torch

from model.layers.arrays import why_not_compiled
from model.layers.few_rows import BLOCK
from model.layers.linear import Linear

if TYPE_CHECKING:
    from model.layers.row_kernels import RowKernel

_LARGE = 16 << 20
"""Bytes from which memory counts for more than the time to gather."""
_WORD = 4
"""Bytes that lie together in packed memory: a float32, or two bfloat16."""


class TokenTable:
    """[vocab, e]."""

    def __init__(self, weight: torch.Tensor, tied: Linear | None = None) -> None:
        """`tied`: a product with the same weight, if there is one; drop the weight afterwards, it may not be needed."""
        self.dtype, self.device = weight.dtype, weight.device
        words = _packed_words(tied, weight.dtype) if tied is not None and weight.nbytes >= _LARGE else None
        self._rows: torch.Tensor | _PackedRows = weight
        if tied is not None and words is not None:
            packed_dtype = weight.dtype if tied.narrow is None else torch.bfloat16
            self._rows = _PackedRows(tied, words, packed_dtype, weight.dtype)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] int64, each under vocab -> their rows [T, e]."""
        return self._rows[ids] if isinstance(self._rows, _PackedRows) else self._rows.index_select(0, ids)

    @property
    def dense(self) -> torch.Tensor | None:
        """The whole table where it lies as it was given."""
        return self._rows if isinstance(self._rows, torch.Tensor) else None

    def to_dense(self) -> torch.Tensor:
        """The whole table: a copy where it is read from a packed weight."""
        return self._rows if isinstance(self._rows, torch.Tensor) else self._rows.to_dense()

    def new_zeros(self, *shape: int) -> torch.Tensor:
        """Of the table's dtype, on its device."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


class _PackedRows:
    def __init__(self, linear: Linear, words: torch.Tensor, packed_dtype: torch.dtype, dtype: torch.dtype) -> None:
        self._linear = linear  # owns the memory that words are
        self._words = words
        self._packed_dtype, self._dtype = packed_dtype, dtype
        self._kernel: RowKernel | None = None
        if why_not_compiled(dtype, words.device) is None:
            from model.layers.embedding_kernels import unpack, unpack_and_widen  # here: a GPU server needs no compiler

            self._kernel = unpack if dtype == packed_dtype else unpack_and_widen
            self._bits = words.view(torch.uint32).numpy()

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        width = self._linear.in_features
        if self._kernel is None:
            rows = self._words[ids // BLOCK, :, ids % BLOCK].view(self._packed_dtype)
            return rows[:, :width].to(self._dtype)
        filled_up = self._words.shape[1] * _WORD // self._packed_dtype.itemsize
        rows = torch.empty(len(ids), filled_up, dtype=self._dtype)
        self._kernel(ids.numpy(), self._bits, rows.view(torch.uint32).numpy())
        return rows[:, :width]

    def to_dense(self) -> torch.Tensor:
        return self._linear.to_dense()


def _packed_words(linear: Linear, dtype: torch.dtype) -> torch.Tensor | None:
    """The packed memory as int32 [N, words of a row, 64]; None where it does not lie like that."""
    if linear.narrow is not None:
        return linear.narrow.memory.view(torch.int32).squeeze(-1)
    where = linear.blocks
    if where is None:
        return None
    words_of_row = where.inputs * dtype.itemsize // _WORD
    array_type = ctypes.c_int32 * (where.num_blocks * words_of_row * BLOCK)
    memory = array_type.from_address(where.address)
    return torch.frombuffer(memory, dtype=torch.int32).view(where.num_blocks, words_of_row, BLOCK)
