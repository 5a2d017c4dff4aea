"""Hooks inside one attention: captures and changes of scores, patterns and each head's result.

Captured rows are recomputed after attention has run, by the operations of the network itself: the bits are the same.

Axes: T rows of the batch, H query heads, D head dimension, S keys of one sequence, d model width.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from lightwell.model.batch import Batch, Check, KeyRange
from lightwell.model.hooks.hooks import AttentionChange, AttentionTap, LayerHooks, TensorRegion, corner, index_of
from lightwell.model.kernels.attention import PatternOutput
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import Attention, AttentionRows, AttentionRule, CachedKV, NativeAttention

Projection = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
"""Computes x [n, H D] -> x W_O^T [n, d], without the bias, from x and the batch row of each of its rows."""
TAP_BYTES = 64 << 20
"""Most bytes of attention rows in memory at a time; the rows of a long prompt are processed in pieces of this size."""


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """One layer's attention (to the sequence itself, or across to the encoder) as it ran."""

    attention: AttentionRows
    rule: AttentionRule
    q: torch.Tensor
    """[T, H, D], rotated."""
    cache: LayerCache
    key_range: KeyRange
    cross: bool
    check: Check
    """The check to call between the hooks of two sequences."""

    def rows(self, rows: Sequence[int], heads: Sequence[int], span: int, kind: str) -> torch.Tensor:
        """Return pattern, scores or dots [heads, rows, S] of one span."""
        return self.attention.rows(self.q, rows, heads, self.cached(span), self.rule, kind)

    def cached(self, span: int) -> CachedKV:
        return CachedKV(self.cache, self.key_range, span)

    def piece(self, span: int, num_heads: int) -> int:
        """Return the number of rows of one span that are computed together."""
        return max(1, TAP_BYTES // (4 * num_heads * max(1, self.key_range.num_keys(span))))


@dataclass(frozen=True, slots=True, eq=False)
class _Changed:
    """Changed scores and patterns of a piece of one span's rows."""

    rows: Sequence[int]
    heads: Sequence[int]
    numbers: dict[str, torch.Tensor]
    """The numbers [heads, rows, S] by kind."""

    def write_over(self, found: torch.Tensor, rows: Sequence[int], heads: Sequence[int], kind: str) -> None:
        """Write the changed numbers into found [heads, rows, S], which was computed without the changes."""
        if kind not in self.numbers:  # dots never change
            return
        to_row = np.flatnonzero(np.isin(rows, self.rows))
        to_head = np.flatnonzero(np.isin(heads, self.heads))
        if len(to_row) and len(to_head):
            at = _places(self.rows, np.take(rows, to_row).tolist(), self.heads, np.take(heads, to_head).tolist())
            found[np.ix_(to_head, to_row)] = self.numbers[kind][at]


def _places(
    has_rows: Sequence[int], rows: Sequence[int], has_heads: Sequence[int], heads: Sequence[int]
) -> tuple[slice | torch.Tensor, slice | torch.Tensor]:
    """Return the index of rows and heads in a tensor [heads, rows, S] that has the rows `has_rows` and the heads
    `has_heads`, ascending.
    """
    at = TensorRegion(has_rows, has_heads).of(rows, heads)
    assert at.rows is not None
    assert at.heads is not None
    return corner(index_of(at.heads), index_of(at.rows))


def attend_with_hooks(attention: Attention, attended: Attended, batch: Batch, layer_hooks: LayerHooks) -> torch.Tensor:
    """Run a batch's attention with a layer's hooks, and return z [T, H, D] with their changes."""
    arguments = attended.q, attended.cache, batch, attended.key_range, attended.rule
    if isinstance(attention, NativeAttention) and not layer_hooks.attention_changes:
        assert layer_hooks.layer is not None
        layers = range(layer_hooks.layer, layer_hooks.layer + 1)
        written, table = written_patterns(layer_hooks.attention, batch, attended.key_range, attended.q.shape[1], layers)
        if written:
            z = attention.attend(*arguments, table)
            return apply_hooks(attended, z, layer_hooks, written)
    return apply_hooks(attended, attention.attend(*arguments), layer_hooks)


def written_patterns(
    taps: Sequence[AttentionTap], batch: Batch, key_range: KeyRange, num_heads: int, layers: range
) -> tuple[list[AttentionTap], PatternOutput]:
    """Return the taps with patterns that the attention of some layers, with these keys, writes itself, and the table of
    their addresses. The taps' sinks own the memory.
    """
    found: list[AttentionTap] = []
    table = PatternOutput(len(batch.spans), num_heads, len(layers))
    for tap in taps:
        if tap.cross != key_range.is_cross or tap.kind != "pattern" or table.has(tap.span):
            continue
        every_row = range(batch.first_rows[tap.span], batch.first_rows[tap.span + 1])
        if list(tap.rows) != list(every_row):
            continue
        numbers = tap.pairs.numbers - layers.start * num_heads
        own = np.flatnonzero((numbers >= 0) & (numbers < len(layers) * num_heads))
        place = slice(None) if len(own) == len(numbers) else index_of(own.tolist())
        room = tap.sink.room(key_range.num_keys(tap.span)) if isinstance(place, slice) else None
        if room is not None:
            table.add(tap.span, every_row[0], numbers[own], room[place])
            found.append(tap)
    return found, table


def apply_hooks(
    attended: Attended, z: torch.Tensor, layer_hooks: LayerHooks, written: Sequence[AttentionTap] = ()
) -> torch.Tensor:
    """Apply a layer's hooks to the attention with the result z [T, H, D], and return the new z. written: taps that have
    their rows already.
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
    """Give each tap its rows, except those in `written`. changed: by span, the rows that hooks have changed."""
    began = time.perf_counter()
    assert layer_hooks.layer is not None
    for tap in layer_hooks.attention:
        if tap.cross == attended.cross and tap not in written:
            attended.check()
            _serve(attended, tap, layer_hooks.layer, changed.get(tap.span, ()))
    layer_hooks.attention_seconds += time.perf_counter() - began


def _change(attended: Attended, span: int, changes: Sequence[AttentionChange], z: torch.Tensor) -> Iterator[_Changed]:
    """Change z [T, H, D] in place, a bounded piece of rows at a time, and yield the changed numbers of each piece."""
    every_row = sorted({row for change in changes for row in change.rows})
    heads = sorted({head for change in changes for head in change.heads})
    size = attended.piece(span, len(heads))
    for i in range(0, len(every_row), size):
        rows = every_row[i : i + size]
        scores = attended.rows(rows, heads, span, "scores")
        _apply([change for change in changes if change.kind == "scores"], rows, heads, scores)
        pattern = attended.attention.softmax(scores, attended.rule.sinks_of(heads))
        _apply([change for change in changes if change.kind == "pattern"], rows, heads, pattern)
        mixed = attended.attention.mix(pattern, heads, z.shape[1], attended.cached(span))
        z[corner(index_of(rows), index_of(heads))] = mixed.transpose(0, 1).to(z.dtype)
        yield _Changed(rows, heads, {"scores": scores, "pattern": pattern})


def _apply(
    changes: Sequence[AttentionChange], rows: Sequence[int], heads: Sequence[int], numbers: torch.Tensor
) -> None:
    """Change numbers [heads, rows, S] of a piece of rows in place."""
    for change in changes:
        own = slice(bisect_left(change.rows, rows[0]), bisect_right(change.rows, rows[-1]))
        if own.start < own.stop:
            at = _places(rows, change.rows[own], heads, change.heads)
            numbers[at] = change.apply(numbers[at], own).to(numbers.dtype)


def _serve(attended: Attended, tap: AttentionTap, layer: int, changed: Sequence[_Changed]) -> None:
    """Recompute the rows of a tap, a bounded piece at a time."""
    heads = tap.pairs.heads[layer]
    piece = attended.piece(tap.span, len(heads))
    for i in range(0, len(tap.rows), piece):
        rows = tap.rows[i : i + piece]
        found = attended.rows(rows, heads, tap.span, tap.kind)
        for each in changed:
            each.write_over(found, rows, heads, tap.kind)
        tap.sink.take(layer, i, found)


def deliver_results(
    point: str, project: Projection, z: torch.Tensor, out: torch.Tensor, layer_hooks: LayerHooks
) -> torch.Tensor:
    """Capture and change each head's part of the attention's output, z_h W_O,h, without the bias.

    `project` multiplies by W_O; z is [T, H, D]; out [T, d] is its product with W_O. Returns `out` plus the changes.
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
    """Return z_h W_O,h of these rows and heads, [n, heads, d].

    Each is one row of a product with the whole W_O, with zeros for all other heads. That is more arithmetic than a
    product with W_O,h, but W_O is stored packed, and unpacking it takes longer than a few rows.
    """
    own = z[index_of(rows)]  # [n, H, D]
    size = max(1, TAP_BYTES // (len(heads) * own[0].nbytes))
    pieces: list[torch.Tensor] = []
    for start in range(0, len(own), size):
        piece = own[start : start + size]
        alone = piece.new_zeros(len(piece), len(heads), *piece.shape[1:])  # [m, heads, H, D]
        for region, head in enumerate(heads):
            alone[:, region, head] = piece[:, head]
        alone = alone.flatten(0, 1).flatten(1)  # [m * heads, H D]
        results = project(alone, [row for row in rows[start : start + size] for _ in heads])
        pieces.append(results.view(len(piece), len(heads), -1))
    return torch.cat(pieces)
