"""Holds one token of each of several sequences, with all its numbers on the device: the input of a captured graph.

A stack takes it in place of a `Batch`. The numbers are in one tensor, so that a step copies them to the device at once;
unused rows and blocks are filled with zeros, which name the cache's first block: it belongs to no sequence.

Axes: R rows, J blocks of the longest sequence, B places of a block, S = J * B keys.
"""

from dataclasses import dataclass

import numpy as np
import torch

from model.batch import Batch

_HEADER = 3
"""Rows of a packed step before its block tables: token ids, positions, slots."""


def packed_size(num_rows: int, num_blocks: int) -> int:
    """Return the number of elements of a packed step of R rows and J blocks."""
    return (_HEADER + num_blocks) * num_rows


def pack(batch: Batch, num_rows: int, num_blocks: int, out: np.ndarray) -> None:
    """Write a batch of single rows to out [packed_size] int64, padded to `num_rows` rows and `num_blocks` blocks.

    Raises ValueError when it does not fit, or has spans of several rows.
    """
    rows = batch.num_rows
    width = most_blocks(batch)
    if rows != len(batch.spans) or rows > num_rows or width > num_blocks:
        raise ValueError(
            f"{len(batch.spans)} spans with {rows} rows and up to {width} blocks do not fit {num_rows} single rows of "
            f"{num_blocks} blocks"
        )
    lines = out.reshape(_HEADER + num_blocks, num_rows)
    lines[:] = 0
    lines[0, :rows] = [span.token_ids[0] for span in batch.spans]
    lines[1, :rows] = batch.positions_array
    lines[2, :rows] = batch.slots_array
    lines[_HEADER : _HEADER + width, :rows] = batch.tables_array[:, :width].T


def most_blocks(batch: Batch) -> int:
    """Return the number of blocks that hold the keys of the longest span."""
    return -(-batch.key_range().longest // batch.block_size)


@dataclass(frozen=True, eq=False)
class RowKeyRange:
    """The cached keys that each row sees, one row a sequence: those at positions first <= k < last."""

    tables: torch.Tensor
    """[R, J]: the blocks of a row's keys, in order."""
    positions: torch.Tensor
    """[R]"""
    unseen: torch.Tensor
    """[R, S] bool."""

    @classmethod
    def of(
        cls, tables: torch.Tensor, positions: torch.Tensor, first: torch.Tensor | None, last: torch.Tensor, *, size: int
    ) -> "RowKeyRange":
        """Return the key range of rows that see first <= k < last, both [R]; without `first` it is 0. size: B."""
        keys = torch.arange(tables.shape[1] * size, device=tables.device)
        unseen = keys >= last[:, None]  # [R, S]
        return cls(tables, positions, unseen if first is None else unseen | (keys < first[:, None]))

    def of_rows(self, rows: slice) -> "RowKeyRange":
        """Return the key range of some of the rows."""
        return RowKeyRange(self.tables[rows], self.positions[rows], self.unseen[rows])

    @property
    def longest(self) -> int:
        """Return the most keys that the longest span can have."""
        return self.unseen.shape[1]


class DecodeBatch:
    """One packed step, with what a stack needs from a batch. It is for a causal decoder alone, without cross
    attention.
    """

    def __init__(self, lines: torch.Tensor, block_size: int) -> None:
        """Read lines [packed_size / R, R] int64, which `pack` wrote."""
        self.block_size = block_size
        self.num_rows = lines.shape[1]
        self.token_ids = lines[0]
        self.positions = lines[1]
        self.blocks, self.places = lines[2] // block_size, lines[2] % block_size
        self.queries: list[torch.Tensor] = []
        """Queries [R, H, D] of each layer that ran, rotated, for captures afterwards."""
        self._tables = lines[_HEADER:].T
        self._key_ranges: dict[int | None, RowKeyRange] = {}

    def num_rows_at(self, layer: int) -> int:
        """Return the number of all rows: a token to be sampled needs every layer."""
        return self.num_rows

    def needs_output_of(self, layer: int) -> bool:
        """Return True, for the same reason."""
        return True

    def check(self) -> None:
        """Do nothing: a captured graph cannot be stopped in the middle."""

    def key_range(self, causal: bool = True, window: int | None = None) -> RowKeyRange:
        """Return the key range, like `Batch.key_range`; single rows at the end of their text see the same, causal or
        not.
        """
        if window not in self._key_ranges:
            first = None if window is None else self.positions - (window - 1)
            self._key_ranges[window] = RowKeyRange.of(
                self._tables, self.positions, first, self.positions + 1, size=self.block_size
            )
        return self._key_ranges[window]
