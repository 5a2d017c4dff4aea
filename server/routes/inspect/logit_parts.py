"""Computes the parts of a token's logit: which points of a pass hold them, and what each adds (direct logit
attribution).

The residual stream is a sum: embedding, every head, b_O, every mlp. With the norms' scales held as they were, the logit
is a sum over the same parts and a bias; if a norm follows each sum, each norm's bias is a part too
(`model.analysis.contributions`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.analysis.contributions import head_attributions, opened, stream_attributions
from model.config import ModelConfig
from model.hooks.point_names import full_name, points_of
from server.engine.request import Part, PointCapture
from server.http.errors import BadRequest
from server.http.tensor_formats import NumpyArray

Float64 = npt.NDArray[np.float64]
Tensors = Mapping[str, NumpyArray]


def check_attributable(config: ModelConfig, part: Part) -> None:
    """Raise BadRequest when this part of the model leads to no logits."""
    if config.altup is not None:
        raise BadRequest(
            f"target: {config.architecture} makes its logits of {config.altup.num_streams} residual streams, and they "
            "are no sums of what the first one holds; null is accepted, for norms alone.",
            param="target",
        )
    if not config.has_head or part == "encoder":
        raise BadRequest(
            "target: an encoder's logits, if it has any, are no sums of what its stream holds; null is accepted, for "
            "norms alone.",
            param="target",
        )


def output_norm(config: ModelConfig, part: Part) -> str | None:
    """Return the norm that the attention's output goes through before it is added to the residual stream."""
    if part == "cross":
        return None
    return {"sandwich": "ln1_post", "output": "ln1"}.get(config.norm_placement)


@dataclass(frozen=True, slots=True)
class LogitParts:
    """The parts of logits in the decoder of a model whose logits are sums. There are Q queries, T targets, C
    components.
    """

    config: ModelConfig

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the attentions that write to the residual stream."""
        return ("decoder", "cross") if self.config.cross_attention else ("decoder",)

    def _parts_of(self, layer: int) -> tuple[Part, ...]:
        return self.parts if self.config.has_attention(layer) else ()

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return every head."""
        config = self.config
        return tuple((layer, head) for layer in config.attention_layers for head in range(config.num_heads))

    def captures(self, queries: tuple[int, ...]) -> list[PointCapture]:
        """Return what a trace must capture of the queries, and the last query's logits, to compare with."""
        wanted = self._start()
        for layer in range(self.config.num_layers):
            if self.config.has_attention(layer):
                wanted += [(f"{_MODULES[part]}.hook_z", layer) for part in self.parts]
                wanted += [("attn.hook_gate", layer)] if self.config.attention_gate else []
            else:
                wanted += [("hook_attn_out", layer)]
            wanted += [(point, layer) for point in self._behind_attention]
            wanted += [(f"{norm}.hook_scale", layer) for norm in (*self._output_norms, *self._sum_norms)]
        if self.config.final_norm:
            wanted.append(("ln_final.hook_scale", None))
        captures = [self._capture(point, layer, queries) for point, layer in wanted]
        return [*captures, self._capture("logits", None, queries[-1:])]

    def num_captured(self, num_queries: int) -> int:
        """Return how many numbers those captures have."""
        config = self.config
        of_heads = (len(self.parts) + config.attention_gate) * config.num_heads * config.largest_head_dim
        per_layer = max(of_heads, config.hidden_size if config.recurrence else 0) + 2 * config.hidden_size + 3
        return num_queries * (config.num_layers * per_layer + 4 * config.hidden_size) + config.vocab_size

    @property
    def names(self) -> list[str]:
        """Return the names of the components, in order."""
        names = [self._name(point, layer) for point, layer in self._start()]
        for layer in range(self.config.num_layers):
            if not self.config.has_attention(layer):
                names.append(self._name("hook_attn_out", layer))
            for part in self._parts_of(layer):
                module = self._name(_MODULES[part], layer)
                names += [f"{module}.head.{head}" for head in range(self.config.num_heads)]
                names += [f"{module}.b_O"] if self.config.attention_out_bias else []
            names += [self._name(point, layer) for point in self._behind_attention]
            names += [self._name(f"{norm}.b", layer) for norm in self._sum_norms]
        return [*names, "bias"]

    def components(self, tensors: Tensors, readouts: Mapping[str, Tensors]) -> Float64:
        """Return the components [T, Q, C], from a trace and the answers of WeightsTask "head_readout" for every head
        of each part.
        """
        own = readouts["decoder"]
        return np.stack([self._of_target(tensors, readouts, t) for t in range(own["direction"].shape[-1])])

    def divisor(self, tensors: Tensors, part: Part, layer: int) -> Float64:
        """Return for each query [Q] the product of all scales between a head's output and the logit."""
        behind = self._behind(tensors, layer, self.parts.index(part))
        norm = output_norm(self.config, part)
        return behind if norm is None else behind * self._scale(tensors, norm, layer)

    def sigma(self, tensors: Tensors) -> Float64:
        """Return the final norm's scale for each query [Q], or 1 without one."""
        if not self.config.final_norm:
            return np.ones(len(tensors[self._name("hook_mlp_out", 0)]))
        return tensors[self._name("ln_final.hook_scale", None)][:, 0].astype(np.float64)

    def difference(self, sums: Float64, tensors: Tensors, targets: Sequence[int]) -> float:
        """Return how far the last query's sums [T], capped if the model caps, are from the model's logits."""
        cap = self.config.final_logit_softcap
        capped = sums if cap is None else cap * np.tanh(sums / cap)
        logits = tensors[self._name("logits", None)][0]
        return float(np.abs(capped - logits[list(targets)]).max())

    @property
    def _output_norms(self) -> list[str]:
        norm = output_norm(self.config, "decoder")
        return [] if norm is None else [norm]

    @property
    def _behind_attention(self) -> list[str]:
        """Return the points of what a block adds after its attentions, in order."""
        return ["hook_mlp_out", *(["hook_per_layer_out"] if self.config.per_layer_size is not None else [])]

    @property
    def _sum_norms(self) -> list[str]:
        """Return the norms after the sums of a block, in order; there are none if the model has them elsewhere."""
        if self.config.norm_placement != "post":
            return []
        return ["ln1", "ln_cross", "ln2"] if self.config.cross_attention else ["ln1", "ln2"]

    def _scale(self, tensors: Tensors, norm: str, layer: int) -> Float64:
        return tensors[self._name(f"{norm}.hook_scale", layer)][:, 0].astype(np.float64)

    def _behind(self, tensors: Tensors, layer: int, sublayer: int) -> Float64:
        """Return for each query [Q] the product of the scales of all norms after what a sublayer adds: of its sum,
        of later ones, and the final norm's.
        """
        scales = self.sigma(tensors)
        for later in range(layer, self.config.num_layers):
            for norm in self._sum_norms[sublayer if later == layer else 0 :]:
                scales = scales * self._scale(tensors, norm, later)
        return scales

    def _of_target(self, tensors: Tensors, readouts: Mapping[str, Tensors], t: int) -> Float64:
        """Return the components [Q, C] of one target."""
        config, own = self.config, readouts["decoder"]
        sums = own.get("sum_directions")
        mlp = len(self.parts)
        start = own["direction"] if sums is None else sums[0, 0]
        first = self._behind(tensors, 0, 0)
        columns = [stream_attributions(tensors[self._name(*point)], start[:, t], first) for point in self._start()]
        for layer in range(config.num_layers):
            if not config.has_attention(layer):
                vectors = tensors[self._name("hook_attn_out", layer)]
                columns.append(stream_attributions(vectors, own["direction"][:, t], first))
            for part in self._parts_of(layer):
                found = readouts[part]
                place = config.attention_layers.index(layer) * config.num_heads
                heads = slice(place, place + config.num_heads)
                z = tensors[self._name(f"{_MODULES[part]}.hook_z", layer)]
                if config.attention_gate and part == "decoder":
                    z = z * opened(tensors[self._name("attn.hook_gate", layer)])
                divisor = self.divisor(tensors, part, layer)
                readout = found["readout"][heads, : z.shape[-1], t]
                columns += list(head_attributions(z, readout, divisor).T)
                if config.attention_out_bias:
                    columns.append(found[_BIASES[part]][layer, t] / divisor)
            u = own["direction"] if sums is None else sums[layer, mlp]
            behind = self._behind(tensors, layer, mlp)
            for point in self._behind_attention:
                columns.append(stream_attributions(tensors[self._name(point, layer)], u[:, t], behind))
            for i, _ in enumerate(self._sum_norms):
                columns.append(own["norm_biases"][layer, i, t] / self._behind(tensors, layer, i + 1))
        bias = np.full_like(first, own["bias"][t])
        return np.stack([*columns, bias], axis=-1)

    def _start(self) -> list[tuple[str, int | None]]:
        """Return the points whose sum enters the first block."""
        if self.config.embedding_norm:
            return [("hook_resid_pre", 0)]  # normed: no sum of the embeddings any more
        has = {point.name for point in points_of(self.config, "decoder")}
        return [(name, None) for name in ("hook_embed", "hook_pos_embed", "hook_token_type_embed") if name in has]

    def _name(self, point: str, layer: int | None) -> str:
        return full_name(self.config, "decoder", point, layer)

    def _capture(self, point: str, layer: int | None, positions: tuple[int, ...]) -> PointCapture:
        name = self._name(point, layer)
        return PointCapture(name=name, stack="decoder", layer=layer, point=point, positions=positions)


_MODULES: dict[Part, str] = {"decoder": "attn", "encoder": "attn", "cross": "cross_attn"}
_BIASES: dict[Part, str] = {"decoder": "attn_bias", "cross": "cross_bias"}
