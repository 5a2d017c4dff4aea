"""Edits of logits on the device, without synchronisation: the same as `model.sampling.logit_edits.LogitEdits`.

Biases and bans are sent as cells of the logits with a value each; penalties as one number for a row, with a cell and a
count for each token of its history. All are packed in one array of int64, floats as their float64 bits. For a CUDA
graph there can be more places than cells: the rest point to an unused number after the logits. The counts of a
sequence's history are kept from step to step, so that a step reads only its new tokens; its cells are copied at each.
The newest token may be known only on the device: it is counted there.

Axes: R rows, V vocabulary, B cells with a bias, T cells of penalized tokens, U penalized rows with a newest token that
only the device knows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightwell.model.sampling.logit_edits import EditOptions

Int64 = npt.NDArray[np.int64]

_NO_PENALTIES = (1.0, 0.0, 0.0)
"""The repetition, frequency and presence penalties of rows that have none."""


class EditCapacity(NamedTuple):
    """The capacity of a packed array of edits."""

    rows: int
    biases: int = 0
    tokens: int = 0
    """Places for tokens that are penalized."""
    unknown: int = 0
    """Places for penalized rows with a newest token that only the device knows."""

    @property
    def packed_size(self) -> int:
        """Return the number of elements."""
        return sum(lines * places for lines, places in self.shapes)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Return the shapes of the parts: penalties [3, R], biases [2, B], tokens [2, T], unknown ones [2, U]."""
        return [(len(_NO_PENALTIES), self.rows), (2, self.biases), (2, self.tokens), (2, self.unknown)]


_Packed = TypeVar("_Packed", Int64, Tensor)


def _parts(packed: _Packed, capacity: EditCapacity) -> list[_Packed]:
    """Return views of the parts of a packed array."""
    parts, start = [], 0
    for lines, places in capacity.shapes:
        parts.append(packed[start : start + lines * places].reshape((lines, places)))
        start += lines * places
    return parts


class RowEdits:
    """The edits of one sequence's logits, kept while it grows."""

    def __init__(self, options: EditOptions, vocab_size: int, num_prompt_tokens: int) -> None:
        """Prepare for a sequence that begins with the prompt's tokens."""
        self._min_tokens = options.min_tokens
        self._vocab_size = vocab_size
        self._num_prompt_tokens = num_prompt_tokens
        bias = dict(options.logit_bias)
        self._biases = _bias_cells(bias)
        bias.update((i, -math.inf) for i in options.stopping_ids if i < vocab_size)
        self._early_biases = _bias_cells(bias)
        self.penalties = options.repetition_penalty, options.frequency_penalty, options.presence_penalty
        self._num_read = 0 if options.repetition_penalty != 1.0 else num_prompt_tokens
        self._row = 0
        self._places: dict[int, int] = {}
        self._tokens = np.zeros((2, 16), np.int64)
        """For each different token its cell in `_row`, and its number in the generated text."""

    @property
    def has_penalties(self) -> bool:
        return self.penalties != _NO_PENALTIES

    def read(self, row: int, token_ids: Sequence[int], num_unknown: int = 0) -> tuple[Int64, Int64]:
        """Return the biases and tokens of this row [2, n], for the token after `token_ids`: the prompt's and then the
        generated ones, possibly more than in the last call. The next call may overwrite the results.

        num_unknown: the number of tokens at the end that are not known yet, and are left out.
        """
        if self.has_penalties:
            if self._num_read < self._num_prompt_tokens:
                self._count(dict.fromkeys(token_ids[self._num_read : self._num_prompt_tokens]), 0)
                self._num_read = self._num_prompt_tokens
            num_known = len(token_ids) - num_unknown
            self._count(token_ids[self._num_read : num_known], 1)
            self._num_read = num_known
        if row != self._row:
            self._tokens[0] += (row - self._row) * self._vocab_size
            self._row = row
        is_early = len(token_ids) - self._num_prompt_tokens < self._min_tokens
        biases = self._early_biases if is_early else self._biases
        if biases.size:
            biases = biases.copy()
            biases[0] += row * self._vocab_size
        return biases, self._tokens[:, : len(self._places)]

    def _count(self, token_ids: Iterable[int], times: int) -> None:
        for token_id in token_ids:
            place = self._places.setdefault(token_id, len(self._places))
            if place == self._tokens.shape[1]:
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)], 1)
            self._tokens[0, place] = self._row * self._vocab_size + token_id
            self._tokens[1, place] += times


def _bias_cells(bias: Mapping[int, float]) -> Int64:
    """Return the cells of row 0 and the bits of their values [2, n]."""
    return np.stack([np.array(list(bias), np.int64), np.array(list(bias.values()), np.float64).view(np.int64)])


class PackedEdits:
    """The edits of several rows of logits, collected row by row and packed for the device."""

    def __init__(self, vocab_size: int) -> None:
        """Collect edits of logits of `vocab_size` tokens."""
        self._vocab_size = vocab_size
        self._penalties: dict[int, tuple[float, float, float]] = {}
        self._biases: list[Int64] = []
        self._tokens: list[Int64] = []
        self._unknown: list[tuple[int, int]] = []

    def add(self, row: int, edits: RowEdits, token_ids: Sequence[int], newest: int | None = None) -> None:
        """Add the edits of one row; `token_ids` are as in `RowEdits.read`, which is not called again before `pack`.

        newest: the index of the last of them in `last_tokens` of `edited`, if it is not known yet.
        """
        biases, tokens = edits.read(row, token_ids, num_unknown=newest is not None)
        if biases.size:
            self._biases.append(biases)
        if edits.has_penalties:
            self._penalties[row] = edits.penalties
            self._tokens.append(tokens)
            if newest is not None:
                self._unknown.append((row, newest))

    def least_capacity(self, num_rows: int) -> EditCapacity:
        """Return the smallest sufficient capacity for logits [R, V] of R = `num_rows`."""
        biases, tokens = (sum(part.shape[1] for part in parts) for parts in (self._biases, self._tokens))
        return EditCapacity(num_rows, biases, tokens, len(self._unknown))

    def pack(self, out: Int64, capacity: EditCapacity) -> None:
        """Write the edits to out [packed_size], contiguous int64. Raises ValueError when they do not fit."""
        least = self.least_capacity(max(self._penalties, default=-1) + 1)
        if any(needed > there for needed, there in zip(least, capacity, strict=True)):
            raise ValueError(f"the edits need a capacity of {least}; it is {capacity}")
        penalties, biases, tokens, unknown = _parts(out, capacity)
        numbers = penalties.view(np.float64)
        numbers.T[:] = _NO_PENALTIES
        if self._penalties:
            numbers[:, list(self._penalties)] = np.array(list(self._penalties.values())).T
        for there, found, used in ((biases, self._biases, least.biases), (tokens, self._tokens, least.tokens)):
            if found:
                np.concatenate(found, 1, out=there[:, :used])
            there[0, used:] = capacity.rows * self._vocab_size
            there[1, used:] = 0
        unknown[0, least.unknown :], unknown[1, least.unknown :] = capacity.rows, 0
        if self._unknown:
            unknown[:, : least.unknown] = np.array(self._unknown).T


def edited(
    logits: Tensor, packed: Tensor, capacity: EditCapacity, dtype: torch.dtype, last_tokens: Tensor | None = None
) -> Tensor:
    """Return logits [R, V] of any float type after their edits, in `dtype`.

    packed: [packed_size] int64. last_tokens: [n] int64, the newest tokens, for rows in which only the device knows it.
    """
    room = torch.empty(logits.numel() + 1, dtype=dtype, device=logits.device)  # the last is for unused places
    scores = room[:-1].view_as(logits).copy_(logits)
    penalties, biases, tokens, unknown = _parts(packed, capacity)
    if capacity.biases:
        cells, values = biases[0], biases[1].view(torch.float64).to(dtype)
        room.scatter_(0, cells, room.gather(0, cells) + values)
    if capacity.tokens or capacity.unknown:
        cells, counts = tokens
        if capacity.unknown:
            assert last_tokens is not None
            newest = unknown[0] * logits.shape[1] + last_tokens.index_select(0, unknown[1])
            cells = torch.cat([cells, newest.clamp_max_(logits.numel())])
            counts = _counts(cells, torch.cat([counts, torch.ones_like(newest)]), room.numel())
        rows = (cells // logits.shape[1]).clamp_max_(capacity.rows - 1)
        repetition, frequency, presence = penalties.view(torch.float64).index_select(1, rows)  # T each
        old, repetition = room.gather(0, cells), repetition.to(dtype)
        penalized = torch.where(old < 0, old * repetition, old / repetition)
        taken = (frequency * counts).add_(presence).masked_fill_(counts == 0, 0.0)
        room.scatter_(0, cells, penalized.sub_(taken.to(dtype)))
    return scores


def _counts(cells: Tensor, counts: Tensor, size: int) -> Tensor:
    """Return the sum of the counts [n] of each of the cells [n], which are below `size` and may occur twice."""
    sums = torch.zeros(size, dtype=torch.int32, device=cells.device).scatter_add_(0, cells, counts.int())
    return sums.gather(0, cells)
