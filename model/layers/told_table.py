"""Where attention writes the patterns of a step as it makes them. Knows memory, not who asks for it.

A table, [span, 4 + H] int64, that `told_kernels` reads: of each span its first row, bytes from the row of one query to
the next, keys of a row and bytes of a number (4: float32, 2: float16), then of each of H heads the address of its map;
0 is nobody's.
"""

from collections.abc import Sequence

import numpy as np
import torch

FIRST_ROW, ROW_BYTES, NUM_KEYS, NUMBER_BYTES, MAPS = range(5)
"""Columns; the heads' addresses begin at MAPS."""


class ToldTable:
    """Of one step and layer. The tensors that it points to must outlive it."""

    def __init__(self, num_spans: int, num_heads: int) -> None:
        self._table = np.zeros((num_spans, MAPS + num_heads), np.int64)

    @property
    def address(self) -> int:
        """As the kernels take it."""
        return self._table.ctypes.data

    def has(self, span: int) -> bool:
        """Whether somebody is told the patterns of this span already: a table has room for one."""
        return bool(self._table[span, NUMBER_BYTES])

    def add(self, span: int, first_row: int, heads: Sequence[int], room: torch.Tensor) -> None:
        """room [heads, rows of the span, keys], float32 or float16, keys side by side; each head once."""
        head_bytes, row_bytes, key_bytes = (stride * room.itemsize for stride in room.stride())
        assert key_bytes == room.itemsize
        line = self._table[span]
        line[:MAPS] = first_row, row_bytes, room.shape[2], room.itemsize
        line[MAPS:][list(heads)] = room.data_ptr() + head_bytes * np.arange(len(heads))
