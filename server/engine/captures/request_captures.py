"""What one request wants of the network's inside, and what has been found so far.

Joins the sinks that numbers gather in with the changes a request makes; knows nothing of batches or of other requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from model.config import ModelConfig
from model.hooks.hooks import AttentionChange, AttentionTap, Change, Hooks, Read
from model.hooks.point_names import stack_config
from server.engine.captures.attention_sink import AttentionSink
from server.engine.captures.interventions import Patch, patches_of
from server.engine.captures.point_sinks import EmbeddingSink, HeadScoresSink, LensSink, PointSink, lens_arrays
from server.engine.captures.window import Window
from server.engine.outputs import Array, TokenLogprobs
from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    GenerateTask,
    HeadScoresTask,
    LensTask,
    PointCapture,
    Task,
    TraceTask,
)
from server.engine.required_layers import Stage
from server.engine.sequence import Sequence

_MAPS = {"hook_attn_scores": "scores", "hook_pattern": "pattern"}


class Sink(Protocol):
    """Gathers some of an answer."""

    stage: Stage

    @property
    def num_bytes(self) -> int: ...
    def hook(self, window: Window) -> Read | AttentionTap | None: ...
    def arrays(self) -> dict[str, Array]: ...


class Network(Protocol):
    """What sinks need of a model."""

    @property
    def config(self) -> ModelConfig: ...
    def lens(self, stream: torch.Tensor) -> torch.Tensor: ...


@dataclass(slots=True)
class RequestCaptures:
    """What one request gathers over its steps, beside its tokens."""

    sinks: list[Sink] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @classmethod
    def of(cls, seq: Sequence, model: Network) -> "RequestCaptures":
        """Raises ValueError for an intervention that makes no sense, or for heads or positions that are not there;
        MemoryError or RuntimeError without memory.
        """
        _check_heads(seq.task, model.config)
        scored = isinstance(seq.task, GenerateTask) and seq.task.sampling.prompt_logprobs is not None
        patches = patches_of(seq.request.interventions, model.config)
        return cls(
            sinks=_sinks(seq, model),
            patches=[patch for patch in patches if _is_reached(patch, seq)],
            prompt_logprobs=[None] if scored else None,
        )

    @property
    def num_bytes(self) -> int:
        return sum(sink.num_bytes for sink in self.sinks)

    @property
    def logit_sinks(self) -> list[PointSink]:
        """Those that want the prompt's logits."""
        return [sink for sink in self.sinks if isinstance(sink, PointSink) and sink.stage == "logits"]

    @property
    def problem(self) -> str | None:
        """What was found and cannot be told in the type asked for."""
        typed = (sink.problem for sink in self.sinks if isinstance(sink, PointSink | AttentionSink))
        return next((problem for problem in typed if problem is not None), None)

    @property
    def is_empty(self) -> bool:
        """Whether no step need ask it for anything."""
        return not (self.sinks or self.patches) and self.prompt_logprobs is None

    @property
    def is_gathering(self) -> bool:
        """Whether a step may add to what was found."""
        return bool(self.sinks) or self.prompt_logprobs is not None

    def mark(self) -> Callable[[], None]:
        """To be called before a step: what it returns takes back whatever that step has added, should it fail.

        Most sinks write each number where it belongs, however often; only those that add up or append must go back.
        """
        undo = [sink.mark() for sink in self.sinks if isinstance(sink, EmbeddingSink | AttentionSink)]
        num_scored = 0 if self.prompt_logprobs is None else len(self.prompt_logprobs)

        def take_back() -> None:
            for each in undo:
                each()
            if self.prompt_logprobs is not None:
                del self.prompt_logprobs[num_scored:]

        return take_back

    def change_logits(self, logits: torch.Tensor, position: int) -> None:
        """Apply the interventions on logits [n, vocab] of positions `position`, `position` + 1, ..., in place."""
        for patch in self.patches:
            if patch.stage == "logits":
                patch.apply_at(logits, position)

    def arrays(self) -> dict[str, Array]:
        """All that was gathered, by the names of the answer."""
        found: dict[str, Array] = {}
        lens = [sink for sink in self.sinks if isinstance(sink, LensSink)]
        if lens:
            found |= lens_arrays(lens)
        for sink in self.sinks:
            found |= sink.arrays()
        return found


class HooksBuilder:
    """Gathers the wishes of many requests about one stage of a step."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._reads: list[Read] = []
        self._taps: list[AttentionTap] = []
        self._changes: list[Change] = []
        self._attention_changes: list[AttentionChange] = []

    def add(self, found: RequestCaptures, window: Window, *, is_new: bool = True) -> None:
        """The wishes of one request about its window. Without `is_new` its numbers were handed out before, and only its
        changes count.
        """
        for patch in found.patches:
            if patch.stage == self._stage:
                self._add_change(patch.change(window))
        if is_new:
            for sink in found.sinks:
                if sink.stage == self._stage:
                    self.add_hook(sink.hook(window))

    def add_hook(self, hook: Read | AttentionTap | None) -> None:
        if isinstance(hook, Read):
            self._reads.append(hook)
        elif hook is not None:
            self._taps.append(hook)

    def _add_change(self, change: Change | AttentionChange | None) -> None:
        if isinstance(change, Change):
            self._changes.append(change)
        elif change is not None:
            self._attention_changes.append(change)

    def hooks(self) -> Hooks | None:
        """None when there are no wishes: the network then does nothing for them."""
        if not (self._reads or self._taps or self._changes or self._attention_changes):
            return None
        return Hooks(self._reads, self._changes, self._taps, self._attention_changes)


def _is_reached(patch: Patch, seq: Sequence) -> bool:
    """Whether the sequence runs the layer of a patch. In deeper ones, which others may need, it has no rows."""
    depth = seq.num_encoder_layers_needed if patch.stack == "encoder" else seq.num_layers_needed
    return patch.layer is None or patch.layer < depth


def _check_heads(task: Task, config: ModelConfig) -> None:
    """Raise ValueError for a head that the model lacks."""
    capture = task.capture if isinstance(task, AttentionTask) else getattr(task, "attention", None)
    asked = task if isinstance(task, HeadScoresTask) else capture
    if not isinstance(asked, HeadScoresTask | AttentionCapture):
        return
    own = stack_config(config, "encoder" if asked.part == "encoder" else "decoder")
    for layer, head in asked.pairs:
        if not (0 <= layer < own.num_layers and 0 <= head < own.num_heads):
            raise ValueError(
                f"there is no head {head} in layer {layer}; the {asked.part}'s layers are 0 to {own.num_layers - 1}, "
                f"its heads 0 to {own.num_heads - 1}"
            )


def _sinks(seq: Sequence, model: Network) -> list[Sink]:
    task, config = seq.task, model.config
    length, encoder_length = seq.num_prompt_tokens, len(seq.encoder_token_ids)

    def attention(capture: AttentionCapture, name: str) -> AttentionSink:
        num_queries = encoder_length if capture.part == "encoder" else length
        num_keys = length if capture.part == "decoder" else encoder_length
        changed = seq.is_changed
        return AttentionSink(capture, config, num_queries=num_queries, num_keys=num_keys, name=name, is_changed=changed)

    if isinstance(task, AttentionTask):
        return [attention(task.capture, "attention")]
    if isinstance(task, EmbedTask):
        return [EmbeddingSink(task, "encoder" if encoder_length else "decoder")]
    if isinstance(task, TraceTask):
        return [_point_sink(each, config, length, encoder_length, attention) for each in task.points]
    if isinstance(task, LensTask):
        return [LensSink(task, layer, model.lens, config.vocab_size) for layer in task.layers]
    if isinstance(task, HeadScoresTask):
        return [HeadScoresSink(task, seq.encoder_token_ids if task.part == "encoder" else seq.token_ids)]
    if isinstance(task, GenerateTask) and task.attention is not None and task.attention_prompt:
        return [attention(task.attention, "attention.prompt")]
    return []


def _point_sink(
    capture: PointCapture,
    config: ModelConfig,
    length: int,
    encoder_length: int,
    attention: Callable[[AttentionCapture, str], AttentionSink],
) -> Sink:
    group, _, name = capture.point.rpartition(".")
    if name not in _MAPS:
        return PointSink(capture, config, encoder_length if capture.stack == "encoder" else length, encoder_length)
    assert capture.layer is not None
    num_heads = stack_config(config, capture.stack).num_heads
    heads = range(num_heads) if capture.heads is None else capture.heads
    if any(not 0 <= head < num_heads for head in heads):
        raise ValueError(f"{capture.name} has heads 0 to {num_heads - 1}; asked for are {list(heads)}")
    return attention(
        AttentionCapture(
            pairs=tuple((capture.layer, head) for head in heads),
            queries=capture.positions,
            keys=capture.keys,
            kind="pattern" if name == "hook_pattern" else "scores",
            dtype=capture.dtype,
            part="cross" if group == "cross_attn" else capture.stack,
        ),
        capture.name,
    )
