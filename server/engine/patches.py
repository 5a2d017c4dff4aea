"""Interventions as the network takes them: which rows of this step they change, and how.

Knows positions, points and arithmetic; where in the network a change stands is `model.capture`'s and the network's
affair. A change writes its own rows and no others.
"""

from collections.abc import Callable
from typing import get_args

import numpy as np
import torch

from model.capture import AttentionChange, Change
from model.config import ModelConfig
from model.point_names import sizes
from model.points import BY_NAME, is_cross
from model.row_search import argmax
from server.engine.needs import Stage, stage_of
from server.engine.outputs import Array
from server.engine.request import Intervention, Op, Part
from server.engine.window import Positions, Window, seen_keys

_MAPS = {"hook_attn_scores": "scores", "hook_pattern": "pattern"}


class Patch:
    """One intervention of one request, over all of its steps.

    Raises ValueError for an operation or a head that its point does not have, or a value that does not fit it.
    """

    def __init__(self, wish: Intervention, config: ModelConfig, num_heads: int) -> None:
        if wish.op not in get_args(Op) or (wish.op == "temperature" and not wish.point.endswith("hook_attn_scores")):
            raise ValueError(f"intervention on {wish.point}: no operation {wish.op!r} there")
        self.stage: Stage = stage_of(wish.stack, wish.point)
        self._wish = wish
        self._config = config
        self._kind = _MAPS.get(wish.point.rpartition(".")[2])
        self._part: Part = "cross" if is_cross(BY_NAME[wish.point]) else wish.stack
        self._heads = tuple(range(num_heads)) if wish.heads is None else wish.heads
        if any(not 0 <= head < num_heads for head in self._heads):
            raise ValueError(f"intervention on {wish.point}: heads are {self._heads}; it has 0 to {num_heads - 1}")
        self._value = _as_tensor(wish.value)
        num_axes = len(BY_NAME[wish.point].axes)
        along = num_axes - 2 if self._kind else 0  # the axis of positions: [head, query, key], or the first
        place = along - num_axes + self._value.dim()
        self._rows_axis = place if place >= 0 and self._value.shape[place] > 1 else None
        """Of the value, where it differs by position; None where one serves all."""
        self._positions: Positions | None = None
        if wish.positions is not None:
            self._positions = np.array(wish.positions, np.int64)
        elif self._rows_axis is not None:
            self._positions = np.arange(self._value.shape[self._rows_axis])
        self._check_shape()

    def _check_shape(self) -> None:
        """A value that does not fit must not fail the step that it is first used in: others run in it too."""
        wish, value = self._wish, self._value
        shape = list(sizes(self._config, wish.stack, BY_NAME[wish.point], 1, 1))
        if self._kind is not None:
            shape[0], shape[2] = len(self._heads), value.shape[-1] if value.dim() else 1
        elif wish.heads is not None:
            shape[1] = len(wish.heads)
        shape[1 if self._kind else 0] = 1 if self._positions is None else len(self._positions)
        fits = value.dim() <= len(shape) and all(
            has in (1, wanted) for has, wanted in zip(reversed(value.shape), reversed(shape), strict=False)
        )
        if not fits:
            raise ValueError(f"intervention on {wish.point}: the value's shape is {list(value.shape)}, not {shape}")

    def changes(self, window: Window) -> list[Change] | list[AttentionChange]:
        """What the network is to change in this window; [] when none of its rows is meant."""
        everything = np.arange(window.start, window.start + window.num_rows)
        positions = everything if self._positions is None else self._positions
        places = window.find(positions, again=True)
        if not len(places):
            return []
        positions, first = np.unique(positions[places], return_index=True)
        places, rows = places[first], window.rows(positions)
        if self._kind is None:
            apply = self._operation(self._of_rows(places))
            return [Change(self._wish.point, self._wish.layer, rows, self._wish.heads, apply)]
        return [self._map_change(window, rows, positions, places)]

    def apply_at(self, x: torch.Tensor, position: int) -> None:
        """Change x [n, ...] of positions `position`, `position` + 1, ... in place: for logits, which no batch row
        holds.
        """
        for change in self.changes(Window(0, 0, position, len(x))):
            assert isinstance(change, Change)
            x[change.rows] = change.apply(x[change.rows]).to(x.dtype)

    def _of_rows(self, places: Positions) -> torch.Tensor:
        if self._rows_axis is None:
            return self._value
        return self._value.index_select(self._rows_axis, torch.from_numpy(places))

    def _operation(self, value: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        op = self._wish.op

        def apply(x: torch.Tensor) -> torch.Tensor:
            wide = x if x.dtype == torch.float64 else x.float()
            with_value = value.to(wide)
            if op == "set":
                return with_value.expand_as(wide)
            return wide * with_value if op == "scale" else wide + with_value

        return apply

    def _map_change(self, window: Window, rows: list[int], positions: Positions, places: Positions) -> AttentionChange:
        layer, kind = self._wish.layer, self._kind
        assert layer is not None
        assert kind is not None

        def apply(x: torch.Tensor, some: slice) -> torch.Tensor:
            value = self._of_rows(places[some])
            changed = _tempered(x, value.to(x)) if self._wish.op == "temperature" else self._combined(x, value)
            keys = torch.arange(x.shape[-1], device=x.device)
            seen = seen_keys(self._config, self._part, layer, positions[some], keys)
            return torch.where(seen, changed, float("-inf") if kind == "scores" else 0.0).to(x.dtype)

        return AttentionChange(
            span=window.span,
            layer=layer,
            rows=rows,
            positions=positions.tolist(),
            heads=self._heads,
            kind=kind,
            apply=apply,
            cross=self._part == "cross",
        )

    def _combined(self, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Of maps [head, query, key]: keys beyond the value's (of later chunks and generated tokens) stay."""
        num_keys = value.shape[-1] if value.dim() and value.shape[-1] > 1 else x.shape[-1]
        num_keys = min(num_keys, x.shape[-1])
        changed = x.clone()
        value = value[..., :num_keys] if value.dim() else value
        changed[..., :num_keys] = self._operation(value)(x[..., :num_keys])
        return changed


def _tempered(scores: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Scores [head, query, key] divided by the temperature; 0 leaves the first of the largest alone.

    So does a temperature so near to 0 that a quotient overflows: infinite scores have no softmax.
    """
    tempered = scores / temperature
    overflows = (scores.isfinite() & ~tempered.isfinite()).any(-1, keepdim=True)
    if not overflows.any():
        return tempered
    first = argmax(scores.flatten(0, 1)).view(*scores.shape[:2], 1)
    greedy = torch.full_like(scores, float("-inf")).scatter(-1, first, 0.0)
    return torch.where(overflows, greedy, tempered)


def _as_tensor(value: float | Array) -> torch.Tensor:
    if isinstance(value, Array):
        return torch.from_numpy(np.frombuffer(value.data, value.dtype).reshape(value.shape).copy())
    return torch.tensor(value)
