"""Decomposition of one logit of one pass, or of the difference of two: the points of the pass that hold its parts, and
the contributions of each word, head and layer.

The logit belongs to a word, of a decoder or of an encoder that fills in masked words, or to a label, of a head that
reads one state or the mean of all. `model.analysis.held_head` makes the head linear for the state of the pass; the
logit is then a sum as in `server.dialects.parts.logit_parts`.

Axes: Q queries with the states that the head reads, K keys, D numbers of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from msgspec import structs

from lightwell.model.analysis.arrays import Float64
from lightwell.model.analysis.contributions import opened, value_attributions
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.points import BY_NAME, Stack
from lightwell.server.dialects.parts.logit_parts import LogitParts
from lightwell.server.dialects.parts.stream_parts import ATTENTION, Tensors, start_points
from lightwell.server.engine.messages.request import ClassifyTask, Part, PointCapture, Task, TraceTask, WeightsTask
from lightwell.server.generation.prompts.prompt import Prompt

HeadKind = Literal["words", "labels"]


@dataclass(frozen=True, slots=True)
class ExplainedLogit:
    """A logit of one pass, or its difference from another one, to be explained."""

    prompt: Prompt
    head: HeadKind
    target: int
    """The token, or the number of the label."""
    versus: int | None = None
    """The token or label of the subtracted logit, or None."""
    position: int | None = None
    """The position of a word's prediction; None is the last position. Unused for labels."""
    described: tuple[Mapping[str, Any], Mapping[str, Any] | None] = ({}, None)
    """The target and the compared token or label, in the form of answers."""

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.target,) if self.versus is None else (self.target, self.versus)


@dataclass(slots=True)
class Sums:
    """The parts of a logit. All but the words sum to it; the words sum to the heads."""

    embedding: float
    heads: dict[tuple[Part, int, int], float] = field(default_factory=dict)
    """By attention, layer and head."""
    recurrent: dict[int, float] = field(default_factory=dict)
    """By layer, of mixers in the place of attention."""
    mlps: dict[int, float] = field(default_factory=dict)
    """By layer, with all additions of a block after its attentions."""
    biases: float = 0.0
    words: dict[Part, Float64] = field(default_factory=dict)
    """By attention: of each key [K], through all layers and heads."""

    @property
    def total(self) -> float:
        others = (*self.heads.values(), *self.recurrent.values(), *self.mlps.values())
        return self.embedding + sum(others) + self.biases


@dataclass(frozen=True, slots=True)
class ExplainedPass:
    """A pass with a logit to decompose."""

    model: ModelConfig
    asked: ExplainedLogit
    dtype: Literal["float32", "float64"]
    """The dtype of its captures: the network's, or a wider one."""
    traced: tuple[int, ...] = ()
    """The traced positions, if several words are explained together; () for the head's own."""

    @property
    def key(self) -> tuple[Prompt, HeadKind]:
        """Return the key of the pass, which several logits may share."""
        return self.asked.prompt, self.asked.head

    @property
    def stack(self) -> Stack:
        return "encoder" if self.model.kind == "encoder" else "decoder"

    @property
    def queries(self) -> tuple[int, ...]:
        """Return the positions of the states that the head reads."""
        ids, asked = self.asked.prompt.ids, self.asked
        if asked.head == "words":
            return (len(ids) - 1 if asked.position is None else asked.position,)
        assert self.model.classifier is not None
        num_read = len(self.model.labelled_ids(ids))
        every = {"cls": range(1), "last": range(num_read - 1, num_read), "mean": range(num_read)}
        return tuple(every[self.model.classifier.state])

    @property
    def parts(self) -> LogitParts:
        return LogitParts(self.model, queries=self.queries, stack=self.stack, dtype=self.dtype)

    @property
    def _traced_parts(self) -> LogitParts:
        return replace(self.parts, queries=self.traced or self.queries)

    # ---- tasks of the engine

    def trace(self) -> TraceTask:
        """Return the task that captures the parts and the state."""
        parts = self._traced_parts
        points = [*parts.captures(), self._state()]
        for part in parts.parts:
            for layer in self.model.attention_layers:
                points += self._attention(part, layer)
        return TraceTask(points=tuple({point.name: point for point in points}.values()))

    @property
    def trace_bytes(self) -> int:
        """Return an upper bound of the bytes of these captures."""
        config, num_queries = self.model, len(self.traced or self.queries)
        numbers = self._traced_parts.num_captured() + num_queries * config.hidden_size
        for part in self.parts.parts:
            num_keys = self.num_keys(part)
            for layer in config.attention_layers:
                own = config.at(layer)
                numbers += num_keys * (num_queries * own.num_heads + own.num_kv_heads * own.head_dim)
        return numbers * np.dtype(self.dtype).itemsize

    def measurement(self) -> Task:
        """Return the task that captures only the logits."""
        return ClassifyTask() if self.asked.head == "labels" else TraceTask(points=(self._logits(),))

    @property
    def measurement_bytes(self) -> int:
        head = self.model.classifier if self.asked.head == "labels" else None
        return 8 * (2 if head is None else head.num_labels)

    def questions(self, trace: Tensors) -> dict[Part, WeightsTask]:
        """Return the questions about the weights for the state in a trace."""
        return self.questions_of([self._state_of(trace)], self.asked.targets)

    def questions_of(self, states: Sequence[Float64], targets: tuple[int, ...]) -> dict[Part, WeightsTask]:
        """Return the questions for states [d], each with its one or two targets."""
        options = {
            "pairs": self.parts.pairs,
            "head": self.asked.head,
            "num_states": len(states),
            "states": tuple(np.concatenate(states).tolist()),
            "targets": targets,
        }
        return {
            part: WeightsTask(question="held_readout", options={"part": part, **options}) for part in self.parts.parts
        }

    @property
    def question_bytes(self) -> int:
        """Return an upper bound of the bytes of each answer."""
        config, parts = self.model, self.parts
        sums = config.num_layers * 3 * (config.hidden_size + 1)
        return 8 * (len(parts.pairs) * config.largest_head_dim + config.hidden_size + sums + 2 * config.num_layers + 4)

    def num_keys(self, part: Part) -> int:
        return len(self.asked.prompt.encoder_ids if part == "cross" else self.asked.prompt.ids)

    # ---- results

    def own(self, trace: Tensors) -> Tensors:
        """Return this logit's rows of a trace of several positions."""
        if not self.traced:
            return trace
        place = self.traced.index(self.queries[0])
        row, found = slice(place, place + 1), {}
        for point in self.trace().points:
            value = trace[point.name]
            has_heads_first = BY_NAME[point.point].axes[0] == "head"
            rows = value[:, row] if has_heads_first else value[row]
            found[point.name] = value if point.positions is None else rows
        return found

    def _state_of(self, trace: Tensors) -> Float64:
        """Return the state that the head reads [d]."""
        mean: Float64 = self.states(trace).mean(0)
        return mean

    def states(self, trace: Tensors) -> Float64:
        """Return the states in a trace [Q, d]."""
        return trace[self._state().name].astype(np.float64)

    def value(self, measured: Tensors) -> float:
        """Return the logit, or the difference, from a measurement."""
        if self.asked.head == "labels":
            logits = measured["logits"][list(self.asked.targets)]
        else:
            logits = measured[self._logits().name][0]
        wide = logits.astype(np.float64)
        return float(wide[0] if len(wide) == 1 else wide[0] - wide[1])

    def sums(self, trace: Tensors, readouts: Mapping[str, Tensors]) -> Sums:
        """Return the parts, from the trace and the answers to the questions."""
        parts, config = self.parts, self.model
        names, numbers = parts.components(trace, readouts)
        left = dict(zip(names, numbers[0].mean(0).tolist(), strict=True))  # the head reads the mean of several queries
        found = Sums(sum(left.pop(parts.name(*point)) for point in start_points(self.model, self.stack)))
        for layer in range(config.num_layers):
            if config.has_attention(layer):
                for part in parts.parts:
                    for head in range(config.num_heads):
                        name = parts.name(f"{ATTENTION[part][0]}.head.{head}", layer)
                        found.heads[part, layer, head] = left.pop(name)
            else:
                found.recurrent[layer] = left.pop(parts.name("hook_attn_out", layer))
            found.mlps[layer] = sum(left.pop(parts.name(point, layer)) for point in parts.behind_attention)
        found.biases = sum(left.values())
        found.words = {part: self.words(part, trace, readouts[part]).mean(0) for part in parts.parts}
        return found

    def words(self, part: Part, trace: Tensors, weights: Tensors) -> Float64:
        """Return the contribution of each key through all layers and heads of an attention, to the logit of each query
        in the trace [Q, K]. `weights` are the answer to the question about one state, or about each query's.
        """
        config, parts, module = self.model, self.parts, ATTENTION[part][0]
        words = np.zeros((1, self.num_keys(part)))
        places = {pair: place for place, pair in enumerate(parts.pairs)}
        for layer in config.attention_layers:
            patterns, values = (trace[point.name] for point in self._attention(part, layer))
            divisor = parts.divisor(trace, part, layer)
            is_gated = config.attention_gate and part != "cross"
            gates = opened(trace[parts.name(f"{module}.hook_gate", layer)]) if is_gated else None
            own = config.at(layer)
            for head in range(config.num_heads):
                v = values[:, head // (config.num_heads // own.num_kv_heads)]
                readout = weights["readout"][places[layer, head], : own.head_dim]
                share = None if gates is None else gates[:, head]
                words = words + value_attributions(patterns[head], v, readout, divisor, share)
        return words

    # ---- the points

    def _attention(self, part: Part, layer: int) -> tuple[PointCapture, PointCapture]:
        module = ATTENTION[part][0]
        parts = self._traced_parts
        return (
            parts.capture(f"{module}.hook_pattern", layer, parts.queries),
            parts.capture(f"{module}.hook_v", layer, None),
        )

    def _state(self) -> PointCapture:
        parts = self._traced_parts
        if self.model.final_norm:
            return parts.capture("ln_final.hook_out", None, parts.queries)
        return parts.capture("hook_resid_post", self.model.num_layers - 1, parts.queries)

    def _logits(self) -> PointCapture:
        return structs.replace(self.parts.capture("logits", None, self.queries), units=self.asked.targets)
