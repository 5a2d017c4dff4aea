"""Takes the attention row that chooses one generated token.

On a card the rows of all layers and heads come at once, and are kept as they come. Everywhere else, and where more is
to be done than to keep them, they gather as a prompt's do.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from msgspec import structs

from model.config import ModelConfig
from model.hooks.asked_pairs import AskedPairs
from model.hooks.hooks import AllPatterns, AttentionTap
from server.engine.captures.attention_sink import TORCH_DTYPES, AttentionSink, as_array, is_surely_reported
from server.engine.captures.window import Window
from server.engine.outputs import Array
from server.engine.request import AttentionCapture


@dataclass(eq=False)
class RowSink:
    """The attention row that chooses one generated token: [pair or layer, key], keys up to the query's own position,
    or all that the encoder read.
    """

    capture: AttentionCapture
    pairs: AskedPairs
    config: ModelConfig
    window: Window
    num_cross_keys: int
    is_changed: bool
    """True if the request may change the numbers of the network."""
    _rows: torch.Tensor | None = field(default=None, init=False)
    """The rows [pair, 1, key] if they came at once."""

    def hook(self) -> AttentionTap:
        """Return what asks for the row in a step."""
        capture = self.capture
        is_plain = capture.reduce is None and not capture.top_k
        if not (is_plain and is_surely_reported(capture, is_changed=self.is_changed)):
            return self._gathering[1]
        return AttentionTap(
            span=self.window.span,
            rows=(self.window.first_row,),
            heads=self.pairs.heads,
            kind=capture.kind,
            deliver=self._deliver,
            cross=capture.part == "cross",
            room=self._room,
            at_once=AllPatterns(self.pairs, self._take, TORCH_DTYPES[capture.dtype]),
        )

    @property
    def problem(self) -> str | None:
        return None if self._rows is not None else self._gathering[0].problem

    def arrays(self) -> dict[str, Array]:
        """Return the row under its name, and with top_k the keys too."""
        rows = self._rows
        found = self._gathering[0].arrays() if rows is None else {self.capture.name: as_array(rows)}
        return {name: Array(array.dtype, (array.shape[0], array.shape[2]), array.data) for name, array in found.items()}

    @cached_property
    def _gathering(self) -> tuple[AttentionSink, AttentionTap]:
        """The sink in which the row gathers layer by layer, and what asks for it; both are made only if needed."""
        position = self.window.start
        sink = AttentionSink(
            structs.replace(self.capture, queries=(position,), keys=None, resize=None),
            self.config,
            num_queries=1,
            num_keys=self.num_cross_keys if self.capture.part == "cross" else position + 1,
            is_changed=self.is_changed,
            pairs=self.pairs,
        )
        [tap] = sink.hooks(self.window)
        return sink, tap

    def _deliver(self, layer: int, i: int, rows: torch.Tensor) -> None:
        self._gathering[1].deliver(layer, i, rows)

    def _room(self, layer: int, num_keys: int) -> torch.Tensor | None:
        tap = self._gathering[1]
        return None if tap.room is None else tap.room(layer, num_keys)

    def _take(self, rows: torch.Tensor) -> None:
        self._rows = rows.to(TORCH_DTYPES[self.capture.dtype])
