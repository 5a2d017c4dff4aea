"""Hooks: read and change the numbers of a forward pass while a batch runs, each for one sequence.

A `Read` or a `Change` is one sequence's hook at one point in one step. The network calls `LayerHooks` where it computes
the point's numbers. Without hooks, `Hooks.at` returns None and nothing here runs. Rows of other sequences stay
bit-identical.

Axes: T rows of the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class Read:
    """A request for the numbers of one point, for chosen rows of one span."""

    point: str
    """Short name, as in `model.hooks.points`: "attn.hook_q", "hook_resid_pre", "logits"."""
    layer: int | None
    """The layer, 0-based, or None for points outside the blocks."""
    rows: Sequence[int]
    """Batch rows, ascending, all of one span. (Cross-attention's hook_k and hook_v: rows of the encoder's batch.)"""
    heads: Sequence[int] | None
    """Indices on the point's second axis, in the order wanted; None is all (and for points that have no heads)."""
    deliver: Callable[[torch.Tensor], None]
    """A callback, called once with [len(rows), ...], the point's axes; the callee may keep the tensor."""


@dataclass(frozen=True, slots=True)
class Change:
    """An intervention on rows of one span, at any point but hook_attn_scores and hook_pattern (AttentionChange)."""

    point: str
    layer: int | None
    rows: Sequence[int]
    heads: Sequence[int] | None
    apply: Callable[[torch.Tensor], torch.Tensor]
    """A function of [len(rows), ...] (with the axis of `heads`, if given) that returns the new numbers."""


class RowSink:
    """The receiver of one tap's attention rows. This class discards them; a subclass keeps them.

    Rows reach a sink in one of three ways: the hooks of a layer call `take`, on a CPU attention writes patterns into
    `room` while it computes them, and a step on a GPU calls `take_all` at its end.
    """

    row_dtype = torch.float32
    """Number type of the patterns of `take_all`; float16 if the sink keeps no more precision."""

    def take(self, layer: int, first: int, rows: torch.Tensor) -> None:
        """Take rows [heads of the layer, n, keys] of the batch rows `AttentionTap.rows[first : first + n]`. Layers and
        `first` ascend. The sink may keep the tensor.
        """

    def room(self, num_keys: int) -> torch.Tensor | None:
        """Return zeros [pairs, rows, num_keys], float32 or float16, for patterns that then need no `take`; None if the
        sink needs `take`.
        """
        return None

    def take_all(self, pairs: HeadPairs, rows: torch.Tensor) -> None:
        """Take the rows [pair, rows, keys] of all layers together. The sink may keep the tensor."""
        for layer in sorted(pairs.places):
            self.take(layer, 0, rows[index_of(pairs.places[layer])])


@dataclass(frozen=True, slots=True)
class AttentionTap:
    """A request for the attention of chosen heads, for chosen rows of one span."""

    span: int
    rows: Sequence[int]
    """Batch rows, all of that span."""
    pairs: HeadPairs
    kind: str
    """pattern | scores | dots, as in `model.layers.attention.Attention.rows`."""
    sink: RowSink
    cross: bool = False
    """Whether the tap is on cross attention instead of self-attention."""


@dataclass(frozen=True, slots=True)
class AttentionChange:
    """An intervention on the scores (before the softmax) or the pattern of chosen heads and rows of one span."""

    span: int
    layer: int
    rows: Sequence[int]
    """Batch rows, ascending."""
    heads: Sequence[int]
    kind: str
    """scores | pattern"""
    apply: Callable[[torch.Tensor, slice], torch.Tensor]
    """A function of [heads, n, keys] for the rows in this slice of `rows` that returns the same shape; scores of keys
    that are not visible are -inf and must stay so.
    """
    cross: bool = False


class LayerHooks:
    """The hooks of one layer (or of the points outside the blocks) in one step."""

    def __init__(self, layer: int | None) -> None:
        self.layer = layer
        self.reads: dict[str, list[Read]] = {}
        self.changes: dict[str, list[Change]] = {}
        self.attention: list[AttentionTap] = []
        self.attention_changes: list[AttentionChange] = []
        self.attention_seconds = 0.0

    def wants(self, *points: str) -> bool:
        """Return whether any hook reads or changes one of these points."""
        return any(point in self.reads or point in self.changes for point in points)

    def region(self, *points: str) -> "TensorRegion | None":
        """Return the rows and heads of all hooks at these points together, or None if there are no hooks."""
        requested: list[Read | Change] = []
        for point in points:
            requested += [*self.reads.get(point, ()), *self.changes.get(point, ())]
        if not requested:
            return None
        rows = sorted({row for request in requested for row in request.rows})
        if any(request.heads is None for request in requested):
            return TensorRegion(rows, None)
        return TensorRegion(rows, sorted({head for request in requested for head in request.heads or ()}))

    def __call__(self, point: str, x: torch.Tensor, region: "TensorRegion | None" = None) -> torch.Tensor:
        """Change and capture the numbers x [T, ...] of `point`, and return the numbers with which the network
        continues.

        With `region`, x [n, ...] holds only these rows and heads, in order; they must include those of all hooks. x
        itself is not written to. A row without changes keeps its bits.
        """
        region = region or WHOLE_TENSOR
        changes = self.changes.get(point)
        if changes:
            x = x.clone()
            for change in changes:
                _write(x, region.of(change.rows, change.heads), change.apply)
        for read in self.reads.get(point, ()):
            read.deliver(_taken(x, region.of(read.rows, read.heads)))
        return x

    def derive(self, point: str, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Capture a point that the network does not need: `compute` takes batch rows [n] (int64) and returns [n, ...]
        for them; it is called only if a hook reads the point.
        """
        for read in self.reads.get(point, ()):
            found = compute(torch.tensor(read.rows, dtype=torch.int64))
            read.deliver(found if read.heads is None else found[:, list(read.heads)])

    def of_norm(self, name: str, norm: Norm, x: torch.Tensor, normed: torch.Tensor) -> None:
        """Capture the points of a norm that took x [T, d] and returned `normed`."""
        self.derive(f"{name}.hook_scale", lambda rows: norm.scale(x[rows.to(x.device)]))
        self.derive(f"{name}.hook_normalized", lambda rows: norm.normalized(x[rows.to(x.device)]))
        self(f"{name}.hook_out", normed)


def hooked(layer_hooks: LayerHooks | None, point: str, x: torch.Tensor) -> torch.Tensor:
    """Return the numbers x [T, ...] of `point` as a layer's hooks leave them, if it has any."""
    return x if layer_hooks is None else layer_hooks(point, x)


def normed(norm: Norm | None, name: str, x: torch.Tensor, layer_hooks: LayerHooks | None) -> torch.Tensor:
    """Return x [T, d] after a norm; without a norm, x itself. name: prefix of the norm's points."""
    if norm is None:
        return x
    y = norm(x)
    if layer_hooks is not None:
        layer_hooks.of_norm(name, norm, x, y)
    return y


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """The rows and heads of a batch in a tensor, or of a hook."""

    rows: Sequence[int] | None
    """Batch rows, ascending; None is all rows of the batch."""
    heads: Sequence[int] | None
    """The point's heads, ascending; None is all of them, or a point that has none."""

    def of(self, rows: Sequence[int], heads: Sequence[int] | None) -> "TensorRegion":
        """Return the indices of these rows and heads in a tensor that holds this region."""
        if self.rows is not None:
            rows = np.searchsorted(self.rows, rows).tolist()
        if heads is not None and self.heads is not None:
            heads = np.searchsorted(self.heads, heads).tolist()
        return TensorRegion(rows, heads)


WHOLE_TENSOR = TensorRegion(None, None)


def index_of(numbers: Sequence[int]) -> slice | torch.Tensor:
    """Return an index of these rows or heads: a slice if they are consecutive, which takes a tenth of the time."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1 or (last - first + 1 == len(numbers) and list(numbers) == list(range(first, last + 1))):
        return slice(first, last + 1)
    return torch.tensor(numbers)


def corner(
    first: slice | torch.Tensor, second: slice | torch.Tensor
) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
    """Return an index of every pair of the two, on the first two axes."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first[:, None], second
    return first, second


def _where(region: TensorRegion) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
    assert region.rows is not None
    return corner(index_of(region.rows), slice(None) if region.heads is None else index_of(region.heads))


def _taken(x: torch.Tensor, region: TensorRegion) -> torch.Tensor:
    """Return a copy of rows (and heads) of x."""
    where = _where(region)
    block = x[where]
    return block.clone() if all(isinstance(each, slice) for each in where) else block


def _write(x: torch.Tensor, region: TensorRegion, apply: Callable[[torch.Tensor], torch.Tensor]) -> None:
    where = _where(region)
    x[where] = apply(x[where]).to(x.dtype)


Hook = Read | Change | AttentionTap | AttentionChange


@dataclass(slots=True)
class Hooks:
    """All hooks of one stack in one step."""

    reads: Sequence[Read] = ()
    changes: Sequence[Change] = ()
    attention: Sequence[AttentionTap] = ()
    attention_changes: Sequence[AttentionChange] = ()
    _found: dict[int | None, LayerHooks] | None = field(init=False, default=None)

    @property
    def has_points_of_layers(self) -> bool:
        """Return whether any point of a layer is read or changed."""
        is_read = any(each.layer is not None for each in self.reads)
        return is_read or any(each.layer is not None for each in self.changes)

    @classmethod
    def of(cls, hooks: Sequence[Hook]) -> Self | None:
        """Return hooks of any kinds together, or None if there are none."""
        if not hooks:
            return None
        return cls(
            reads=[hook for hook in hooks if isinstance(hook, Read)],
            changes=[hook for hook in hooks if isinstance(hook, Change)],
            attention=[hook for hook in hooks if isinstance(hook, AttentionTap)],
            attention_changes=[hook for hook in hooks if isinstance(hook, AttentionChange)],
        )

    @property
    def _by_layer(self) -> dict[int | None, LayerHooks]:
        """Return the hooks of each layer, sorted at first use: a GPU step that captures only patterns needs none."""
        if self._found is None:
            found: dict[int | None, LayerHooks] = {}
            self._found = found

            def of(layer: int | None) -> LayerHooks:
                return found.setdefault(layer, LayerHooks(layer))

            for read in self.reads:
                of(read.layer).reads.setdefault(read.point, []).append(read)
            for change in self.changes:
                of(change.layer).changes.setdefault(change.point, []).append(change)
            for tap in self.attention:
                for layer in tap.pairs.heads:
                    of(layer).attention.append(tap)
            for attention_change in self.attention_changes:
                of(attention_change.layer).attention_changes.append(attention_change)
        return self._found

    @property
    def attention_seconds(self) -> float:
        """Return the seconds that the network spent on the attention taps."""
        return sum(layer_hooks.attention_seconds for layer_hooks in (self._found or {}).values())

    def serve_by(self, make: Callable[[LayerHooks], LayerHooks]) -> None:
        """Replace each layer's hooks by the result of `make`, before the step runs."""
        self._found = {layer: make(layer_hooks) for layer, layer_hooks in self._by_layer.items()}

    def at(self, layer: int | None) -> LayerHooks | None:
        """Return the hooks of block `layer`, or with None of the points outside the blocks; None if there are none."""
        return self._by_layer.get(layer)
