"""Looking inside while a batch runs: which numbers of a forward pass are handed out, and to whom.

A tap is one sequence's wish in one step. The network calls it with the numbers, still on the device, and forgets them;
what is kept, in which type and order, is the tap's affair. With no taps nothing here runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class AttentionTap:
    """Attention of chosen heads for chosen rows of one span."""

    span: int
    rows: Sequence[int]
    """Batch rows, all of that span."""
    positions: Sequence[int]
    """Their positions in the sequence."""
    heads: Mapping[int, Sequence[int]]
    """Layer -> its heads."""
    kind: str
    """pattern | scores | dots, as in `model.layers.attention.Attention.rows`."""
    deliver: Callable[[int, int, torch.Tensor], None]
    """Called with (layer, i, [heads of that layer, n, keys]) for `rows[i : i + n]`, layers and i ascending; the tensor
    is the callee's to keep.
    """


@dataclass(frozen=True, slots=True)
class ResidualTap:
    """The residual stream of one span: 0 is the embedding, i what block i (counted from 1) leaves, None the final norm
    of the last one.
    """

    layer: int | None
    first_row: int
    last_row: int
    deliver: Callable[[torch.Tensor], None]
    """Called with [rows, d_model], a copy."""


@dataclass(slots=True)
class Taps:
    """All taps of one step."""

    attention: Sequence[AttentionTap] = ()
    residual: Sequence[ResidualTap] = ()
    attention_seconds: float = 0.0
    """Time the network spent on the attention taps."""
    _by_layer: dict[int | None, list[ResidualTap]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for tap in self.residual:
            self._by_layer.setdefault(tap.layer, []).append(tap)

    def residual_at(self, layer: int | None, hidden: torch.Tensor) -> None:
        """Hand `hidden` [rows, d_model], the stream at `layer`, to whoever asked for it."""
        for tap in self._by_layer.get(layer, ()):
            tap.deliver(hidden[tap.first_row : tap.last_row].clone())
