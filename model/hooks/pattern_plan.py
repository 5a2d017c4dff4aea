"""Plans the patterns that a card's attention writes in a step, all in one tensor, and hands them out from there.

The patterns of one span are [slots, rows, keys]: a slot for each layer and head that anybody asks for, in this order,
of all rows that anybody asks for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from model.batch import Batch
from model.hooks.asked_pairs import slots_of
from model.hooks.hooks import AttentionTap, Hooks
from model.layers.device_batch import PatternRoom

MOST_BYTES = 256 << 20
"""Most bytes of one step's patterns. More are computed again afterwards, a piece at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class PatternPlan:
    """The patterns of a step."""

    rooms: Sequence[PatternRoom]
    """The place of each span's patterns."""
    size: int
    """Numbers of all patterns together."""
    num_heads: int
    taps: Sequence[tuple[AttentionTap, PatternRoom]]
    """Who asks for them, and where they are."""

    @classmethod
    def of(cls, hooks: Hooks, batch: Batch, num_layers: int, num_heads: int) -> Self | None:
        """Return the plan of a step, or None if hooks ask for anything that attention does not write."""
        if hooks.reads or hooks.changes or hooks.attention_changes:
            return None
        if any(tap.kind != "pattern" or tap.cross for tap in hooks.attention):
            return None
        by_span: dict[int, list[AttentionTap]] = {}
        for tap in hooks.attention:
            by_span.setdefault(tap.span, []).append(tap)
        rooms, taps, size = [], [], 0
        for span, asking in by_span.items():
            slots = _slots(asking, num_layers, num_heads)
            rows = sorted({row for tap in asking for row in tap.rows})
            room = PatternRoom(rows, slots, size, batch.spans[span].num_keys)
            size += (int(slots.max()) + 1) * len(rows) * room.num_keys
            rooms.append(room)
            taps += [(tap, room) for tap in asking]
        return None if 4 * size > MOST_BYTES else cls(rooms, size, num_heads, taps)

    @property
    def dtype(self) -> torch.dtype:
        """Return the type in which all who ask take numbers."""
        kinds = {torch.float32 if tap.at_once is None else tap.at_once.dtype for tap, _ in self.taps}
        return torch.float16 if kinds == {torch.float16} else torch.float32

    def deliver(self, numbers: Tensor) -> None:
        """Hand out the patterns, numbers [size] of `dtype` or float32 on the host."""
        for tap, room in self.taps:
            num_slots = int(room.slots.max()) + 1
            whole = numbers[room.start : room.start + num_slots * len(room.rows) * room.num_keys]
            patterns = whole.view(num_slots, len(room.rows), room.num_keys)
            if list(tap.rows) != list(room.rows):
                patterns = patterns[:, np.searchsorted(room.rows, tap.rows)]
            if tap.at_once is not None:
                own = room.slots[tap.at_once.pairs.numbers]
                is_in_order = len(own) == num_slots and (own[1:] > own[:-1]).all()
                tap.at_once.deliver(patterns if is_in_order else patterns[own])
                continue
            slots = room.slots.reshape(-1, self.num_heads)
            for layer in sorted(tap.heads):
                own = slots[layer, list(tap.heads[layer])]
                if len(own):
                    tap.deliver(layer, 0, patterns[own])


def _slots(asking: Sequence[AttentionTap], num_layers: int, num_heads: int) -> np.ndarray:
    """Return the slot of each head of each layer, [layers * H] int32, or -1 if nobody asks for it."""
    [first, *others] = asking
    if not others and first.at_once is not None:
        return first.at_once.pairs.slots
    is_asked = np.zeros((num_layers, num_heads), bool)
    for tap in asking:
        for layer, heads in tap.heads.items():
            is_asked[layer, list(heads)] = True
    return slots_of(is_asked.ravel())
