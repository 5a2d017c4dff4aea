"""Interventions: the changes of rows in each step.

A `Patch` holds all changes of one request at one point of one layer. It is prepared when the request begins, so that a
step takes only a few array operations for each intervention. A change writes only its own rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import numpy as np
import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.hooks import AttentionChange, Change, corner, index_of
from lightwell.model.hooks.point_names import sizes
from lightwell.model.hooks.points import BY_NAME, Stack, is_cross
from lightwell.model.sampling.row_search import argmax
from lightwell.server.engine.captures.window import Positions, Window, seen_keys
from lightwell.server.engine.messages.base_task import Stage, stage_of
from lightwell.server.engine.messages.request import AttentionKind, Intervention, Op, Part

MAPS: Mapping[str, AttentionKind] = {"hook_attn_scores": "scores", "hook_pattern": "pattern"}
"""The kind of attention tap for each point that is a map: one number for each query and key."""


def patches_of(interventions: Iterable[Intervention], config: ModelConfig) -> list["Patch"]:
    """Return the interventions of one request grouped by point, in their order.

    Raises ValueError for an operation or a head that its point does not have, or a value of a wrong shape.
    """
    edits: dict[tuple[Stack, int | None, str], list[_Edit]] = {}
    for intervention in interventions:
        edits.setdefault((intervention.stack, intervention.layer, intervention.point), []).append(
            _Edit(intervention, config)
        )
    return [Patch(*place, own, config) for place, own in edits.items()]


class Patch:
    """All interventions of one request at one point of one layer, over all of its steps."""

    def __init__(
        self, stack: Stack, layer: int | None, point: str, edits: Sequence["_Edit"], config: ModelConfig
    ) -> None:
        self.stack: Stack = stack
        self.layer = layer
        self.stage: Stage = stage_of(stack, point)
        self._point = point
        self._config = config
        self._kind = MAPS.get(point.rpartition(".")[2])
        self._part: Part = "cross" if is_cross(BY_NAME[point]) else stack
        self._heads: tuple[int, ...] | None = None
        """The heads of all edits together, ascending; None is all, or a point that has none."""
        if all(edit.heads is not None for edit in edits):
            self._heads = tuple(sorted({head for edit in edits for head in edit.heads or ()}))
        for edit in edits:
            edit.place_heads(self._heads)
        self._edits = edits

    def change(self, window: Window) -> Change | AttentionChange | None:
        """Return the change of this window's rows, or None if it has none of them."""
        end = window.start + window.num_rows
        edits = [edit for edit in self._edits if edit.reaches(window.start, end)]
        if not edits:
            return None
        if any(edit.positions is None for edit in edits):
            positions = np.arange(window.start, end)
        else:
            meant = np.unique(np.concatenate([edit.positions for edit in edits if edit.positions is not None]))
            positions = meant[window.find(meant, again=True)]
        rows = window.rows(positions)
        if self._kind is not None:
            return self._map_change(self._kind, edits, window.span, rows, positions)

        def apply(x: torch.Tensor) -> torch.Tensor:
            changed = x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
            for edit in edits:
                edit.write(changed, positions)
            return changed

        return Change(self._point, self.layer, rows, self._heads, apply)

    def _map_change(
        self, kind: str, edits: Sequence["_Edit"], span: int, rows: Sequence[int], positions: Positions
    ) -> AttentionChange:
        layer, heads = self.layer, self._heads
        assert layer is not None
        assert heads is not None

        def apply(x: torch.Tensor, some: slice) -> torch.Tensor:
            own, changed = positions[some], x.clone()
            keys = torch.arange(x.shape[-1], device=x.device)
            unseen = ~seen_keys(self._config, self._part, layer, own, keys)
            mask = unseen if unseen.any() else None
            for edit in edits:
                edit.write(changed, own)
                if mask is not None:
                    changed.masked_fill_(mask, float("-inf") if kind == "scores" else 0.0)
            return changed

        return AttentionChange(
            span=span,
            layer=layer,
            rows=rows,
            heads=heads,
            kind=kind,
            apply=apply,
            cross=self._part == "cross",
        )

    def apply_at(self, x: torch.Tensor, position: int) -> None:
        """Change x [n, ...] of positions `position`, `position` + 1, ... in place, as for logits, not in batch rows."""
        change = self.change(Window(0, 0, position, len(x)))
        if isinstance(change, Change):
            x[list(change.rows)] = change.apply(x[list(change.rows)]).to(x.dtype)


class _Edit:
    """One intervention. Its numbers have the point's axes: [row, head, ...], or [head, row, key] of maps."""

    def __init__(self, intervention: Intervention, config: ModelConfig) -> None:
        if intervention.op not in get_args(Op) or (
            intervention.op == "temperature" and not intervention.point.endswith("hook_attn_scores")
        ):
            raise ValueError(f"intervention on {intervention.point}: no operation {intervention.op!r} there")
        self._op = intervention.op
        self._is_map = intervention.point.rpartition(".")[2] in MAPS
        self._value = _value_of(intervention)
        self.heads = _heads(intervention, config)
        num_axes = len(BY_NAME[intervention.point].axes)
        place = (num_axes - 2 if self._is_map else 0) - num_axes + self._value.dim()
        self._rows_axis = place if place >= 0 and self._value.shape[place] > 1 else None
        """The value's axis of rows, or None for one value for all rows."""
        asked = intervention.positions
        if asked is None and self._rows_axis is not None:
            asked = tuple(range(self._value.shape[self._rows_axis]))
        _check_shape(intervention, config, self._value, self.heads, None if asked is None else len(asked))
        self.positions: Positions | None = None
        """The positions, ascending; None is all, including generated tokens."""
        if asked is not None:
            self.positions, self._places = np.unique(np.array(asked, np.int64), return_index=True)
            self._first, self._last = min(asked), max(asked)
        self._at_heads: slice | torch.Tensor = slice(None)

    def place_heads(self, among: Sequence[int] | None) -> None:
        """Set the heads of the numbers of `write`; None is all."""
        if self.heads is not None:
            self._at_heads = index_of(self.heads if among is None else [among.index(head) for head in self.heads])

    def reaches(self, start: int, end: int) -> bool:
        """Return whether it changes any of the positions start .. end - 1."""
        if self.positions is None:
            return True
        if not (self._first < end and start <= self._last):  # fast for the many steps after the last position
            return False
        first, last = np.searchsorted(self.positions, (start, end))
        return bool(first < last)

    def write(self, x: torch.Tensor, positions: Positions) -> None:
        """Change x, the numbers of these positions (ascending), in place at the edit's positions and heads."""
        rows: slice | torch.Tensor = slice(None)
        value = self._value = self._value.to(x)  # moved at most once
        if self.positions is not None:
            first, last = np.searchsorted(self.positions, (positions[0], positions[-1] + 1))
            if first == last:
                return
            rows = index_of(np.searchsorted(positions, self.positions[first:last]).tolist())
            if self._rows_axis is not None:
                places = torch.from_numpy(self._places[first:last]).to(value.device)
                value = value.index_select(self._rows_axis, places)
        where = corner(self._at_heads, rows) if self._is_map else corner(rows, self._at_heads)
        x[where] = self._changed(x[where], value)

    def _changed(self, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self._op == "temperature":
            return _tempered(x, value)
        if self._is_map and value.dim() and 1 < value.shape[-1] != x.shape[-1]:
            # Keys after the value's (of later chunks and generated tokens) stay unchanged.
            num_keys = min(value.shape[-1], x.shape[-1])
            changed = x.clone()
            changed[..., :num_keys] = self._changed(x[..., :num_keys], value[..., :num_keys])
            return changed
        if self._op == "set":
            return value.expand_as(x)
        return x * value if self._op == "scale" else x + value


def _heads(intervention: Intervention, config: ModelConfig) -> tuple[int, ...] | None:
    """Return the heads of an intervention; None is all, or a point without heads. Of maps, all heads are listed. Raises
    ValueError for heads that the point does not have.
    """
    point = BY_NAME[intervention.point]
    lengths = dict(zip(point.axes, sizes(config, intervention.stack, point, 1, 1, intervention.layer), strict=True))
    num_heads = lengths.get("head") or lengths.get("kv_head", 0)
    if any(not 0 <= head < num_heads for head in intervention.heads or ()):
        has = f"it has 0 to {num_heads - 1}" if num_heads else "it has none"
        raise ValueError(f"intervention on {intervention.point}: heads are {intervention.heads}; {has}")
    is_map = "key" in point.axes
    return tuple(range(num_heads)) if intervention.heads is None and is_map else intervention.heads


def _check_shape(
    intervention: Intervention,
    config: ModelConfig,
    value: torch.Tensor,
    heads: Sequence[int] | None,
    num_rows: int | None,
) -> None:
    """Raise ValueError for a value of a wrong shape, which would otherwise fail a step with other requests.

    num_rows: the number of positions, each of which may have its own value; None is one value for all positions.
    """
    shape = list(sizes(config, intervention.stack, BY_NAME[intervention.point], 1, 1, intervention.layer))
    is_map = "key" in BY_NAME[intervention.point].axes
    if is_map:
        shape[2] = value.shape[-1] if value.dim() else 1
    if heads is not None:
        shape[0 if is_map else 1] = len(heads)
    shape[1 if is_map else 0] = num_rows or 1
    fits = value.dim() <= len(shape) and all(
        has in (1, wanted) for has, wanted in zip(reversed(value.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"intervention on {intervention.point}: the value's shape is {list(value.shape)}, not {shape}")


def _tempered(scores: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return scores [head, query, key] divided by the temperature. With 0, or if a quotient overflows, the first of the
    largest scores gets all weight: infinite scores have no softmax.
    """
    tempered = scores / temperature
    if (temperature >= 1).all():
        return tempered
    overflows = (scores.isfinite() & ~tempered.isfinite()).any(-1, keepdim=True)
    if not overflows.any():
        return tempered
    first = argmax(scores.flatten(0, 1)).view(*scores.shape[:2], 1)
    greedy = torch.full_like(scores, float("-inf")).scatter(-1, first, 0.0)
    return torch.where(overflows, greedy, tempered)


def _value_of(intervention: Intervention) -> torch.Tensor:
    array = intervention.array
    if array is None:
        return torch.tensor(intervention.value)
    return torch.from_numpy(np.frombuffer(array.data, array.dtype).reshape(array.shape).copy())
