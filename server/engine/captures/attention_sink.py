"""Gathers captured attention while a request runs: what was asked for and nothing else, in the type in which it will be
sent.

It knows requests and tensors; it knows no scheduling and no wire. Each number depends on its own row alone, so an
answer does not change with the chunks its prompt was cut into.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from model.config import ModelConfig
from model.hooks.asked_pairs import AskedPairs
from model.hooks.hooks import AllPatterns, AttentionTap, corner, index_of
from model.hooks.point_names import stack_config
from server.engine.captures.sink import Sink
from server.engine.captures.window import Positions, Window, seen_keys
from server.engine.memory.memory_limit import own_memory
from server.engine.outputs import Array
from server.engine.request import AttentionCapture, Part
from server.engine.required_layers import Stage

_LARGE = 2 << 20
"""Bytes from which on what is gathered has a mapping of its own: a huge page. In small ones each first touch costs
more than the heap does.
"""
_RANGES = {torch.float16: (-65504.0, 65504.0), torch.uint8: (0.0, 1.0)}
"""The range of numbers that these types can surely hold."""
TORCH_DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8,
}  # fmt: skip


class AttentionSink(Sink):
    """The attention of one request: [pair or layer, query, key] once it is complete."""

    def __init__(
        self,
        capture: AttentionCapture,
        config: ModelConfig,
        *,
        num_queries: int,
        num_keys: int,
        is_changed: bool = True,
        pairs: AskedPairs | None = None,
    ) -> None:
        """Make room for the capture. is_changed: whether the request may change what the network computes. pairs: the
        capture's, if they are known.
        """
        self._is_surely_reported = is_surely_reported(capture, is_changed=is_changed)
        self.stage: Stage = "encoder" if capture.part == "encoder" else "decoder"
        self._name = capture.name
        self._capture = capture
        self._config = config
        self._hidden = 0.0 if capture.kind == "pattern" else float("-inf")
        self._pairs = pairs or asked_pairs(capture, config)
        self._heads, self._slots = self._pairs.heads, self._pairs.places
        if capture.reduce is not None:
            self._slots = {layer: [place] for place, layer in enumerate(self._heads)}
        count = sum(map(len, self._slots.values()))
        self._queries = np.arange(num_queries) if capture.queries is None else np.array(capture.queries, np.int64)
        self._keys = None if capture.keys is None else torch.tensor(capture.keys)
        self._columns = num_keys if capture.keys is None else len(capture.keys)
        dtype = TORCH_DTYPES[capture.dtype]
        self._thumbnail = _Thumbnail(count, len(self._queries), capture.resize) if capture.resize else None
        shape = (count, len(self._queries), capture.top_k or self._columns)
        hidden = 0 if dtype == torch.uint8 else self._hidden
        self._values = gathering(shape, dtype, hidden) if self._thumbnail is None else self._thumbnail.sums
        self._indices = gathering(shape, torch.int32, -1) if capture.top_k else None

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes + (0 if self._indices is None else self._indices.nbytes)

    def hooks(self, window: Window) -> list[AttentionTap]:
        places = window.find(self._queries)
        if not len(places):
            return []
        if self._thumbnail is not None:  # its sums are over rows in the order of their positions, in any chunks
            places = places[np.argsort(self._queries[places], kind="stable")]
        positions = self._queries[places]
        where = torch.from_numpy(places)

        def deliver(layer: int, i: int, rows: torch.Tensor) -> None:
            self._keep(layer, where[i : i + rows.shape[1]], positions[i : i + rows.shape[1]], rows)

        def deliver_all(rows: torch.Tensor) -> None:
            self._write(slice(None), where, rows)

        tap = AttentionTap(
            span=window.span,
            rows=window.rows(positions),
            heads=self._heads,
            kind=self._capture.kind,
            deliver=deliver,
            cross=self._capture.part == "cross",
            room=partial(self._room, where),
            at_once=AllPatterns(self._pairs, deliver_all, torch.float32) if self._is_kept_whole else None,
        )
        return [tap]

    @property
    def _is_kept_whole(self) -> bool:
        """Return whether all that attention computes of the rows is kept."""
        return self._capture.reduce is None and all(
            each is None for each in (self._thumbnail, self._indices, self._keys)
        )

    def _room(self, where: torch.Tensor, layer: int, num_keys: int) -> torch.Tensor | None:
        """Return where the pattern of queries `where` of the answer may be written as it is, for
        `AttentionTap.room`, or None.
        """
        heads, values = self._heads[layer], self._values
        if not (self._is_surely_reported and self._is_kept_whole) or len(set(heads)) < len(heads):
            return None
        place = corner(index_of(self._slots[layer]), index_of(where.tolist()))
        return values[place][..., :num_keys] if all(isinstance(each, slice) for each in place) else None

    def mark(self) -> Callable[[], None]:
        """Return a function that takes back all that is added up from now on; the other numbers are written where
        they belong.
        """
        thumbnail = self._thumbnail
        sums = None if thumbnail is None else thumbnail.sums.clone()

        def take_back() -> None:
            if thumbnail is not None and sums is not None:
                thumbnail.sums.copy_(sums)

        return take_back

    def _keep(self, layer: int, where: torch.Tensor, positions: Positions, rows: torch.Tensor) -> None:
        """Keep rows [heads, n, keys seen so far] of queries `where` of the answer, whose positions are given."""
        rows = (rows if self._capture.dtype == "float64" else rows.float()).cpu()
        if self._capture.reduce == "mean":
            rows = _mean_in_order(rows)
        elif self._capture.reduce == "max":
            rows = rows.amax(0, keepdim=True)
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
            rows, indices = self._largest(layer, rows, positions)
            self._indices[slots[:, None], where] = indices
        self._values[slots[:, None], where] = _cast(rows, self._values.dtype)

    def _write(self, slots: slice | torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
        """Write all of rows [slots, n, keys so far], each number read once and cast on its way; what is there already
        are the hidden keys after them.
        """
        self._check(rows)
        numbers = rows if self._values.dtype.is_floating_point else _cast(rows, self._values.dtype)
        place = corner(slots, index_of(where.tolist()))
        if all(isinstance(each, slice) for each in place):
            self._values[place][..., : rows.shape[-1]].copy_(numbers)
        else:
            self._values[..., : rows.shape[-1]][place] = numbers.to(self._values.dtype)

    def _check(self, rows: torch.Tensor) -> None:
        if not self._is_surely_reported:
            self.problem = self.problem or why_not(rows, self._name, TORCH_DTYPES[self._capture.dtype])

    def _select_keys(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [.., columns of the answer] from [.., keys so far]; keys not seen yet are hidden."""
        out = torch.full((*rows.shape[:-1], self._columns), self._hidden, dtype=rows.dtype)
        if self._keys is None:
            out[..., : rows.shape[-1]] = rows
        else:
            here = self._keys < rows.shape[-1]
            out[..., here] = rows[..., self._keys[here]]
        return out

    def _largest(self, layer: int, rows: torch.Tensor, positions: Positions) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the top_k keys of each row, largest first, earlier keys first among equals; -1 where fewer are
        visible.
        """
        k = self._values.shape[-1]
        keys = torch.arange(self._columns) if self._keys is None else self._keys
        unseen = ~seen_keys(self._config, self._capture.part, layer, positions, keys)  # [n, columns]
        values, order = rows.masked_fill(unseen, float("-inf")).sort(dim=-1, descending=True, stable=True)
        values, order = values[..., :k], order[..., :k]
        empty = unseen.expand(rows.shape).gather(-1, order)
        short = k - values.shape[-1]
        values = torch.nn.functional.pad(values.masked_fill(empty, self._hidden), (0, short), value=self._hidden)
        indices = torch.nn.functional.pad(keys[order].masked_fill(empty, -1), (0, short), value=-1)
        return values, indices.int()

    def arrays(self) -> dict[str, Array]:
        """Return what was gathered, under its name and, with top_k, "<name>.indices"."""
        values = self._values
        if self._thumbnail is not None:
            values = _cast(self._thumbnail.mean(), TORCH_DTYPES[self._capture.dtype])
        found = {self._name: as_array(values)}
        if self._indices is not None:
            found[f"{self._name}.indices"] = as_array(self._indices)
        return found


class _Thumbnail:
    """Area means of [map, row, key] patterns, each map n x n, gathered row by row: the rows themselves are not kept.

    Cell i of n covers rows floor(i * rows / n) up to, not including, ceil((i + 1) * rows / n), as in torch's
    `adaptive_avg_pool2d`: neighbours share a row that is on their edge. Keys likewise.
    """

    def __init__(self, num_maps: int, num_rows: int, size: int) -> None:
        self.sums = torch.zeros(num_maps, size, size)
        self._size = size
        row, cell = torch.arange(num_rows), torch.arange(size)
        self._first = row * size // max(1, num_rows)
        """The first cell that each row is in."""
        self._num_cells = -(-(row + 1) * size // max(1, num_rows)) - self._first
        self._num_rows = -(-(cell + 1) * num_rows // size) - cell * num_rows // size
        """The number of rows of each cell."""

    def add(self, maps: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
        """Add rows [maps, n, keys], which are rows `where` of `maps`, one after another."""
        narrow = torch.nn.functional.adaptive_avg_pool1d(rows, self._size)
        num_cells = self._num_cells[where]
        source = torch.arange(len(where)).repeat_interleave(num_cells)
        nth = torch.arange(len(source)) - (num_cells.cumsum(0) - num_cells)[source]
        self.sums[maps] = self.sums[maps].index_add_(1, self._first[where][source] + nth, narrow[:, source])

    def mean(self) -> torch.Tensor:
        return self.sums / self._num_rows.clamp_min(1)[:, None]


def asked_pairs(capture: AttentionCapture, config: ModelConfig) -> AskedPairs:
    """Return the pairs of a capture as steps need them."""
    own = stack_config(config, "encoder" if capture.part == "encoder" else "decoder")
    return AskedPairs.of(capture.pairs, own.num_layers, own.num_heads)


def is_surely_reported(capture: AttentionCapture, *, is_changed: bool) -> bool:
    """Return whether the capture's type holds whatever may be captured: what a softmax returned fits any float.
    is_changed: whether the request may change what the network computes.
    """
    return capture.kind == "pattern" and capture.dtype in ("float16", "float32") and not is_changed


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
    """Return room for numbers that a request gathers over its steps, each `number` for now. Raises MemoryError, or
    torch's RuntimeError.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _LARGE:
        return torch.full(tuple(shape), number, dtype=dtype)
    zeros = torch.frombuffer(own_memory(num_bytes), dtype=dtype).view(tuple(shape))
    return zeros.fill_(number) if number else zeros  # which the kernel makes as they are first used


def as_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as the engine's answers carry it, sharing memory where it can."""
    array = np.ascontiguousarray(tensor.cpu().numpy())
    return Array(array.dtype.name, array.shape, memoryview(array.data).cast("B") if array.size else b"")


def _mean_in_order(rows: torch.Tensor) -> torch.Tensor:
    """Return the mean over the first axis, added head by head: the same sum however many rows there are."""
    total = rows[0].clone()
    for head in rows[1:]:
        total += head
    return (total / len(rows))[None]


def _cast(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (rows * 255).round().to(dtype) if dtype == torch.uint8 else rows.to(dtype)


def why_not(numbers: torch.Tensor, name: str, dtype: torch.dtype) -> str | None:
    """Return which of these numbers the type cannot hold, or None if it holds all. Infinity remains what it is in
    float16, but a number must not become infinite there; uint8 holds weights from 0 to 1 alone.
    """
    if dtype not in _RANGES or not numbers.numel():
        return None
    least, most = _RANGES[dtype]
    low, high = (float(bound) for bound in torch.aminmax(numbers))
    if least <= low and high <= most:  # nearly always, and one pass shows it
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
