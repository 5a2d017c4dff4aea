"""The parts of a position's residual stream as vectors: the points of a pass that hold them, and all additions other
than the keys' additions through the heads.

The stream is the sum of its additions. A norm of the stream itself (post-norm models), a factor of the stream, and the
other streams of Gemma 3n change the sum: the difference is a part of its own, so that the sum holds for every model.
Further parts are the changes by an intervention, and the rounding errors of the network's sums.

An intervention that scales a point, or sets it to zero, scales the keys' additions through it. One that sets other
values removes them, and its values, or the values that it adds, are a part of their own (`Changes`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lightwell.model.analysis.arrays import Float64
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, points_of, stack_config
from lightwell.model.hooks.points import Stack
from lightwell.server.engine.messages.request import Intervention, Part, PointCapture
from lightwell.server.http.tensor_formats import NumpyArray, as_numpy

Tensors = Mapping[str, NumpyArray]
Added = dict[str, Float64]
"""Vectors [Q, d_model] by their names, in the order in which they are added."""
ATTENTION: dict[Part, tuple[str, str]] = {
    "decoder": ("attn", "hook_attn_out"),
    "encoder": ("attn", "hook_attn_out"),
    "cross": ("cross_attn", "hook_cross_attn_out"),
}
"""The module of each attention, and the point of its output to the stream."""


def point_capture(
    model: ModelConfig, stack: Stack, point: str, layer: int | None = None, **options: Any
) -> PointCapture:
    """Return the capture of one point of a trace; `options` are the other fields of `PointCapture`."""
    name = full_name(model, stack, point, layer)
    return PointCapture(name=name, stack=stack, layer=layer, point=point, **options)


def start_points(model: ModelConfig, stack: Stack) -> list[tuple[str, int | None]]:
    """Return the points that add up to the input of a stack's first block."""
    own = stack_config(model, stack)
    if own.embedding_norm or own.altup is not None:
        return [("hook_resid_pre", 0)]  # normed, or one of several streams: no sum of the embeddings
    has = {point.name for point in points_of(model, stack)}
    return [(name, None) for name in ("hook_embed", "hook_pos_embed", "hook_token_type_embed") if name in has]


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one stack's points in one pass."""

    interventions: tuple[Intervention, ...] = ()
    stack: Stack = "decoder"

    def at(self, point: str, layer: int | None) -> list[Intervention]:
        """Return the changes of a point, in the order in which they are applied."""
        return [
            each for each in self.interventions if (each.stack, each.point, each.layer) == (self.stack, point, layer)
        ]

    def factor(self, point: str, layer: int, queries: tuple[int, ...], head: int | None = None) -> Float64:
        """Return the factor [Q] that the changes leave of a point's numbers."""
        factor = np.ones(len(queries))
        for each in self.at(point, layer):
            if each.heads is None or head in each.heads:
                hit = True if each.positions is None else np.isin(queries, each.positions)
                factor = np.where(hit, _times(each) * factor, factor)
        return factor

    def of_head(self, part: Part, layer: int, head: int, queries: tuple[int, ...]) -> Float64:
        """Return the factor [Q] of the keys' additions through a head."""
        module, _ = ATTENTION[part]
        own = self.factor(f"{module}.hook_z", layer, queries, head)
        return own * self.behind_z(part, layer, head, queries)

    def behind_z(self, part: Part, layer: int, head: int, queries: tuple[int, ...]) -> Float64:
        """Return the factor [Q] of the addition of a head's z."""
        module, _ = ATTENTION[part]
        return self.factor(f"{module}.hook_result", layer, queries, head) * self.of_output(part, layer, queries)

    def of_output(self, part: Part, layer: int, queries: tuple[int, ...]) -> Float64:
        """Return the factor [Q] of an attention's output, including its bias."""
        return self.factor(ATTENTION[part][1], layer, queries)

    def adds_behind_z(self, part: Part, layer: int) -> bool:
        """Return whether an attention adds vectors that do not come from its heads' z."""
        module, output = ATTENTION[part]
        return any(_adds(each) for point in (f"{module}.hook_result", output) for each in self.at(point, layer))

    def adds(self, part: Part, layer: int) -> bool:
        """Return whether an attention adds vectors that come from no key."""
        z = self.at(f"{ATTENTION[part][0]}.hook_z", layer)
        return any(map(_adds, z)) or self.adds_behind_z(part, layer)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Sublayers with their outputs to the stream, one after another or in parallel, and the stream after them."""

    outputs: tuple[str, ...]
    after: str
    change: str | None
    """The name of the part that changes the sum after them, or None."""


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The parts of the residual stream of the part's stack, at Q queries."""

    model: ModelConfig
    part: Part
    changes: Changes = field(default_factory=Changes)

    @property
    def stack(self) -> Stack:
        return "encoder" if self.part == "encoder" else "decoder"

    @property
    def config(self) -> ModelConfig:
        return stack_config(self.model, self.stack)

    def captures(self, queries: tuple[int, ...]) -> list[PointCapture]:
        """Return the captures of a trace."""
        wanted: list[tuple[str, int | None]] = [*start_points(self.model, self.stack), ("hook_resid_pre", 0)]
        for layer in range(self.config.num_layers):
            for stage in self._stages(layer):
                wanted += [(point, layer) for point in (*stage.outputs, stage.after)]
        return [point_capture(self.model, self.stack, *point, positions=queries) for point in dict.fromkeys(wanted)]

    def num_values(self, num_queries: int) -> int:
        """Return an upper bound of the number of values in these captures, and in the additions and states."""
        stages = [stage for layer in range(self.config.num_layers) for stage in self._stages(layer)]
        num_vectors = sum(len(stage.outputs) + 2 for stage in stages) + 3 * self.config.num_layers + 4
        return num_queries * self.config.hidden_size * num_vectors

    def states(self, tensors: Tensors) -> NumpyArray:
        """Return the stream before the first block and after each block: [state, Q, d_model]."""
        states = [tensors[self._name("hook_resid_post", layer)] for layer in range(self.config.num_layers)]
        return np.stack([tensors[self._name("hook_resid_pre", 0)], *states])

    def additions(self, tensors: Tensors, attention: Mapping[int, Added]) -> tuple[Added, float]:
        """Return all additions other than the vectors, and the largest length of the whole rounding error.

        Args:
            tensors: the captures.
            attention: for each layer with vectors, the parts of the attention's output: the sum of the vectors under
                "vectors", which is not returned, and the other parts.
        """
        start: Float64 = tensors[self._name("hook_resid_pre", 0)].astype(np.float64)
        names = [self._name(*point) for point in start_points(self.model, self.stack)]
        found: Added = {name: tensors[name].astype(np.float64) for name in names}
        lost = start - sum(found.values())
        all_lost = np.zeros_like(start)
        if self.changes.at("hook_resid_pre", 0) and lost.any():
            found[self._name("hook_resid_pre.change", 0)], lost = lost, all_lost
        before = start
        for layer in range(self.config.num_layers):
            for stage in self._stages(layer):
                parts: Added = {}
                for point in stage.outputs:
                    own = {self._name(point, layer): tensors[self._name(point, layer)].astype(np.float64)}
                    parts |= attention[layer] if point == self._attention and layer in attention else own
                after = tensors[self._name(stage.after, layer)].astype(np.float64)
                left = after - before - sum(parts.values())
                if stage.change is None:
                    lost = lost + left
                else:
                    parts[self._name(stage.change, layer)] = left
                found |= {name: vectors for name, vectors in parts.items() if name != "vectors"}
                before = after
            found[self._name("rounding", layer)] = lost
            all_lost, lost = all_lost + lost, np.zeros_like(start)
        return found, float(np.linalg.norm(all_lost, axis=-1).max())

    def attention_output(self, tensors: Tensors, layer: int) -> Float64:
        """Return the output of the part's attention in a layer: [Q, d_model]."""
        return tensors[self._name(self._attention, layer)].astype(np.float64)

    def attention_name(self, what: str, layer: int) -> str:
        """Return the name of a part of the attention's output: "blocks.0.attn.b_O"."""
        return self._name(f"{ATTENTION[self.part][0]}.{what}", layer)

    @property
    def _attention(self) -> str:
        return ATTENTION[self.part][1]

    def _stages(self, layer: int) -> list[_Stage]:
        """Return the stages of a block, in order; an intervention on the stream also ends a stage."""
        config = self.config
        change = "other_streams" if config.altup else "stream_scale.change" if config.stream_scales else None
        cross = [("hook_cross_attn_out", "hook_resid_mid_cross", "ln_cross")] if config.cross_attention else []
        own = config.per_layer_size is not None and config.altup is None
        after_mlp = "hook_resid_mid_mlp" if own else "hook_resid_post"
        sublayers = [
            ("hook_attn_out", "hook_resid_mid", "ln1"),
            *cross,
            ("hook_mlp_out", after_mlp, "ln2"),
            *([("hook_per_layer_out", "hook_resid_post", "")] if own else []),
        ]
        is_changed = layer > 0 and self.changes.at("hook_resid_pre", layer)
        stages = [_Stage((), "hook_resid_pre", "hook_resid_pre.change")] if is_changed else []
        waiting: tuple[str, ...] = ()
        for output, stream, norm in sublayers:
            waiting += (output,)
            changed = f"{stream}.change" if self.changes.at(stream, layer) else None
            if config.norm_placement == "post":
                if changed is None:
                    stages.append(_Stage(waiting, stream, f"{norm}.change"))
                else:
                    stages += [_Stage(waiting, f"{norm}.hook_out", f"{norm}.change"), _Stage((), stream, changed)]
            elif stream == "hook_resid_post":  # a change here includes other changes of the sum
                stages.append(_Stage(waiting, stream, changed or change))
            elif changed is not None and config.altup is None:
                stages.append(_Stage(waiting, stream, changed))
            else:
                continue
            waiting = ()
        return stages

    def _name(self, point: str, layer: int | None) -> str:
        return full_name(self.model, self.stack, point, layer)


def _value(change: Intervention) -> npt.NDArray[np.float32]:
    return np.float32(change.value).reshape(1) if change.array is None else as_numpy(change.array)


def _times(change: Intervention) -> float:
    """Return the change's factor of the numbers before it, 1 if it has several."""
    if change.op == "set":
        return 0.0
    value = _value(change)
    return float(value.flat[0]) if change.op == "scale" and value.size == 1 else 1.0


def _adds(change: Intervention) -> bool:
    """Return whether the numbers after the change are more than a multiple of the numbers before it."""
    value = _value(change)
    return value.size > 1 if change.op == "scale" else bool(value.any())
