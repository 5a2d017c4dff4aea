"""A step's numbers in one tensor, which is copied to the device at once, and which CUDA graphs read at a fixed address.

It contains all numbers that change from step to step: rows, visible keys and the places of patterns. The order: words
of other modules, arrays at offsets that depend only on the batch's shape, and a tail of any length with block tables
and pattern slots.

Axes: T rows, S spans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.kernels.cuda.attention_shapes import TILE_ROWS
from lightwell.model.kernels.cuda.paged_keys import PagedKeys, StateSpans
from lightwell.model.layers.rope import rotary_rows

_OF_ROWS = ("token_ids", "positions", "rotary_rows", "slots", "row_slots", "pattern_starts", "pattern_strides")
_OF_STATES = ("first_rows", "row_counts", "state_reads", "state_writes")
_OF_SPANS = ("lengths", "table_starts", "cross_lengths", "cross_starts", *_OF_STATES)
_TILE = 3
"""Numbers of a tile: its span, its first row and its number of rows."""
_ALIGNED = 4
"""Arrays begin at multiples of 4 numbers, 16 bytes: kernels are compiled for this alignment."""
_Numbers = TypeVar("_Numbers", np.ndarray, Tensor)


class BatchShape(NamedTuple):
    """The shape of a batch, which determines the offsets of its arrays."""

    rows: int
    spans: int
    single: int
    """Tiles of one row."""
    long: int
    """Tiles of several rows."""
    words: int = 0
    """Numbers of other modules before the arrays, at an offset that does not depend on the rest of the shape."""

    @classmethod
    def of(cls, batch: Batch, *, words: int = 0) -> Self:
        """Return the smallest shape for a batch. words: numbers of other modules."""
        counts = np.diff(batch.first_rows)
        long = int((-(-counts // TILE_ROWS))[counts > 1].sum())
        return cls(batch.num_rows, len(counts), int((counts == 1).sum()), long, words)

    def holds(self, least: Self) -> bool:
        """Return whether a batch of the shape `least` fits into this shape."""
        return all(own >= needed for own, needed in zip(self, least, strict=True))

    @property
    def tail(self) -> int:
        """Return the index of the first number of the tail."""
        start: int = _places(self)["tail"].start
        return start


@dataclass(frozen=True, slots=True, eq=False)
class PatternRoom:
    """The place of the patterns of some rows of one span: [slots, rows, keys of the span], from index `start`."""

    rows: Sequence[int]
    """Batch rows, ascending."""
    slots: np.ndarray
    """[layers * H] int32: the slot of each head of each layer, or -1 for unused heads."""
    start: int
    num_keys: int


@dataclass(frozen=True, eq=False)
class Packing:
    """A batch and the shape in which it is written to one array."""

    batch: Batch
    shape: BatchShape
    patterns: Sequence[PatternRoom] = ()

    @classmethod
    def of(cls, batch: Batch, patterns: Sequence[PatternRoom] = (), *, words: int = 0) -> Self:
        """Return the packing of a batch in its smallest shape. words: numbers of other modules."""
        return cls(batch, BatchShape.of(batch, words=words), patterns)

    @cached_property
    def size(self) -> int:
        """Return the length of the array."""
        num_slots = sum(len(room.slots) for room in self.patterns)
        return self.shape.tail + aligned_size(self.batch.tables_array.size + self._cross_tables.size + num_slots)

    @property
    def longest(self) -> int:
        """Return the largest number of keys of a span, its own or its encoder's."""
        return max(int(self.batch.lengths_array.max()), *[span.num_cross_keys for span in self.batch.spans])

    @cached_property
    def _cross_tables(self) -> np.ndarray:
        num_keys = [span.num_cross_keys for span in self.batch.spans] if self.batch.num_row_layers is None else []
        return self.batch.cross_key_range.tables_array if any(num_keys) else np.zeros((0, 0), np.int32)

    def write(self, out: np.ndarray) -> np.ndarray:
        """Write the numbers to out [size] int32, except for the words of other modules, and return a view of the words.

        Padding rows and spans get numbers without effect: no slot, no keys, no rows.
        """
        arrays = views(out, self.shape)
        batch, tables, cross = self.batch, self.batch.tables_array, self._cross_tables
        num_rows, num_spans, tail = batch.num_rows, batch.num_spans, arrays["tail"]
        for name, fill in (("token_ids", 0), ("positions", 0), ("rotary_rows", 0), ("slots", -1)):
            arrays[name][num_rows:] = fill
        arrays["row_slots"][:] = -1
        arrays["token_ids"][:num_rows] = batch.token_ids_array
        arrays["positions"][:num_rows] = batch.positions_array
        arrays["rotary_rows"][:num_rows] = rotary_rows(batch)
        arrays["slots"][:num_rows] = batch.slots_array
        arrays["lengths"][:num_spans] = batch.lengths_array
        arrays["lengths"][num_spans:] = 0
        arrays["table_starts"][:num_spans] = np.arange(num_spans) * tables.shape[1]
        # Padding of decodes has rows, too, so that all rows get numbers; it writes the state 0, which is not used.
        arrays["row_counts"][num_spans:] = 0 if self.shape.long else 1
        arrays["row_counts"][:num_spans] = np.diff(batch.first_rows)
        arrays["first_rows"][:] = np.arange(self.shape.spans)
        arrays["first_rows"][:num_spans] = batch.first_rows[:-1]
        arrays["state_reads"][:], arrays["state_writes"][:] = -1, 0
        if batch.num_row_layers is None:  # the rows of `Batch.of_rows` have no states
            arrays["state_reads"][:num_spans] = [-1 if span.start == 0 else span.states[0] for span in batch.spans]
            arrays["state_writes"][:num_spans] = [span.states[1] for span in batch.spans]
        tail[: tables.size] = tables.ravel()
        end = tables.size
        arrays["cross_lengths"][:] = 0
        if cross.size:
            arrays["cross_lengths"][:num_spans] = [span.num_cross_keys for span in batch.spans]
            arrays["cross_starts"][:num_spans] = end + np.arange(num_spans) * cross.shape[1]
            tail[end : end + cross.size] = cross.ravel()
            end += cross.size
        self._write_tiles(arrays)
        for room in self.patterns:
            rows = np.array(room.rows)
            arrays["row_slots"][rows] = end
            arrays["pattern_starts"][rows] = room.start + np.arange(len(rows)) * room.num_keys
            arrays["pattern_strides"][rows] = len(rows) * room.num_keys
            tail[end : end + len(room.slots)] = room.slots
            end += len(room.slots)
        return arrays["words"]

    def _write_tiles(self, arrays: dict[str, np.ndarray]) -> None:
        tiles = arrays["single_tiles"]
        tiles[:, :2] = np.arange(len(tiles))[:, None]  # tiles of padding have no keys, and get zeros
        tiles[:, 2] = 1
        if not self.shape.long:
            return
        first_rows, counts = np.array(self.batch.first_rows[:-1]), np.diff(self.batch.first_rows)
        single = np.flatnonzero(counts == 1)
        tiles[: len(single), 0], tiles[: len(single), 1] = single, first_rows[single]
        tiles[len(single) :] = 0  # padding without rows, since long tiles may contain those rows
        arrays["long_tiles"][:] = 0
        i = 0
        for span in np.flatnonzero(counts > 1).tolist():
            offsets = np.arange(0, counts[span], TILE_ROWS)
            own = arrays["long_tiles"][i : i + len(offsets)]
            own[:, 0], own[:, 1] = span, first_rows[span] + offsets
            own[:, 2] = np.minimum(TILE_ROWS, counts[span] - offsets)
            i += len(offsets)


class DeviceBatch:
    """A batch on the device."""

    def __init__(
        self, numbers: Tensor, shape: BatchShape, *, batch: Batch | None = None, last_tokens: Tensor | None = None
    ) -> None:
        """Keep numbers [size] int32, written by a `Packing`.

        batch: the batch, or None in a graph, where all rows need all layers. last_tokens: tokens [n] int64 chosen by
        the previous step; the token id -1 - i refers to the i-th one. None if all token ids are known.
        """
        arrays = views(numbers, shape)
        self.batch = batch
        self.num_rows = shape.rows
        self.last_tokens = last_tokens
        self.token_ids, self.positions, self.rotary_rows, self.slots = (arrays[name] for name in _OF_ROWS[:4])
        self.row_slots, self.pattern_starts, self.pattern_strides = (arrays[name] for name in _OF_ROWS[4:])
        self.single_tiles, self.long_tiles = arrays["single_tiles"], arrays["long_tiles"]
        self.words, self.tail = arrays["words"], arrays["tail"]
        self._arrays = arrays

    @classmethod
    def upload(cls, packing: Packing, device: torch.device) -> Self:
        """Copy a batch to the device with one asynchronous copy."""
        numbers = on_host(packing.size, device)
        packing.write(numbers.numpy())
        return cls(upload(numbers, device), packing.shape, batch=packing.batch)

    def num_rows_at(self, layer: int) -> int:
        """Return the number of rows that need layer `layer`."""
        return self.num_rows if self.batch is None else self.batch.num_rows_at(layer)

    def needs_output_of(self, layer: int) -> bool:
        """Return whether a row needs the output of layer `layer`, not only its queries, keys and values."""
        return self.batch is None or self.batch.needs_output_of(layer)

    @property
    def token_types(self) -> Tensor | None:
        """Return the type of each row's token [T] int64, or None if all types are 0."""
        return None if self.batch is None else self.batch.token_types

    @property
    def has_loose_rows(self) -> bool:
        """Return whether some rows may be outside of all tiles: the padding of a graph with long tiles."""
        return self.batch is None and len(self.long_tiles) > 0

    def check(self) -> None:
        """Call the batch's check between two layers. A graph has none, as it cannot be interrupted."""
        if self.batch is not None:
            self.batch.check()

    def keys(self, *, causal: bool = True, window: int | None = None, is_cross: bool = False) -> PagedKeys:
        """Return the visible keys of the rows: of their span, or in cross attention all keys of the span's encoder."""
        kind = "cross" if is_cross else "table"
        lengths = self._arrays["cross_lengths" if is_cross else "lengths"]
        return PagedKeys(self.tail, self._arrays[f"{kind}_starts"], lengths, self.positions, causal, window)

    @property
    def state_spans(self) -> StateSpans:
        """Return the rows and states of the spans."""
        first_rows, counts, reads, writes = (self._arrays[name] for name in _OF_STATES)
        are_single = len(self.long_tiles) == 0
        return StateSpans(first_rows, counts, reads, writes, are_single, has_loose_rows=self.has_loose_rows)

    def tiles_of(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return the single and the long tiles of the first `num_rows` rows, which are whole spans."""
        if num_rows == self.num_rows or self.batch is None:
            return self.single_tiles, self.long_tiles
        counts = np.diff(self.batch.first_rows[: self.batch.first_rows.index(num_rows) + 1])
        long = counts[counts > 1]
        num_long = sum(-(-int(count) // TILE_ROWS) for count in long)
        return self.single_tiles[: len(counts) - len(long)], self.long_tiles[:num_long]


def aligned_size(size: int) -> int:
    """Return `size` rounded up to the alignment."""
    return size + -size % _ALIGNED


def on_host(size: int, device: torch.device) -> Tensor:
    """Return a host buffer [size] int32 for a copy to the device."""
    return torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")


def upload(numbers: Tensor, device: torch.device) -> Tensor:
    """Return a buffer of `on_host` on the device. The copy is asynchronous: torch keeps the pinned memory for it."""
    return numbers.to(device, non_blocking=True)


def views(numbers: _Numbers, shape: BatchShape) -> dict[str, _Numbers]:
    """Return the arrays of a batch and the tail, by name, as views of its numbers."""
    found = {name: numbers[place] for name, place in _places(shape).items()}
    for name in ("single_tiles", "long_tiles"):
        found[name] = found[name].reshape(-1, _TILE)
    return found


@lru_cache(maxsize=256)
def _places(shape: BatchShape) -> Mapping[str, slice]:
    """Return the place of each array among the numbers of a batch, by name."""
    sizes = [(name, shape.rows) for name in _OF_ROWS] + [(name, shape.spans) for name in _OF_SPANS]
    tiles = [("single_tiles", _TILE * shape.single), ("long_tiles", _TILE * shape.long)]
    places, start = {}, 0
    for name, size in (("words", shape.words), *sizes, *tiles):
        places[name] = slice(start, start + size)
        start += aligned_size(size)
    return places | {"tail": slice(start, None)}
