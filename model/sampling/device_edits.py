"""Edits logits on the device: what `model.sampling.logit_edits.LogitEdits` does, with nothing that waits.

The cells of all rows travel in one packed array of int64, floats as their float64 bits. They can have a fixed number of
places, for a CUDA graph; places that no cell needs name a number after the logits, which nobody reads. What a
sequence's history says is kept from step to step, so that a step reads its new tokens only.

Axes: R rows, V vocabulary, C places for cells of all kinds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.sampling.logit_edits import EditOptions

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Capacities(NamedTuple):
    """The number of cells of each kind, or of places for them."""

    biases: int = 0
    repetitions: int = 0
    counts: int = 0

    @property
    def packed_size(self) -> int:
        """Return the number of elements of the packed cells."""
        return 2 * sum(self)


class _Cells(NamedTuple):
    """Token ids of one row, with a value each: factor * number + offset."""

    ids: Int64
    numbers: Int64 | Float64
    factor: float = 1.0
    offset: float = 0.0

    def write(self, first_cell: int, cells: Int64, values: Float64) -> None:
        """Write the cells, that of id 0 being `first_cell`, and their values."""
        np.add(self.ids, first_cell, out=cells)
        if self.factor:
            np.multiply(self.numbers, self.factor, out=values)
            values += self.offset
        else:
            values[:] = self.offset


class RowEdits:
    """The edits of one sequence's logits, kept while it grows."""

    def __init__(self, options: EditOptions, vocab_size: int, num_prompt_tokens: int) -> None:
        """Prepare for a sequence whose first tokens are the prompt's."""
        self._options = options
        self._num_prompt_tokens = num_prompt_tokens
        bias = dict(options.logit_bias)
        self._biases = _bias_cells(bias)
        bias.update((i, -math.inf) for i in options.stopping_ids if i < vocab_size)
        self._early_biases = _bias_cells(bias)
        self._seen, self._generated = _Tally(), _Tally()
        self._num_read = 0

    def cells(self, token_ids: Sequence[int]) -> tuple[_Cells, _Cells, _Cells]:
        """Return the cells of each kind for the token after these: the prompt's and then those generated so far, to
        which some may have been added since the last call. The next call may overwrite them.
        """
        options, num_prompt, num_read = self._options, self._num_prompt_tokens, self._num_read
        if options.repetition_penalty != 1.0:
            self._seen.add(token_ids[num_read:])
        if options.presence_penalty or options.frequency_penalty:
            self._generated.add(token_ids[max(num_read, num_prompt) :])
        self._num_read = len(token_ids)
        is_early = len(token_ids) - num_prompt < options.min_tokens
        return (
            self._early_biases if is_early else self._biases,
            _Cells(self._seen.ids, self._seen.counts, 0.0, options.repetition_penalty),
            _Cells(self._generated.ids, self._generated.counts, options.frequency_penalty, options.presence_penalty),
        )


def _bias_cells(bias: dict[int, float]) -> _Cells:
    return _Cells(np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float64, len(bias)))


class _Tally:
    """Different ids in the order in which they first came, and how often each did."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._lines = np.zeros((2, 16), np.int64)

    @property
    def ids(self) -> Int64:
        return self._lines[0, : len(self._places)]

    @property
    def counts(self) -> Int64:
        return self._lines[1, : len(self._places)]

    def add(self, ids: Iterable[int]) -> None:
        """Count these too."""
        for token_id, count in Counter(ids).items():
            place = self._places.setdefault(token_id, len(self._places))
            if place == self._lines.shape[1]:
                self._lines = np.concatenate([self._lines, np.zeros_like(self._lines)], 1)
            self._lines[0, place] = token_id
            self._lines[1, place] += count


class EditCells:
    """The edits of several rows of logits, collected row by row and packed for the device."""

    def __init__(self, vocab_size: int) -> None:
        """Collect cells of logits of `vocab_size` tokens."""
        self._vocab_size = vocab_size
        self._found: tuple[list[tuple[int, _Cells]], ...] = ([], [], [])

    def add(self, row: int, edits: RowEdits, token_ids: Sequence[int]) -> None:
        """Add the edits of one row; `token_ids` are as in `RowEdits.cells`, which is not called again before `pack`."""
        for found, cells in zip(self._found, edits.cells(token_ids), strict=True):
            if len(cells.ids):
                found.append((row * self._vocab_size, cells))

    @property
    def sizes(self) -> Capacities:
        """Return the number of cells of each kind: the least capacities."""
        return Capacities(*(sum(len(cells.ids) for _, cells in found) for found in self._found))

    def pack(self, out: Int64, num_rows: int, capacities: Capacities) -> None:
        """Write the cells to out [packed_size], contiguous int64, for logits [R, V] of R = `num_rows`.

        Raises ValueError when they do not fit.
        """
        sizes = self.sizes
        if any(size > capacity for size, capacity in zip(sizes, capacities, strict=True)):
            raise ValueError(f"{sizes} cells do not fit {capacities}")
        places = out.reshape(2, -1)
        values = places[1].view(np.float64)
        start = 0
        for found, capacity in zip(self._found, capacities, strict=True):
            last = start + capacity
            for first_cell, cells in found:
                end = start + len(cells.ids)
                cells.write(first_cell, places[0, start:end], values[start:end])
                start = end
            places[0, start:last] = num_rows * self._vocab_size
            values[start:last] = 0.0
            start = last


def edited(logits: Tensor, packed: Tensor, capacities: Capacities, dtype: torch.dtype) -> Tensor:
    """Return logits [R, V] of any float type after their edits, in `dtype`. packed: [packed_size] int64."""
    room = torch.empty(logits.numel() + 1, dtype=dtype, device=logits.device)  # the last is for unused places
    scores = room[:-1].view_as(logits).copy_(logits)
    cells, values = packed[: capacities.packed_size].view(2, -1)
    numbers = values.view(torch.float64).to(dtype)
    (bias_at, repeated_at, counted_at), (biases, penalties, counts) = cells.split(capacities), numbers.split(capacities)
    if capacities.biases:
        room.scatter_(0, bias_at, room.gather(0, bias_at) + biases)
    if capacities.repetitions:
        old = room.gather(0, repeated_at)
        room.scatter_(0, repeated_at, torch.where(old < 0, old * penalties, old / penalties))
    if capacities.counts:
        room.scatter_(0, counted_at, room.gather(0, counted_at) - counts)
    return scores
