"""Computes the parts of a position's residual stream as vectors: which points of a pass hold them, and what is added
beside what the keys add through the heads.

Where nothing comes between, the stream is the sum of what is added to it. A norm of the stream itself (post-norm
models), a number that it is multiplied by, and the other streams of Gemma 3n change what was added up so far: the
difference that each makes is a part of its own, so that the sum holds for every model. So does what is lost where the
network rounds its sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.config import ModelConfig
from model.hooks.point_names import full_name, points_of, stack_config
from model.hooks.points import Stack
from server.engine.request import Part, PointCapture
from server.http.tensor_formats import NumpyArray

Float64 = npt.NDArray[np.float64]
Tensors = Mapping[str, NumpyArray]
Added = dict[str, Float64]
"""Vectors [Q, d_model] by their names, in the order in which they are added."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """Sublayers whose outputs are added to the stream, one after another or in parallel, and the stream after them."""

    outputs: tuple[str, ...]
    after: str
    change: str | None
    """What happens to the sum then, by the name of its part; None if nothing does."""


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The parts of the residual stream of the stack that `part` writes to, at Q queries."""

    model: ModelConfig
    part: Part

    @property
    def stack(self) -> Stack:
        return "encoder" if self.part == "encoder" else "decoder"

    @property
    def config(self) -> ModelConfig:
        return stack_config(self.model, self.stack)

    def captures(self, queries: tuple[int, ...]) -> list[PointCapture]:
        """Return what a trace must capture."""
        wanted: list[tuple[str, int | None]] = [*self._start(), ("hook_resid_pre", 0)]
        for layer in range(self.config.num_layers):
            for stage in self._stages():
                wanted += [(point, layer) for point in (*stage.outputs, stage.after)]
        return [
            PointCapture(name=self._name(point, layer), stack=self.stack, layer=layer, point=point, positions=queries)
            for point, layer in dict.fromkeys(wanted)
        ]

    def num_values(self, num_queries: int) -> int:
        """Return at least how many numbers those captures, and the additions and states, each have."""
        per_layer = sum(len(stage.outputs) + 2 for stage in self._stages()) + 2
        return num_queries * self.config.hidden_size * (self.config.num_layers * per_layer + 4)

    def states(self, tensors: Tensors) -> NumpyArray:
        """Return the stream that enters the first block and that which leaves each: [state, Q, d_model]."""
        last = self._stages()[-1].after
        states = [tensors[self._name(last, layer)] for layer in range(self.config.num_layers)]
        return np.stack([tensors[self._name("hook_resid_pre", 0)], *states])

    def additions(self, tensors: Tensors, attention: Mapping[int, Added]) -> tuple[Added, float]:
        """Return all that is added beside the vectors, and the largest length of what rounding adds in all.

        Args:
            tensors: what was captured.
            attention: of each layer whose vectors are asked for what stands for the attention's output: the sum of
                the vectors under "vectors", which is not returned, and what they lack of it.
        """
        start: Float64 = tensors[self._name("hook_resid_pre", 0)].astype(np.float64)
        found: Added = {self._name(*point): tensors[self._name(*point)].astype(np.float64) for point in self._start()}
        lost = start - sum(found.values())
        all_lost = np.zeros_like(start)
        before = start
        for layer in range(self.config.num_layers):
            for stage in self._stages():
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
        """Return what the part's attention adds in a layer: [Q, d_model]."""
        return tensors[self._name(self._attention, layer)].astype(np.float64)

    def attention_name(self, what: str, layer: int) -> str:
        """Return the name of a part of what the attention adds: "blocks.0.attn.b_O"."""
        return self._name(f"{'cross_attn' if self.part == 'cross' else 'attn'}.{what}", layer)

    @property
    def _attention(self) -> str:
        return "hook_cross_attn_out" if self.part == "cross" else "hook_attn_out"

    def _start(self) -> list[tuple[str, int | None]]:
        """Return the points whose sum enters the first block."""
        if self.config.embedding_norm or self.config.altup is not None:
            return [("hook_resid_pre", 0)]  # normed, or one of several streams
        has = {point.name for point in points_of(self.model, self.stack)}
        return [(name, None) for name in ("hook_embed", "hook_pos_embed", "hook_token_type_embed") if name in has]

    def _stages(self) -> list[_Stage]:
        """Return the stages of a block, in order."""
        config = self.config
        cross = ("hook_cross_attn_out",) if config.cross_attention else ()
        if config.altup is not None:
            return [_Stage(("hook_attn_out", "hook_mlp_out"), "hook_resid_post", "other_streams")]
        if config.norm_placement == "post":
            stages = [_Stage(("hook_attn_out",), "hook_resid_mid", "ln1.change")]
            stages += [_Stage(cross, "hook_resid_mid_cross", "ln_cross.change")] if cross else []
            return [*stages, _Stage(("hook_mlp_out",), "hook_resid_post", "ln2.change")]
        own = ("hook_per_layer_out",) if config.per_layer_size is not None else ()
        change = "stream_scale.change" if config.stream_scales else None
        return [_Stage(("hook_attn_out", *cross, "hook_mlp_out", *own), "hook_resid_post", change)]

    def _name(self, point: str, layer: int | None) -> str:
        return full_name(self.model, self.stack, point, layer)
