"""The parts of a logit: the points of a pass that hold them, and their contributions (direct logit attribution).

The residual stream is a sum: embedding, every head, b_O, every mlp. With constant scales of the norms, the logit is a
sum over the same parts and a bias; if a norm follows each sum, each norm's bias is a part too
(`model.analysis.contributions`), and so is the addition of an intervention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np

from lightwell.model.analysis.arrays import Float64, Floats
from lightwell.model.analysis.contributions import head_attributions, opened, stream_attributions
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, stack_config
from lightwell.model.hooks.points import Stack
from lightwell.server.dialects.parts.stream_parts import ATTENTION, Changes, Tensors, point_capture, start_points
from lightwell.server.engine.messages.request import Part, PointCapture
from lightwell.server.http.errors import BadRequest


def check_attributable(config: ModelConfig, part: Part) -> None:
    """Raise BadRequest if this part of the model has no logits that are a sum over its stream."""
    if config.altup is not None:
        raise BadRequest(
            f"target: {config.architecture} computes its logits from {config.altup.num_streams} residual streams, so "
            "they are not a sum over the first stream; null is accepted (the answer then has only norms).",
            param="target",
        )
    if not config.has_head or part == "encoder":
        raise BadRequest(
            "target: the logits of an encoder are not a sum over its residual stream; null is accepted.",
            param="target",
        )


def output_norm(config: ModelConfig, part: Part) -> str | None:
    """Return the norm of the attention's output before the sum, or None."""
    if part == "cross":
        return None
    return {"sandwich": "ln1_post", "output": "ln1"}.get(config.norm_placement)


@dataclass(frozen=True, slots=True)
class LogitParts:
    """The parts of logits at the end of a stack. There are Q queries, T targets, C components."""

    model: ModelConfig
    changes: Changes = field(default_factory=Changes)
    queries: tuple[int, ...] = ()
    stack: Stack = "decoder"
    dtype: Literal["float32", "float64"] = "float32"
    """The dtype of the captures."""

    @property
    def config(self) -> ModelConfig:
        return stack_config(self.model, self.stack)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the attentions that add to the residual stream."""
        return (self.stack, "cross") if self.config.cross_attention else (self.stack,)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return every head as (layer, head)."""
        return tuple(product(self.config.attention_layers, range(self.config.num_heads)))

    def captures(self) -> list[PointCapture]:
        """Return the captures of a trace at the queries."""
        wanted = start_points(self.model, self.stack)
        for layer in range(self.config.num_layers):
            if self.config.has_attention(layer):
                wanted += [(f"{ATTENTION[part][0]}.hook_z", layer) for part in self.parts]
                wanted += [("attn.hook_gate", layer)] if self.config.attention_gate else []
                changed = [part for part in self.parts if self.changes.adds_behind_z(part, layer)]
                wanted += [(ATTENTION[part][1], layer) for part in changed]
            else:
                wanted += [("hook_attn_out", layer)]
            wanted += [(point, layer) for point in _STREAMS if self.changes.at(point, layer)]
            wanted += [(point, layer) for point in self.behind_attention]
            norms = filter(None, (output_norm(self.config, self.stack), *self.sum_norms))
            wanted += [(f"{norm}.hook_scale", layer) for norm in norms]
        if self.config.final_norm:
            wanted.append(("ln_final.hook_scale", None))
        return [self.capture(point, layer, self.queries) for point, layer in dict.fromkeys(wanted)]

    def num_captured(self) -> int:
        """Return the number of values in these captures, or more."""
        config = self.config
        of_heads = (len(self.parts) + config.attention_gate) * config.num_heads * config.largest_head_dim
        per_layer = max(of_heads, config.hidden_size if config.recurrence else 0) + 2 * config.hidden_size + 3
        if self.changes.interventions:
            per_layer += len(_STREAMS) * config.hidden_size
        return len(self.queries) * (config.num_layers * per_layer + 4 * config.hidden_size) + config.vocab_size

    def components(self, tensors: Tensors, readouts: Mapping[str, Tensors]) -> tuple[list[str], Float64]:
        """Return the names of the components and their contributions [T, Q, C], from a trace and the answers of
        WeightsTask "head_readout" for every head of each part.
        """
        targets = range(readouts[self.stack]["direction"].shape[-1])
        with np.errstate(invalid="ignore", over="ignore"):
            found = [_OfTarget(self, tensors, readouts, target).components() for target in targets]
        return list(found[0]), np.stack([np.stack(list(columns.values()), axis=-1) for columns in found])

    def divisor(self, tensors: Tensors, part: Part, layer: int) -> Float64:
        """Return the product [Q] of all scales between a head's output and the logit."""
        behind = self.behind(tensors, layer, self.parts.index(part))
        norm = output_norm(self.config, part)
        return behind if norm is None else behind * self._scale(tensors, norm, layer)

    def sigma(self, tensors: Tensors) -> Float64:
        """Return the scale [Q] of the final norm, or 1 without one."""
        if not self.config.final_norm:
            return np.ones(len(tensors[self.name("hook_mlp_out", 0)]))
        return tensors[self.name("ln_final.hook_scale", None)][:, 0].astype(np.float64)

    def difference(self, sums: Float64, tensors: Tensors, targets: Sequence[int]) -> float:
        """Return the distance of the last query's sums [T], capped if the model caps, from the model's logits."""
        cap = self.config.final_logit_softcap
        capped = sums if cap is None else cap * np.tanh(sums / cap)
        logits = tensors[self.name("logits", None)][0]
        return float(np.abs(capped - logits[list(targets)]).max())

    @property
    def behind_attention(self) -> list[str]:
        """Return the points of a block's additions after its attentions, in order."""
        return ["hook_mlp_out", *(["hook_per_layer_out"] if self.config.per_layer_size is not None else [])]

    @property
    def sum_norms(self) -> list[str]:
        """Return the norms after the sums of a block, in order; [] if the model has none there."""
        if self.config.norm_placement != "post":
            return []
        return ["ln1", "ln_cross", "ln2"] if self.config.cross_attention else ["ln1", "ln2"]

    def _scale(self, tensors: Tensors, norm: str, layer: int) -> Float64:
        return tensors[self.name(f"{norm}.hook_scale", layer)][:, 0].astype(np.float64)

    def behind(self, tensors: Tensors, layer: int, sublayer: int) -> Float64:
        """Return the product [Q] of the scales of all norms after a sublayer's output: of its sum, of later sums, and
        the final norm's.
        """
        scales = self.sigma(tensors)
        for later in range(layer, self.config.num_layers):
            for norm in self.sum_norms[sublayer if later == layer else 0 :]:
                scales = scales * self._scale(tensors, norm, later)
        return scales

    def name(self, point: str, layer: int | None) -> str:
        return full_name(self.model, self.stack, point, layer)

    def capture(self, point: str, layer: int | None, positions: tuple[int, ...] | None) -> PointCapture:
        """Return the capture of a point of the stack; None is every position."""
        return point_capture(self.model, self.stack, point, layer, positions=positions, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class _OfTarget:
    """The components of one target's logit, collected in the order in which the network adds them."""

    parts: LogitParts
    tensors: Tensors
    readouts: Mapping[str, Tensors]
    target: int
    columns: dict[str, Float64] = field(default_factory=dict)
    """The components found so far, each [Q] with a number for each query, by name."""

    def components(self) -> dict[str, Float64]:
        parts, own = self.parts, self.readouts[self.parts.stack]
        for name, of in start_points(parts.model, parts.stack):
            self._add(name, of, 0, 0)
        num_parts = len(parts.parts)
        for layer in range(parts.config.num_layers):
            self._end("hook_resid_pre", layer, 0)
            for i, part in enumerate(parts.parts):
                self._attention(part, layer, i)
                self._end_sum(_STREAMS[1 + i], layer, i)
            for point, stream in zip(parts.behind_attention, ("hook_resid_mid_mlp", "hook_resid_post"), strict=False):
                self._add(point, layer, layer, num_parts)
                if point != parts.behind_attention[-1]:
                    self._end(stream, layer, num_parts)
            self._end_sum("hook_resid_post", layer, num_parts)
        first = next(iter(self.columns.values()))
        return self.columns | {"bias": np.full_like(first, own["bias"][self.target])}

    def _read(self, vectors: Floats, layer: int, sublayer: int) -> Float64:
        """Return the contribution to the logit [Q] of vectors [Q, d] before a sublayer or after all layers."""
        own = self.readouts[self.parts.stack]
        is_end = "sum_directions" not in own or layer == self.parts.config.num_layers
        direction = own["direction"] if is_end else own["sum_directions"][layer, sublayer]
        behind = self.parts.behind(self.tensors, layer, sublayer)
        return stream_attributions(vectors, direction[:, self.target], behind)

    def _add(self, point: str, of: int | None, layer: int, sublayer: int) -> None:
        name = self.parts.name(point, of)
        self.columns[name] = self._read(self.tensors[name], layer, sublayer)

    def _attention(self, part: Part, layer: int, sublayer: int) -> None:
        """Add the heads of an attention and its bias, or the mixer in its place."""
        parts, config, (module, output) = self.parts, self.parts.config, ATTENTION[part]
        if not config.has_attention(layer):
            if sublayer == 0:
                self._add(output, layer, layer, 0)
            return
        found = self.readouts[part]
        place = config.attention_layers.index(layer) * config.num_heads
        heads = slice(place, place + config.num_heads)
        z = self.tensors[parts.name(f"{module}.hook_z", layer)]
        if config.attention_gate and part != "cross":
            z = z * opened(self.tensors[parts.name("attn.hook_gate", layer)])
        divisor = parts.divisor(self.tensors, part, layer)
        added = head_attributions(z, found["readout"][heads, : z.shape[-1], self.target], divisor)
        names = [parts.name(f"{module}.head.{head}", layer) for head in range(config.num_heads)]
        left = [parts.changes.behind_z(part, layer, head, parts.queries) for head in range(config.num_heads)]
        own = dict(zip(names, (added * np.stack(left, axis=-1)).T, strict=True))
        if config.attention_out_bias:
            of_all = parts.changes.of_output(part, layer, parts.queries)
            own[parts.name(f"{module}.b_O", layer)] = found[_BIASES[part]][layer, self.target] / divisor * of_all
        if parts.changes.adds_behind_z(part, layer):
            whole = self._read(self.tensors[parts.name(output, layer)], layer, sublayer)
            own[parts.name(f"{module}.change", layer)] = whole - sum(own.values())
        self.columns.update(own)

    def _end_sum(self, stream: str, layer: int, sublayer: int) -> None:
        """Add the bias of the norm after a sublayer's sum, if there is one, and the change of the stream after it."""
        norms = self.parts.sum_norms
        behind = (layer, sublayer + 1) if sublayer < len(self.parts.parts) else (layer + 1, 0)
        if norms:
            bias = self.readouts[self.parts.stack]["norm_biases"][layer, sublayer, self.target]
            self.columns[self.parts.name(f"{norms[sublayer]}.b", layer)] = bias / self.parts.behind(
                self.tensors, *behind
            )
        self._end(stream, *behind, layer)

    def _end(self, stream: str, layer: int, sublayer: int, of: int | None = None) -> None:
        """Add the change of the stream before a sublayer: its difference from the sum of the components."""
        of = layer if of is None else of
        if self.parts.changes.at(stream, of):
            name = self.parts.name(stream, of)
            if name not in self.columns:
                self.columns[f"{name}.change"] = self._read(self.tensors[name], layer, sublayer) - sum(
                    self.columns.values()
                )


_STREAMS = ("hook_resid_pre", "hook_resid_mid", "hook_resid_mid_cross", "hook_resid_mid_mlp", "hook_resid_post")
_BIASES: dict[Part, str] = {"decoder": "attn_bias", "encoder": "attn_bias", "cross": "cross_bias"}
