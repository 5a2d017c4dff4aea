"""The captures and the interventions of one request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from msgspec import structs

from lightwell.model.hooks.hooks import Hook
from lightwell.model.hooks.point_names import stack_config
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.captures.attention_sink import AttentionSink, check_heads, head_pairs
from lightwell.server.engine.captures.interventions import MAPS, Patch, patches_of
from lightwell.server.engine.captures.point_sinks import (
    ClassifierSink,
    EmbeddingSink,
    HeadScoresSink,
    LensSink,
    PointSink,
    SparseSink,
)
from lightwell.server.engine.captures.sink import Sink
from lightwell.server.engine.captures.window import Window
from lightwell.server.engine.messages.base_task import Stage
from lightwell.server.engine.messages.outputs import Array, TokenLogprobs
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    ClassifyTask,
    EmbedTask,
    HeadScoresTask,
    LensTask,
    PointCapture,
    SparseTask,
)
from lightwell.server.engine.sequence import Sequence


@dataclass(slots=True)
class RequestCaptures:
    """The captures that one request gathers over its steps, and the changes that it makes."""

    sinks: list[Sink] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    row_sink: Callable[[int], AttentionSink] | None = None
    """Makes the sink of the attention row that chooses a token, from the row's position."""

    @classmethod
    def of(cls, seq: Sequence, model: Transformer) -> "RequestCaptures":
        """Make the captures of a request. Raises ValueError for an invalid intervention, or for heads or positions that
        do not exist; MemoryError or RuntimeError without memory.
        """
        rows, row_sink = seq.row_capture, None
        if rows is not None:
            check_heads(rows.pairs, rows.part, model.config)
            pairs = head_pairs(rows, model.config)
            rows = structs.replace(rows, queries=None, keys=None, resize=None)
            row_sink = partial(AttentionSink.of_token, rows, model.config, pairs, seq.num_cross_tokens, seq.is_changed)
        scored = seq.sampling_params is not None and seq.sampling_params.prompt_logprobs is not None
        patches = patches_of(seq.request.interventions, model.config)
        # The request has no rows in deeper layers, which other sequences may need.
        depths = {"encoder": seq.num_encoder_layers_needed, "decoder": seq.num_layers_needed}
        captures = cls(
            sinks=[_SINKS[type(capture)](capture, seq, model) for capture in seq.task.captures()],
            patches=[patch for patch in patches if patch.layer is None or patch.layer < depths[patch.stack]],
            prompt_logprobs=[None] if scored else None,
            row_sink=row_sink,
        )
        return NOTHING if captures.is_empty and row_sink is None else captures

    def after_prompt(self) -> "RequestCaptures":
        """Return the captures of the tokens after the prompt."""
        if not self.patches and self.row_sink is None:
            return NOTHING
        return RequestCaptures(patches=self.patches, row_sink=self.row_sink)

    @property
    def num_bytes(self) -> int:
        return sum(sink.num_bytes for sink in self.sinks)

    @property
    def logit_sinks(self) -> list[PointSink]:
        """Return the sinks that gather the prompt's logits."""
        return [sink for sink in self.sinks if isinstance(sink, PointSink) and sink.stage == "logits"]

    @property
    def problem(self) -> str | None:
        """Return the error if a captured number cannot be represented in the requested type, or None."""
        return next((sink.problem for sink in self.sinks if sink.problem is not None), None)

    @property
    def is_empty(self) -> bool:
        """Return True if there are no captures and no interventions."""
        return not (self.sinks or self.patches) and self.prompt_logprobs is None

    @property
    def is_gathering(self) -> bool:
        """Return whether a step may add to the captures."""
        return bool(self.sinks) or self.prompt_logprobs is not None

    def hooks(self, stage: Stage, window: Window, *, is_new: bool = True) -> list[Hook]:
        """Return the hooks for a window in one stage of a step. is_new: whether captures are needed, too."""
        changes = (patch.change(window) for patch in self.patches if patch.stage == stage)
        found: list[Hook] = [change for change in changes if change is not None]
        if is_new:
            for sink in self.sinks:
                if sink.stage == stage:
                    found += sink.hooks(window)
        return found

    def mark(self) -> Callable[[], None]:
        """Return a function that undoes later captures, for a step that fails."""
        undo = [sink.mark() for sink in self.sinks]
        num_scored = 0 if self.prompt_logprobs is None else len(self.prompt_logprobs)

        def undo_all() -> None:
            for each in undo:
                each()
            if self.prompt_logprobs is not None:
                del self.prompt_logprobs[num_scored:]

        return undo_all

    def change_logits(self, logits: torch.Tensor, position: int) -> None:
        """Apply the interventions on logits [n, vocab] of positions `position`, `position` + 1, ..., in place."""
        for patch in self.patches:
            if patch.stage == "logits":
                patch.apply_at(logits, position)

    def arrays(self) -> dict[str, Array]:
        """Return the answer's tensors, by name."""
        found: dict[str, Array] = {}
        for sink in self.sinks:
            found |= sink.arrays()
        return found


NOTHING = RequestCaptures()
"""The captures of every request that has none, and changes nothing."""


def _attention_sink(capture: AttentionCapture, seq: Sequence, model: Transformer) -> AttentionSink:
    check_heads(capture.pairs, capture.part, model.config)
    length, encoder_length = seq.num_prompt_tokens, len(seq.encoder_token_ids)
    num_queries = encoder_length if capture.part == "encoder" else length
    num_keys = length if capture.part == "decoder" else encoder_length
    return AttentionSink.of_prompt(
        capture, model.config, num_queries=num_queries, num_keys=num_keys, is_changed=seq.is_changed
    )


def _point_sink(capture: PointCapture, seq: Sequence, model: Transformer) -> Sink:
    group, _, name = capture.point.rpartition(".")
    if name not in MAPS:
        length, encoder_length = seq.num_prompt_tokens, len(seq.encoder_token_ids)
        own_length = encoder_length if capture.stack == "encoder" else length
        return PointSink(capture, model.config, own_length, encoder_length)
    assert capture.layer is not None
    num_heads = stack_config(model.config, capture.stack).num_heads
    heads = range(num_heads) if capture.heads is None else capture.heads
    if any(not 0 <= head < num_heads for head in heads):
        raise ValueError(f"{capture.name} has heads 0 to {num_heads - 1}; requested are {list(heads)}")
    rows = AttentionCapture(
        name=capture.name,
        pairs=tuple((capture.layer, head) for head in heads),
        queries=capture.positions,
        keys=capture.keys,
        kind=MAPS[name],
        dtype=capture.dtype,
        part="cross" if group == "cross_attn" else capture.stack,
    )
    return _attention_sink(rows, seq, model)


_SINKS: Mapping[type, Callable[[Any, Sequence, Transformer], Sink]] = {
    AttentionCapture: _attention_sink,
    PointCapture: _point_sink,
    EmbedTask: EmbeddingSink,
    ClassifyTask: ClassifierSink,
    SparseTask: SparseSink,
    LensTask: LensSink,
    HeadScoresTask: HeadScoresSink,
}
"""The sink of each class that a task's `captures` may hold."""
