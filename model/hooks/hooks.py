"""Looking inside while a batch runs: which numbers of a forward pass are handed out or changed, and for whom.

A `Read` or a `Change` is one sequence's wish about one point in one step. The network calls `LayerHooks` where the
point's numbers stand; what is kept, in which type and order, is the wish's affair. With nothing wished for, `Hooks.at`
gives None and nothing here runs. Rows of other sequences are never touched: they stay bit-identical.

Axes: T rows of the step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from model.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class Read:
    """Numbers of one point for chosen rows of one span."""

    point: str
    """Short name, as in `model.hooks.points`: "attn.hook_q", "hook_resid_pre", "logits"."""
    layer: int | None
    """0-based; None for points outside the blocks."""
    rows: Sequence[int]
    """Batch rows, ascending, all of one span. (Cross-attention's hook_k and hook_v: rows of the encoder's batch.)"""
    heads: Sequence[int] | None
    """Of the point's second axis, in the order wanted; None is all (and for points that have no heads)."""
    deliver: Callable[[torch.Tensor], None]
    """Called once with [len(rows), ...], the point's axes; the tensor is the callee's to keep."""


@dataclass(frozen=True, slots=True)
class Change:
    """An intervention on chosen rows of one span. Not for hook_attn_scores and hook_pattern: see AttentionChange."""

    point: str
    layer: int | None
    rows: Sequence[int]
    heads: Sequence[int] | None
    apply: Callable[[torch.Tensor], torch.Tensor]
    """[len(rows), ...] (of `heads` alone, when given) -> the same shape, to be written in its place."""


@dataclass(frozen=True, slots=True)
class AttentionTap:
    """Attention of chosen heads for chosen rows of one span."""

    span: int
    rows: Sequence[int]
    """Batch rows, all of that span."""
    heads: Mapping[int, Sequence[int]]
    """Layer -> its heads."""
    kind: str
    """pattern | scores | dots, as in `model.layers.attention.Attention.rows`."""
    deliver: Callable[[int, int, torch.Tensor], None]
    """Called with (layer, i, [heads of that layer, n, keys]) for `rows[i : i + n]`, layers and i ascending; the tensor
    is the callee's to keep.
    """
    cross: bool = False
    """Attention to the encoder's output instead of the sequence's own."""
    room: Callable[[int, int], torch.Tensor | None] | None = None
    """(layer, keys) -> [heads of that layer, n, keys] of all rows, float32 or float16, zeros: where a pattern may be
    written as attention makes it, instead of being delivered. None, from the call too: it is to be delivered.
    """


@dataclass(frozen=True, slots=True)
class AttentionChange:
    """An intervention on the scores (before the softmax) or the pattern of chosen heads and rows of one span."""

    span: int
    layer: int
    rows: Sequence[int]
    """Ascending."""
    heads: Sequence[int]
    kind: str
    """scores | pattern"""
    apply: Callable[[torch.Tensor, slice], torch.Tensor]
    """[heads, n, keys] of the rows in this slice of `rows` -> the same shape; unseen keys of scores are -inf and must
    stay so."""
    cross: bool = False


class LayerHooks:
    """The wishes about one layer (or about what stands outside the blocks) in one step."""

    def __init__(self, layer: int | None) -> None:
        self.layer = layer
        self.reads: dict[str, list[Read]] = {}
        self.changes: dict[str, list[Change]] = {}
        self.attention: list[AttentionTap] = []
        self.attention_changes: list[AttentionChange] = []
        self.attention_seconds = 0.0

    def wants(self, *points: str) -> bool:
        """Whether anybody reads or changes any of these points."""
        return any(point in self.reads or point in self.changes for point in points)

    def region(self, *points: str) -> "TensorRegion | None":
        """The rows and heads of all wishes about these points together; None when there are none."""
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
        """The numbers x [T, ...] of `point` stand here: change them, hand them out, and return what goes on.

        `region`: x [n, ...] holds these rows and heads only, in order; among them must be all that anybody wishes.
        x itself is not written to. A row that nobody changes keeps its bits.
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
        """Hand out a point that the network does not need: `compute` is given batch rows [n] (int64) and returns
        [n, ...] for them; it is called only where somebody reads.
        """
        for read in self.reads.get(point, ()):
            found = compute(torch.tensor(read.rows, dtype=torch.int64))
            read.deliver(found if read.heads is None else found[:, list(read.heads)])

    def of_norm(self, name: str, norm: Norm, x: torch.Tensor, normed: torch.Tensor) -> None:
        """Hand out the points of a norm that was given x [T, d] and made `normed` of it."""
        self.derive(f"{name}.hook_scale", lambda rows: norm.scale(x[rows.to(x.device)]))
        self.derive(f"{name}.hook_normalized", lambda rows: norm.normalized(x[rows.to(x.device)]))
        self(f"{name}.hook_out", normed)


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """Which rows and heads of a batch a tensor holds, or a wish is about."""

    rows: Sequence[int] | None
    """Ascending; None is all rows of the batch."""
    heads: Sequence[int] | None
    """Ascending; None is all of the point's, or a point that has none."""

    def of(self, rows: Sequence[int], heads: Sequence[int] | None) -> "TensorRegion":
        """Where these rows and heads lie in a tensor that holds this place's."""
        if self.rows is not None:
            rows = np.searchsorted(self.rows, rows).tolist()
        if heads is not None and self.heads is not None:
            heads = np.searchsorted(self.heads, heads).tolist()
        return TensorRegion(rows, heads)


WHOLE_TENSOR = TensorRegion(None, None)


def index_of(numbers: Sequence[int]) -> slice | torch.Tensor:
    """An index that takes these rows or heads: a slice where they follow each other, which costs a tenth."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1 or (last - first + 1 == len(numbers) and list(numbers) == list(range(first, last + 1))):
        return slice(first, last + 1)
    return torch.tensor(numbers)


def corner(
    first: slice | torch.Tensor, second: slice | torch.Tensor
) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
    """An index of every pair of the two, on the first two axes."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first[:, None], second
    return first, second


def _where(region: TensorRegion) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
    assert region.rows is not None
    return corner(index_of(region.rows), slice(None) if region.heads is None else index_of(region.heads))


def _taken(x: torch.Tensor, region: TensorRegion) -> torch.Tensor:
    """A copy of rows (and heads) of x."""
    where = _where(region)
    block = x[where]
    return block.clone() if all(isinstance(each, slice) for each in where) else block


def _write(x: torch.Tensor, region: TensorRegion, apply: Callable[[torch.Tensor], torch.Tensor]) -> None:
    where = _where(region)
    x[where] = apply(x[where]).to(x.dtype)


@dataclass(slots=True)
class Hooks:
    """All wishes of one step about one stack."""

    reads: Sequence[Read] = ()
    changes: Sequence[Change] = ()
    attention: Sequence[AttentionTap] = ()
    attention_changes: Sequence[AttentionChange] = ()
    _by_layer: dict[int | None, LayerHooks] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for read in self.reads:
            self._of(read.layer).reads.setdefault(read.point, []).append(read)
        for change in self.changes:
            self._of(change.layer).changes.setdefault(change.point, []).append(change)
        for tap in self.attention:
            for layer in tap.heads:
                self._of(layer).attention.append(tap)
        for attention_change in self.attention_changes:
            self._of(attention_change.layer).attention_changes.append(attention_change)

    def _of(self, layer: int | None) -> LayerHooks:
        return self._by_layer.setdefault(layer, LayerHooks(layer))

    @property
    def attention_seconds(self) -> float:
        """Time the network spent on the attention taps."""
        return sum(layer_hooks.attention_seconds for layer_hooks in self._by_layer.values())

    def serve_by(self, make: Callable[[LayerHooks], LayerHooks]) -> None:
        """Have what `make` gives for each layer's wishes serve them, before the step runs."""
        self._by_layer = {layer: make(layer_hooks) for layer, layer_hooks in self._by_layer.items()}

    def at(self, layer: int | None) -> LayerHooks | None:
        """The wishes about block `layer`, or about the points outside the blocks; None when there are none."""
        return self._by_layer.get(layer)
