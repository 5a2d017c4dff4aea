"""What somebody sees or changes inside one attention: scores, patterns and each head's result.

Knows the attention that has just run; knows no requests. What is handed out is recomputed for the rows asked for, by
the steps that the network itself takes, so both agree to the last bit.

Axes: T rows of the batch, H query heads, D head dimension, S keys of one sequence, d model width.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from model.batch import Batch, Check, KeyRange
from model.hooks.hooks import AttentionChange, AttentionTap, LayerHooks, TensorRegion, corner, index_of
from model.kernels.attention import PatternOutput
from model.kv_cache import LayerCache
from model.layers.attention import Attention, AttentionRule, NativeAttention

Projection = Callable[[torch.Tensor], torch.Tensor]
"""x [rows, H D] -> x W_O^T [rows, d], without the bias."""
TAP_BYTES = 64 << 20
"""Most bytes of attention rows in flight at a time: a long prompt's rows are handed out, and changed, in pieces of
this size."""


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """One layer's attention (to the sequence itself, or across to the encoder) as it ran."""

    attention: Attention
    rule: AttentionRule
    q: torch.Tensor
    """[T, H, D], turned."""
    cache: LayerCache
    key_range: KeyRange
    cross: bool
    check: Check
    """Between the wishes of two sequences."""

    def rows(self, rows: Sequence[int], heads: Sequence[int], span: int, kind: str) -> torch.Tensor:
        """[heads, rows, S] of one span: pattern, scores or dots."""
        return self.attention.rows(self.q, rows, heads, self.cache, self.key_range, span, self.rule, kind)

    def piece(self, span: int, num_heads: int) -> int:
        """How many rows of one span are looked at together."""
        return max(1, TAP_BYTES // (4 * num_heads * max(1, self.key_range.num_keys(span))))


@dataclass(frozen=True, slots=True, eq=False)
class _Changed:
    """Scores and patterns of a piece of one span's rows, some of which somebody changed."""

    rows: Sequence[int]
    heads: Sequence[int]
    numbers: dict[str, torch.Tensor]
    """By kind: [heads, rows, S]."""

    def write_over(self, found: torch.Tensor, rows: Sequence[int], heads: Sequence[int], kind: str) -> None:
        """Put what was changed into found [heads, rows, S], which was computed as if nothing had been."""
        if kind not in self.numbers:  # the bare dots stay as they are
            return
        to_row = np.flatnonzero(np.isin(rows, self.rows))
        to_head = np.flatnonzero(np.isin(heads, self.heads))
        if len(to_row) and len(to_head):
            at = _places(self.rows, np.take(rows, to_row).tolist(), self.heads, np.take(heads, to_head).tolist())
            found[np.ix_(to_head, to_row)] = self.numbers[kind][at]


def _places(
    has_rows: Sequence[int], rows: Sequence[int], has_heads: Sequence[int], heads: Sequence[int]
) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
    """Index of rows and heads in a tensor [heads, rows, S] that has these rows and heads, ascending."""
    at = TensorRegion(has_rows, has_heads).of(rows, heads)
    assert at.rows is not None
    assert at.heads is not None
    return corner(index_of(at.heads), index_of(at.rows))


def attend_with_hooks(attended: Attended, batch: Batch, layer_hooks: LayerHooks) -> torch.Tensor:
    """What attention makes of a batch, [T, H, D], changed as wished; the rows asked for are handed out."""
    attention, written = attended.attention, _written_patterns(attended, batch, layer_hooks)
    arguments = attended.q, attended.cache, batch, attended.key_range, attended.rule
    if written is not None:
        assert isinstance(attention, NativeAttention)
        z = attention.attend_with_pattern_output(*arguments, written.table)
    else:
        z = attention.attend(*arguments)
    return apply_hooks(attended, z, layer_hooks, () if written is None else written.taps)


@dataclass(frozen=True, slots=True, eq=False)
class _WrittenPatterns:
    """Whose patterns attention itself can write where they are wanted."""

    taps: Sequence[AttentionTap]
    table: PatternOutput
    """The taps keep alive what it points to."""


def _written_patterns(attended: Attended, batch: Batch, layer_hooks: LayerHooks) -> _WrittenPatterns | None:
    """Of one layer; None where it is nobody's."""
    if not isinstance(attended.attention, NativeAttention) or layer_hooks.attention_changes:
        return None
    assert layer_hooks.layer is not None
    taps: list[AttentionTap] = []
    table = PatternOutput(len(batch.spans), attended.q.shape[1])
    for tap in layer_hooks.attention:
        if tap.room is None or tap.cross != attended.cross or tap.kind != "pattern" or table.has(tap.span):
            continue
        every_row = range(batch.first_rows[tap.span], batch.first_rows[tap.span + 1])
        if list(tap.rows) != list(every_row):
            continue
        room = tap.room(layer_hooks.layer, attended.key_range.num_keys(tap.span))
        if room is not None:
            table.add(tap.span, every_row[0], tap.heads[layer_hooks.layer], room)
            taps.append(tap)
    return _WrittenPatterns(taps, table) if taps else None


def apply_hooks(
    attended: Attended, z: torch.Tensor, layer_hooks: LayerHooks, written: Sequence[AttentionTap] = ()
) -> torch.Tensor:
    """Change the attention that gave z [T, H, D] as wished, hand out the rows asked for and not told yet, and return
    what z is now.
    """
    began = time.perf_counter()
    all_changes = [change for change in layer_hooks.attention_changes if change.cross == attended.cross]
    z = z.clone() if all_changes else z
    changed: dict[int, list[_Changed]] = {}
    for span in dict.fromkeys(change.span for change in all_changes):
        changes = [change for change in all_changes if change.span == span]
        pieces = _change(attended, span, changes, z)
        changed[span] = [piece for piece in pieces if any(tap.span == span for tap in layer_hooks.attention)]
    layer_hooks.attention_seconds += time.perf_counter() - began
    deliver_rows(attended, layer_hooks, changed, written)
    return z


def deliver_rows(
    attended: Attended,
    layer_hooks: LayerHooks,
    changed: Mapping[int, Sequence[_Changed]] = MappingProxyType({}),
    written: Sequence[AttentionTap] = (),
) -> None:
    """Hand out the rows asked for and not told yet, with what was changed in them: by span."""
    began = time.perf_counter()
    assert layer_hooks.layer is not None
    for tap in layer_hooks.attention:
        if tap.cross == attended.cross and tap not in written:
            attended.check()
            _serve(attended, tap, layer_hooks.layer, changed.get(tap.span, ()))
    layer_hooks.attention_seconds += time.perf_counter() - began


def _change(attended: Attended, span: int, changes: Sequence[AttentionChange], z: torch.Tensor) -> Iterator[_Changed]:
    """Change z [T, H, D] in place, a bounded piece of rows at a time, and say what was changed in each."""
    every_row = sorted({row for change in changes for row in change.rows})
    heads = sorted({head for change in changes for head in change.heads})
    size = attended.piece(span, len(heads))
    for i in range(0, len(every_row), size):
        rows = every_row[i : i + size]
        scores = attended.rows(rows, heads, span, "scores")
        _apply([change for change in changes if change.kind == "scores"], rows, heads, scores)
        pattern = attended.attention.softmax(scores)
        _apply([change for change in changes if change.kind == "pattern"], rows, heads, pattern)
        changed = _Changed(rows, heads, {"scores": scores, "pattern": pattern})
        _mix_again(attended, span, changed, z)
        yield changed


def _apply(
    changes: Sequence[AttentionChange], rows: Sequence[int], heads: Sequence[int], numbers: torch.Tensor
) -> None:
    """Change numbers [heads, rows, S] of a piece of rows in place."""
    for change in changes:
        own = slice(bisect_left(change.rows, rows[0]), bisect_right(change.rows, rows[-1]))
        if own.start < own.stop:
            at = _places(rows, change.rows[own], heads, change.heads)
            numbers[at] = change.apply(numbers[at], own).to(numbers.dtype)


def _mix_again(attended: Attended, span: int, changed: _Changed, z: torch.Tensor) -> None:
    """Write to z [T, H, D] the values of the changed rows and heads, mixed by their changed pattern."""
    pattern, num_heads = changed.numbers["pattern"], z.shape[1]
    mixed = attended.attention.mix(pattern, changed.heads, num_heads, attended.cache, attended.key_range, span)
    z[corner(index_of(changed.rows), index_of(changed.heads))] = mixed.transpose(0, 1).to(z.dtype)


def _serve(attended: Attended, tap: AttentionTap, layer: int, changed: Sequence[_Changed]) -> None:
    """Recompute the rows of a tap, a bounded piece at a time."""
    heads = tap.heads[layer]
    if not heads:
        return
    piece = attended.piece(tap.span, len(heads))
    for i in range(0, len(tap.rows), piece):
        rows = tap.rows[i : i + piece]
        found = attended.rows(rows, heads, tap.span, tap.kind)
        for each in changed:
            each.write_over(found, rows, heads, tap.kind)
        tap.deliver(layer, i, found)


def deliver_results(
    point: str, project: Projection, z: torch.Tensor, out: torch.Tensor, layer_hooks: LayerHooks
) -> torch.Tensor:
    """Each head's part of the attention's output, z_h W_O,h, without the bias.

    project: by W_O; z [T, H, D]; out [T, d] what W_O made of z. Returns `out`, moved by what was changed.
    """
    region = layer_hooks.region(point)
    if region is None:
        return out
    assert region.rows is not None
    found = _results(project, z, region.rows, range(z.shape[1]) if region.heads is None else region.heads)
    wanted = layer_hooks(point, found, region)  # [n, heads, d]
    changes = layer_hooks.changes.get(point, ())
    out = out.clone() if changes else out
    for change in changes:
        own = region.of(change.rows, change.heads)
        assert own.rows is not None
        difference = wanted[index_of(own.rows)] - found[index_of(own.rows)]
        for head in range(found.shape[1]) if own.heads is None else own.heads:  # in order: the same sum in any batch
            out[index_of(change.rows)] += difference[:, head]
    return out


def _results(project: Projection, z: torch.Tensor, rows: Sequence[int], heads: Sequence[int]) -> torch.Tensor:
    """z_h W_O,h of these rows and heads, [n, heads, d].

    Each is a row of its own in a product with the whole of W_O, with zeros for all other heads: more arithmetic than
    W_O,h alone takes, but W_O lies packed, and to unpack it costs a step far more than the few rows that it has.
    """
    own = z[index_of(rows)]  # [n, H, D]
    size = max(1, TAP_BYTES // (len(heads) * own[0].nbytes))
    pieces = []
    for piece in torch.split(own, size):
        alone = piece.new_zeros(len(piece), len(heads), *piece.shape[1:])  # [m, heads, H, D]
        for region, head in enumerate(heads):
            alone[:, region, head] = piece[:, head]
        alone = alone.flatten(0, 1).flatten(1)  # [m * heads, H D]
        results = project(alone)
        pieces.append(results.view(len(piece), len(heads), -1))
    return torch.cat(pieces)
