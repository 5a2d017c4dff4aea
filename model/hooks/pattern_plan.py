"""Plan of the patterns that attention on a GPU writes in a step, all in one tensor.

The patterns of one span are [slots, rows, keys], with one slot for each captured layer and head, in this order, and all
captured rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.head_pairs import slots_of
from lightwell.model.hooks.hooks import AttentionTap, Hooks
from lightwell.model.layers.device_batch import PatternRoom

MOST_BYTES = 256 << 20
"""Most bytes of one step's patterns. Larger patterns are recomputed after the step, a piece at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class PatternPlan:
    """The patterns of a step."""

    rooms: Sequence[PatternRoom]
    """The place of each span's patterns."""
    size: int
    """Count of the numbers of all patterns."""
    taps: Sequence[tuple[AttentionTap, PatternRoom]]
    """The taps, each with the place of its span's patterns."""

    @classmethod
    def of(cls, hooks: Hooks, batch: Batch) -> Self | None:
        """Return the plan of a step, or None if a hook needs more than patterns of self-attention."""
        if hooks.reads or hooks.changes or hooks.attention_changes:
            return None
        if any(tap.kind != "pattern" or tap.cross for tap in hooks.attention):
            return None
        by_span: dict[int, list[AttentionTap]] = {}
        for tap in hooks.attention:
            by_span.setdefault(tap.span, []).append(tap)
        rooms, taps, size = [], [], 0
        for span, own in by_span.items():
            slots = _slots(own)
            rows = sorted({row for tap in own for row in tap.rows})
            room = PatternRoom(rows, slots, size, batch.spans[span].num_keys)
            size += (int(slots.max()) + 1) * len(rows) * room.num_keys
            rooms.append(room)
            taps += [(tap, room) for tap in own]
        return None if 4 * size > MOST_BYTES else cls(rooms, size, taps)

    @property
    def dtype(self) -> torch.dtype:
        """Return the number type that all sinks accept."""
        return torch.float16 if {tap.sink.row_dtype for tap, _ in self.taps} == {torch.float16} else torch.float32

    def deliver(self, numbers: Tensor) -> None:
        """Give each tap its patterns. numbers: [size] of `dtype` or float32, on the host."""
        for tap, room in self.taps:
            num_slots = int(room.slots.max()) + 1
            whole = numbers[room.start : room.start + num_slots * len(room.rows) * room.num_keys]
            patterns = whole.view(num_slots, len(room.rows), room.num_keys)
            if list(tap.rows) != list(room.rows):
                patterns = patterns[:, np.searchsorted(room.rows, tap.rows)]
            own = room.slots[tap.pairs.numbers]
            is_in_order = len(own) == num_slots and (own[1:] > own[:-1]).all()
            tap.sink.take_all(tap.pairs, patterns if is_in_order else patterns[own])


def _slots(taps: Sequence[AttentionTap]) -> np.ndarray:
    """Return the slot of each head of each layer, [layers * H] int32, or -1 for a head that no tap reads."""
    if len(taps) == 1:
        return taps[0].pairs.slots
    return slots_of(np.any([tap.pairs.slots >= 0 for tap in taps], axis=0))
