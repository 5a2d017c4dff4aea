"""The batch of one step as tensors: rows of several sequences, end to end. Independent of requests."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import msgspec
import numpy as np
import torch

from lightwell.model.kernels.attention import AttentionItems, VisibleKeys

Check = Callable[[], None]
"""A function called between pieces of a pass. Its exceptions end the pass."""
TILE_ROWS = 8
"""Query rows that share one pass over their keys; a block of keys then stays in the L1 cache."""
_ATTENTION_PIECE = 1 << 19
"""Most products of rows, keys and heads of a thread between two checks: about 10 ms with heads of 32 dimensions."""


class Span(msgspec.Struct, frozen=True):
    """The rows of one sequence in this step: consecutive positions.

    A struct, which is fast to create and to read, because each step creates one for every running sequence.
    """

    token_ids: Sequence[int]
    start: int
    """Position of the first row."""
    block_table: Sequence[int]
    """Cache blocks of positions 0, block_size, ... up to the last row's."""
    num_layers: int
    """Layers that this sequence needs. Later layers skip its rows."""
    cross_block_table: Sequence[int] = ()
    """Cache blocks of the encoder's positions, for cross attention."""
    num_cross_keys: int = 0
    needs_output: bool = True
    """True if the output of its last layer is needed, and not only the queries, keys and values."""
    adapter: object | None = None
    """The LoRA adapter of its rows (`model.layers.lora.Adapter`), or None."""
    states: tuple[int, int] = (0, 0)
    """Indices of two states of each layer without attention: the one read before the first row, except at position 0,
    and the one written after the last row.
    """
    second_segment: int | None = None
    """First position of a second text, with tokens of type 1; None if all tokens are of type 0."""
    rotary_start: int = 0
    """The row of position 0 in the rotary tables (`model.layers.rope.Rope`)."""

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_keys(self) -> int:
        """Return the number of positions after the step, all visible to the last row."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, eq=False)
class KeyRange:
    """The cached keys that each row of a batch sees: positions first <= k < last of its own span.

    Within a span, first and last never decrease from row to row.
    """

    block_size: int
    tables_array: np.ndarray
    """[span, J] int32: the blocks of a span's keys, in order."""
    lengths_array: np.ndarray
    """[span] int64: the number of a span's keys."""
    positions_array: np.ndarray
    """[T] int64: each row's own position."""
    first_array: np.ndarray
    """[T] int64: the first key that a row sees."""
    last_array: np.ndarray
    """[T] int64: the key after the last that a row sees."""
    causal: bool
    """True if no row sees later positions."""
    window: int | None = None
    """The window, as in `Batch.key_range`, or None."""
    is_cross: bool = False

    def num_keys(self, span: int) -> int:
        """Return the number of keys of a span."""
        return int(self.lengths_array[span])

    def tables(self, device: torch.device) -> torch.Tensor:
        """Return `tables_array` on a device. It is copied once."""
        if device not in self._tables:
            self._tables[device] = torch.from_numpy(self.tables_array).to(device)
        return self._tables[device]

    @cached_property
    def _tables(self) -> dict[torch.device, torch.Tensor]:
        return {}

    @cached_property
    def seen(self) -> VisibleKeys:
        """Return the range in the form for the CPU kernels."""
        arrays = self.positions_array, self.first_array, self.last_array
        return VisibleKeys(self.tables_array, *arrays, self.block_size)

    def of_first(self, num_rows: int) -> VisibleKeys:
        """Return the same of the first rows."""
        if num_rows == len(self.positions_array):
            return self.seen
        positions, first, last = (each[:num_rows] for each in (self.positions_array, self.first_array, self.last_array))
        return VisibleKeys(self.tables_array, positions, first, last, self.block_size)

    @property
    def longest(self) -> int:
        """Return the number of keys of the longest span."""
        return int(self.lengths_array.max())


class Batch:
    """The spans of a step, end to end, with the most layers first. Each layer then computes rows 0..n.

    Raises ValueError for spans in another order.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        block_size: int,
        device: torch.device,
        check: Check = lambda: None,
        *,
        first_alone: bool = False,
    ) -> None:
        layers = [span.num_layers for span in spans]
        if layers != sorted(layers, reverse=True):
            raise ValueError(f"spans must come with the most layers first, not {layers}")
        self.num_row_layers: int | None = None
        """The layers that each row needs in a batch of `of_rows`, else None."""
        self._spans = tuple(spans)
        self.block_size = block_size
        self.device = device
        self.check = check
        self.first_alone = first_alone
        """True if only the first output row of each span is needed. The others then have any content."""
        self.first_rows = [0, *accumulate([len(span.token_ids) for span in spans])]
        """The first row of each span, and the number of rows."""
        self.tables_array = _as_array([span.block_table for span in spans])
        self._key_ranges: dict[tuple[bool, int | None], KeyRange] = {}
        self._attention_items: dict[tuple[int, int, int], list[AttentionItems]] = {}
        lines = self._single_rows() if self.num_rows == len(spans) else self._rows()
        self.token_ids_array, self.positions_array, self.slots_array = lines[0], lines[1], lines[2]

    @classmethod
    def of_rows(
        cls,
        token_ids: np.ndarray,
        positions: np.ndarray,
        tables: np.ndarray,
        num_layers: int,
        block_size: int,
        device: torch.device,
        check: Check = lambda: None,
    ) -> "Batch":
        """Return a batch of single rows [T], each of a span that needs the output of `num_layers` layers and nothing
        else: its other fields have their defaults. tables: as `tables_array`.
        """
        batch = cls.__new__(cls)
        batch.num_row_layers = num_layers
        batch.block_size, batch.device, batch.check, batch.first_alone = block_size, device, check, False
        batch.first_rows = list(range(len(positions) + 1))
        batch.tables_array, batch.token_ids_array, batch.positions_array = tables, token_ids, positions
        blocks = tables[np.arange(len(positions)), positions // block_size]
        batch.slots_array = blocks.astype(np.int64) * block_size + positions % block_size
        batch._key_ranges, batch._attention_items = {}, {}
        return batch

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Return the spans."""
        if self.num_row_layers is None:
            return self._spans
        lines = zip(self.token_ids_array.tolist(), self.positions_array.tolist(), self.tables_array, strict=True)
        return tuple([Span([token], start, table.tolist(), self.num_row_layers) for token, start, table in lines])

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """Return the token ids on the device: [T] int64."""
        return torch.from_numpy(self.token_ids_array).to(self.device)

    @cached_property
    def positions(self) -> torch.Tensor:
        """Return the positions on the device: [T] int64."""
        return torch.from_numpy(self.positions_array).to(self.device)

    @cached_property
    def token_types(self) -> torch.Tensor | None:
        """Return the type of each row's token on the device: [T] int64, or None if all are of type 0."""
        starts = [span.second_segment for span in self.spans]
        if not any(start is not None for start in starts):
            return None
        firsts = np.array([np.iinfo(np.int64).max if start is None else start for start in starts])
        types = self.positions_array >= firsts[self.owners]
        return torch.from_numpy(types.astype(np.int64)).to(self.device)

    def _rows(self) -> np.ndarray:
        """Return token ids, positions and the cache's slots: [3, T] int64."""
        lines = np.empty((3, self.num_rows), np.int64)
        ids, positions, slots = lines
        ids[:] = [token for span in self.spans for token in span.token_ids]
        shifts = [span.start - row for span, row in zip(self.spans, self.first_rows, strict=False)]
        positions[:] = np.arange(self.num_rows) + np.array(shifts)[self.owners]
        slots[:] = self.tables_array[self.owners, positions // self.block_size]
        slots *= self.block_size
        slots += positions % self.block_size
        return lines

    def _single_rows(self) -> np.ndarray:
        """Return the same for spans of one row. This is plain Python, because each call of numpy takes a few
        microseconds after a pass that has emptied the CPU's caches.
        """
        size = self.block_size
        ids = [span.token_ids[0] for span in self.spans]
        positions = [span.start for span in self.spans]
        slots = [span.block_table[span.start // size] * size + span.start % size for span in self.spans]
        return np.array((ids, positions, slots), np.int64)

    @cached_property
    def owners(self) -> np.ndarray:
        """Return the span of each row: [T]."""
        return np.repeat(np.arange(len(self.spans)), np.diff(self.first_rows))

    @classmethod
    def unchunked(
        cls,
        token_ids: Sequence[Sequence[int]],
        block_size: int,
        device: torch.device,
        num_layers: Sequence[int],
        check: Check = lambda: None,
        needs_output: Sequence[bool] | None = None,
        adapters: Sequence[object | None] | None = None,
        second_segments: Sequence[int | None] | None = None,
        *,
        first_alone: bool = False,
    ) -> "Batch":
        """Return a batch of whole sequences from position 0, as for an encoder. Their blocks are 0 .. num_blocks - 1.

        num_layers, needs_output, adapters, second_segments: fields of `Span` for each sequence; None: all need the
        output, and none has an adapter or a second segment. first_alone: as in `Batch`. Raises ValueError if the most
        layers do not come first.
        """
        spans, num_blocks = [], 0
        outputs = [True] * len(token_ids) if needs_output is None else needs_output
        own = [None] * len(token_ids) if adapters is None else adapters
        second = [None] * len(token_ids) if second_segments is None else second_segments
        for ids, layers, output, adapter, start in zip(token_ids, num_layers, outputs, own, second, strict=True):
            table = range(num_blocks, num_blocks + -(-len(ids) // block_size))
            spans.append(Span(ids, 0, table, layers, needs_output=output, adapter=adapter, second_segment=start))
            num_blocks = table.stop
        return cls(spans, block_size, device, check, first_alone=first_alone)

    @cached_property
    def is_adapted(self) -> bool:
        return self.num_row_layers is None and [span.adapter for span in self.spans].count(None) < len(self.spans)

    @cached_property
    def lengths_array(self) -> np.ndarray:
        """Return the number of keys of each span: [span] int64."""
        lengths: np.ndarray = self.positions_array[np.array(self.first_rows[1:]) - 1] + 1
        return lengths

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks that the cache must have: the highest used index plus 1."""
        return int(self.tables_array.max()) + 1

    @property
    def num_rows(self) -> int:
        return int(self.first_rows[-1])

    @property
    def num_spans(self) -> int:
        return len(self.first_rows) - 1

    def num_rows_at(self, layer: int) -> int:
        """Return the number of rows that still need layer `layer`."""
        if self.num_row_layers is not None:
            return self.num_rows if self.num_row_layers > layer else 0
        if self.spans[-1].num_layers > layer:
            return self.num_rows
        return int(self.first_rows[sum([span.num_layers > layer for span in self.spans])])

    def needs_output_of(self, layer: int) -> bool:
        """Return whether any row needs the output of layer `layer`."""
        if self.num_row_layers is not None:
            return self.num_row_layers > layer
        return any(span.num_layers > layer + (not span.needs_output) for span in self.spans)

    @cached_property
    def tiles_array(self) -> np.ndarray:
        """Return (span, first row, rows) for each tile, at most TILE_ROWS rows each, in row order: [tile, 3] int32."""
        if self.num_row_layers is not None:
            rows = np.arange(self.num_rows, dtype=np.int32)
            return np.stack([rows, rows, np.ones_like(rows)], 1)
        tiles = []
        for i, span in enumerate(self.spans):
            for offset in range(0, span.num_rows, TILE_ROWS):
                tiles.append((i, self.first_rows[i] + offset, min(TILE_ROWS, span.num_rows - offset)))
        return np.array(tiles, np.int32).reshape(-1, 3)

    def attention_items(self, num_rows: int, num_key_heads: int, num_threads: int) -> list[AttentionItems]:
        """Return the work items of attention over the first `num_rows` rows (up to a span's end), in lists with a check
        between two of them.

        Items are (span, first row, rows, first key head, key heads). Tiles of several rows are split by head, and
        ordered by head, so that its keys and values stay in the cache. Tiles of one row have all heads, unless they are
        too few for all threads. Each thread takes an equal number of neighbouring items, so items are dealt out with
        the most work first: a late row of a text takes many times longer than an early one.
        """
        key = (num_rows, num_key_heads, num_threads)
        if key not in self._attention_items:
            tiles = self.tiles_array[: int(np.searchsorted(self.tiles_array[:, 1], num_rows))]
            items = np.zeros((len(tiles), 5), np.int32)
            items[:, :3], items[:, 4] = tiles, num_key_heads
            if tiles[:, 2].max(initial=0) > 1 or (num_threads > 1 and len(tiles) < 2 * num_threads):
                items = self._by_head(items, num_threads)
            work = (self.positions_array[items[:, 1] + items[:, 2] - 1] + 1) * items[:, 2] * items[:, 4]
            most = _ATTENTION_PIECE * num_threads
            is_one = num_threads == 1 and work.sum() <= most
            pieces = [items] if is_one else _dealt_out(items, work, most, num_threads)
            self._attention_items[key] = [AttentionItems(piece) for piece in pieces]
        return self._attention_items[key]

    @staticmethod
    def _by_head(items: np.ndarray, num_threads: int) -> np.ndarray:
        """Split tiles of several rows, or all tiles if they are few, into an item for each key head."""
        num_key_heads = items[:, 4]
        counts = np.where((items[:, 2] > 1) | (len(items) < 2 * num_threads), num_key_heads, 1)
        split = items.repeat(counts, 0)
        split[:, 3] = np.arange(len(split)) - (counts.cumsum() - counts).repeat(counts)
        split[:, 4] = (num_key_heads // counts).repeat(counts)
        return split

    def key_range(self, causal: bool = True, window: int | None = None) -> KeyRange:
        """Return the keys that the rows see.

        causal: a row at p sees keys p - window < k <= p, otherwise keys with |p - k| < window. None: no window.
        """
        if (causal, window) not in self._key_ranges:
            positions = self.positions_array
            lengths = self.lengths_array
            first = np.zeros_like(positions) if window is None else np.maximum(positions - (window - 1), 0)
            last = positions + 1 if causal else lengths[self.owners]
            if window is not None and not causal:
                last = np.minimum(last, positions + window)
            self._key_ranges[causal, window] = KeyRange(
                self.block_size, self.tables_array, lengths, positions, first, last, causal, window
            )
        return self._key_ranges[causal, window]

    @cached_property
    def cross_key_range(self) -> KeyRange:
        """Return the keys that the rows see in cross attention: all encoder positions of their span."""
        lengths = np.array([span.num_cross_keys for span in self.spans], np.int64)
        tables = _as_array([span.cross_block_table for span in self.spans])
        last = lengths[self.owners]
        first = np.zeros_like(last)
        return KeyRange(
            self.block_size, tables, lengths, self.positions_array, first, last, causal=False, is_cross=True
        )


def _dealt_out(items: np.ndarray, work: np.ndarray, most: int, num_threads: int) -> list[np.ndarray]:
    """Return items in pieces with at most `most` work. In each piece, equal shares of items have about equal work."""
    several = items[:, 2] > 1
    order = np.lexsort((-work, several * items[:, 3], several * items[:, 0], ~several))  # the last key counts most
    pieces = [order]
    if work.sum() > most:
        pieces = np.split(order, np.flatnonzero(np.diff(work[order].cumsum() // most)) + 1)
    return [items[np.concatenate([piece[i::num_threads] for i in range(num_threads)])] for piece in pieces]


def _as_array(tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Return block tables as rows, padded with zeros: [span, J] int32."""
    width = max(map(len, tables))
    numbers = array("i")
    for table in tables:
        numbers.extend(table)
        if len(table) < width:
            numbers.frombytes(bytes(numbers.itemsize * (width - len(table))))
    return np.array(numbers, np.int32).reshape(len(tables), width)
