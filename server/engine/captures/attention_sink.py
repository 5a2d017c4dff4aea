"""Attention sinks: gather the captured attention of a request, in the number type of its answer.

Each number depends only on its own row, so an answer does not change with the chunks of its prompt.
"""

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionTap, RowSink, corner, index_of
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.engine.captures.sink import Sink
from lightwell.server.engine.captures.window import Positions, Window, seen_keys
from lightwell.server.engine.memory.process_memory import own_memory
from lightwell.server.engine.messages.base_task import Stage
from lightwell.server.engine.messages.outputs import Array
from lightwell.server.engine.messages.request import AttentionCapture, Part

_LARGE = 2 << 20
"""Smallest answer, in bytes, that gets a memory mapping of huge pages. For smaller ones, the first use of the mapped
pages takes longer than memory from the heap.
"""
_RANGES = {torch.float16: (-65504.0, 65504.0), torch.uint8: (0.0, 1.0)}
"""Ranges of numbers that each type holds, rounded."""
TORCH_DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8,
}  # fmt: skip


_FIRST_QUERY = torch.zeros(1, dtype=torch.int64)


class AttentionSink(Sink, RowSink):
    """The attention of one prompt, [pair or layer, query, key], or the row that chooses one generated token,
    [pair or layer, key]. It takes the rows of one window at a time.
    """

    def __init__(
        self,
        capture: AttentionCapture,
        config: ModelConfig,
        pairs: HeadPairs,
        queries: Positions,
        num_keys: int,
        *,
        is_changed: bool,
        is_token: bool = False,
    ) -> None:
        """Prepare without memory for the numbers. queries: positions in the order of the answer. is_changed: whether
        the request may change the numbers of the network. is_token: whether the answer has no axis of queries.
        """
        self.stage: Stage = "encoder" if capture.part == "encoder" else "decoder"
        self._capture = capture
        self._config = config
        self._pairs = pairs
        self._slots = pairs.places
        if capture.reduce is not None:
            self._slots = {layer: [place] for place, layer in enumerate(pairs.heads)}
        self._queries = queries
        self._keys = None if capture.keys is None else torch.tensor(capture.keys)
        self._num_columns = num_keys if capture.keys is None else len(capture.keys)
        self._dtype = TORCH_DTYPES[capture.dtype]
        self._hidden = 0.0 if capture.kind == "pattern" else float("-inf")
        self._is_token = is_token
        self._is_kept_whole = capture.reduce is None and capture.keys is None and not (capture.top_k or capture.resize)
        # A softmax returns numbers that any float holds.
        self._always_fits = capture.kind == "pattern" and self._dtype in (torch.float16, torch.float32)
        self._always_fits &= not is_changed
        if self._always_fits and self._is_kept_whole:
            self.row_dtype = self._dtype
        self._where = _FIRST_QUERY
        """Indices of the window's rows among the queries."""
        self._values: torch.Tensor | None = None
        self._indices: torch.Tensor | None = None
        self._thumbnail: _Thumbnail | None = None

    @classmethod
    def of_prompt(
        cls, capture: AttentionCapture, config: ModelConfig, *, num_queries: int, num_keys: int, is_changed: bool
    ) -> Self:
        """Return a sink that has all its memory. Raises MemoryError, or torch's RuntimeError."""
        queries = np.arange(num_queries) if capture.queries is None else np.array(capture.queries, np.int64)
        sink = cls(capture, config, head_pairs(capture, config), queries, num_keys, is_changed=is_changed)
        sink._allocated()
        return sink

    @classmethod
    def of_token(
        cls,
        capture: AttentionCapture,
        config: ModelConfig,
        pairs: HeadPairs,
        num_cross_keys: int,
        is_changed: bool,
        position: int,
    ) -> Self:
        """Return a sink for the row of `position`. capture: without queries, keys and resize."""
        num_keys = num_cross_keys if capture.part == "cross" else position + 1
        return cls(capture, config, pairs, np.array([position]), num_keys, is_changed=is_changed, is_token=True)

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (self._values, self._indices) if each is not None)

    def hooks(self, window: Window) -> list[AttentionTap]:
        places = window.find(self._queries)
        if not len(places):
            return []
        if self._thumbnail is not None:  # its sums are over rows in the order of their positions, in any chunks
            places = places[np.argsort(self._queries[places], kind="stable")]
        self._where = torch.from_numpy(places)
        return [self.tap(window.span, window.rows(self._queries[places]))]

    def tap(self, span: int, rows: Sequence[int]) -> AttentionTap:
        """Return a tap on batch rows of a span: the window's rows, or the token's row."""
        capture = self._capture
        return AttentionTap(span, rows, self._pairs, capture.kind, self, capture.part == "cross")

    def mark(self) -> Callable[[], None]:
        """Return a function that undoes later additions to sums; other numbers are written in place."""
        thumbnail = self._thumbnail
        if thumbnail is None:
            return super().mark()
        sums = thumbnail.sums.clone()

        def undo() -> None:
            thumbnail.sums.copy_(sums)

        return undo

    def room(self, num_keys: int) -> torch.Tensor | None:
        has_repeats = self._pairs.slots.max() + 1 < len(self._pairs.numbers)
        where = index_of(self._where.tolist())
        is_too_long = self._is_token and num_keys > self._num_columns
        fits = self._always_fits and self._is_kept_whole and not (has_repeats or is_too_long)
        if not fits or not isinstance(where, slice):
            return None
        return self._allocated()[:, where, :num_keys]

    def take_all(self, pairs: HeadPairs, rows: torch.Tensor) -> None:
        if self._is_token:
            rows = rows[..., : self._num_columns]  # the others are of drafts
        if not self._is_kept_whole:
            super().take_all(pairs, rows)
        elif self._values is None:  # of a token: these rows are the answer
            self._check(rows)
            self._values = _cast(rows, self._dtype)
        else:
            self._write(slice(None), self._where, rows)

    def take(self, layer: int, first: int, rows: torch.Tensor) -> None:
        where = self._where[first : first + rows.shape[1]]
        rows = rows[..., : self._num_columns] if self._is_token else rows  # the others are of drafts
        rows = (rows if self._dtype == torch.float64 else rows.float()).cpu()
        if self._capture.reduce == "mean":
            rows = _mean_in_order(rows)
        elif self._capture.reduce == "max":
            rows = rows.amax(0, keepdim=True)
        values = self._allocated()
        if self._thumbnail is None and self._indices is None and self._keys is None:
            self._write(index_of(self._slots[layer]), where, rows)
            return
        rows = self._select_keys(rows)
        self._check(rows)
        slots = torch.tensor(self._slots[layer])
        if self._thumbnail is not None:
            self._thumbnail.add(slots, where, rows)
            return
        if self._indices is not None:
            rows, indices = self._largest(layer, rows, self._queries[where.numpy()])
            self._indices[slots[:, None], where] = indices
        values[slots[:, None], where] = _cast(rows, self._dtype)

    def _allocated(self) -> torch.Tensor:
        """Return the answer's values, which are allocated at the first call."""
        if self._values is None:
            capture, num_queries = self._capture, len(self._queries)
            num_maps = sum(map(len, self._slots.values()))
            shape = (num_maps, num_queries, capture.top_k or self._num_columns)
            if capture.resize:
                self._thumbnail = _Thumbnail(num_maps, num_queries, capture.resize)
                self._values = self._thumbnail.sums
            else:
                self._values = gathering(shape, self._dtype, 0 if self._dtype == torch.uint8 else self._hidden)
            self._indices = gathering(shape, torch.int32, -1) if capture.top_k else None
        return self._values

    def _write(self, slots: slice | torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows [slots, n, keys so far] to the answer, each number read once and cast on the way. The hidden keys
        after them are there already.
        """
        self._check(rows)
        values = self._allocated()
        numbers = rows if self._dtype.is_floating_point else _cast(rows, self._dtype)
        place = corner(slots, index_of(where.tolist()))
        if all(isinstance(each, slice) for each in place):
            values[place][..., : rows.shape[-1]].copy_(numbers)
        else:
            values[..., : rows.shape[-1]][place] = numbers.to(self._dtype)

    def _check(self, rows: torch.Tensor) -> None:
        if not self._always_fits:
            self.problem = self.problem or why_not(rows, self._capture.name, self._dtype)

    def _select_keys(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [.., columns of the answer] from [.., keys so far]; later keys are hidden."""
        out = torch.full((*rows.shape[:-1], self._num_columns), self._hidden, dtype=rows.dtype)
        if self._keys is None:
            out[..., : rows.shape[-1]] = rows
        else:
            here = self._keys < rows.shape[-1]
            out[..., here] = rows[..., self._keys[here]]
        return out

    def _largest(self, layer: int, rows: torch.Tensor, positions: Positions) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values and keys of the `top_k` largest numbers of each row, [.., top_k], largest first, earlier
        keys first among equals; -1 where fewer keys are visible.
        """
        k = self._allocated().shape[-1]
        keys = torch.arange(self._num_columns) if self._keys is None else self._keys
        unseen = ~seen_keys(self._config, self._capture.part, layer, positions, keys)  # [n, columns]
        values, order = rows.masked_fill(unseen, float("-inf")).sort(dim=-1, descending=True, stable=True)
        values, order = values[..., :k], order[..., :k]
        empty = unseen.expand(rows.shape).gather(-1, order)
        short = k - values.shape[-1]
        values = torch.nn.functional.pad(values.masked_fill(empty, self._hidden), (0, short), value=self._hidden)
        indices = torch.nn.functional.pad(keys[order].masked_fill(empty, -1), (0, short), value=-1)
        return values, indices.int()

    def arrays(self) -> dict[str, Array]:
        """Return the answer under its name and, with `top_k`, the keys under "<name>.indices"."""
        values, name = self._allocated(), self._capture.name
        if self._thumbnail is not None:
            values = _cast(self._thumbnail.mean(), self._dtype)
        found = {name: values}
        if self._indices is not None:
            found[f"{name}.indices"] = self._indices
        return {key: as_array(tensor[:, 0] if self._is_token else tensor) for key, tensor in found.items()}


class _Thumbnail:
    """Area means of [map, row, key] patterns, each map n x n, gathered row by row; it does not keep the rows.

    Cell i of n covers rows floor(i * rows / n) up to, not including, ceil((i + 1) * rows / n), as in torch's
    `adaptive_avg_pool2d`: neighbours share a row that is on their edge. Keys likewise.
    """

    def __init__(self, num_maps: int, num_rows: int, size: int) -> None:
        self.sums = torch.zeros(num_maps, size, size)
        self._size = size
        row, cell = torch.arange(num_rows), torch.arange(size)
        self._first = row * size // max(1, num_rows)
        """First cell of each row."""
        self._num_cells = -(-(row + 1) * size // max(1, num_rows)) - self._first
        self._num_rows = -(-(cell + 1) * num_rows // size) - cell * num_rows // size
        """The number of rows of each cell."""

    def add(self, maps: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
        """Add rows [maps, n, keys]: the rows `where` of `maps`, in order."""
        narrow = torch.nn.functional.adaptive_avg_pool1d(rows, self._size)
        num_cells = self._num_cells[where]
        source = torch.arange(len(where)).repeat_interleave(num_cells)
        nth = torch.arange(len(source)) - (num_cells.cumsum(0) - num_cells)[source]
        self.sums[maps] = self.sums[maps].index_add_(1, self._first[where][source] + nth, narrow[:, source])

    def mean(self) -> torch.Tensor:
        return self.sums / self._num_rows.clamp_min(1)[:, None]


def head_pairs(capture: AttentionCapture, config: ModelConfig) -> HeadPairs:
    """Return the indexed pairs of a capture."""
    own = stack_config(config, "encoder" if capture.part == "encoder" else "decoder")
    return HeadPairs.of(capture.pairs, own.num_layers, own.num_heads)


def check_heads(pairs: Sequence[tuple[int, int]], part: Part, config: ModelConfig) -> None:
    """Raise ValueError for a (layer, head) that the model lacks, and a layer that has no attention."""
    own = stack_config(config, "encoder" if part == "encoder" else "decoder")
    for layer, head in pairs:
        if not (0 <= layer < own.num_layers and 0 <= head < own.num_heads):
            raise ValueError(
                f"there is no head {head} in layer {layer}; the {part}'s layers are 0 to {own.num_layers - 1}, "
                f"its heads 0 to {own.num_heads - 1}"
            )
        if not own.has_attention(layer):
            raise ValueError(f"layer {layer} has no attention; layers {own.attention_layers} have it")


def gathering(shape: Sequence[int], dtype: torch.dtype, number: float = 0) -> torch.Tensor:
    """Return a tensor for the numbers that a request gathers over its steps, filled with `number`. Raises MemoryError,
    or torch's RuntimeError.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _LARGE:
        return torch.full(tuple(shape), number, dtype=dtype)
    zeros = torch.frombuffer(own_memory(num_bytes), dtype=dtype).view(tuple(shape))
    return zeros.fill_(number) if number else zeros


def as_array(tensor: torch.Tensor) -> Array:
    """Return a tensor in the form of the engine's answers; it shares memory if possible."""
    array = np.ascontiguousarray(tensor.cpu().numpy())
    return Array(array.dtype.name, array.shape, memoryview(array.data).cast("B") if array.size else b"")


def _mean_in_order(rows: torch.Tensor) -> torch.Tensor:
    """Return the mean over the first axis, added head by head: the same sum for any number of rows."""
    total = rows[0].clone()
    for head in rows[1:]:
        total += head
    return (total / len(rows))[None]


def _cast(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (rows * 255).round().to(dtype) if dtype == torch.uint8 else rows.to(dtype)


def why_not(numbers: torch.Tensor, name: str, dtype: torch.dtype) -> str | None:
    """Return an error that names a number which the type cannot hold, or None. float16 holds infinity, but no finite
    number may become infinite; uint8 holds only weights from 0 to 1.
    """
    if dtype not in _RANGES or not numbers.numel():
        return None
    least, most = _RANGES[dtype]
    low, high = (float(bound) for bound in torch.aminmax(numbers))
    if least <= low and high <= most:  # nearly always: one pass over the numbers is enough
        return None
    if dtype == torch.float16:
        lost = numbers.isfinite() & numbers.half().isinf()
    else:
        scaled = (numbers * 255).round()
        lost = ~((scaled >= 0) & (scaled <= 255))
    if not lost.any():
        return None
    type_name = str(dtype).removeprefix("torch.")
    return f"{name} holds {numbers[lost][0].item():.6g}, which {type_name} cannot; dtype float32 is accepted"
