"""Computes the contribution of each key to a query's residual stream through a head, and to a logit: the vectors,
carried forward through every later norm with its scale held. The server never builds them: it has only their lengths
and products.

Axes: Q queries, K keys, H heads, d width.
"""

import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config
from lightwell.model.hooks.points import Stack
from lightwell.server.engine.messages.request import Part
from tests.reference import Trace
from tests.reference.stack import Weights

_NORMS = {"ln1": "attn_norm", "ln_cross": "cross_norm", "ln2": "mlp_norm"}
"""Norms of post-norm blocks, in order: the name of their points, and of their weights."""


class Contributions:
    """The contributions of one attention of a pass: A[h, i, j] v[j] W_O^h (Elhage et al. 2021, "A mathematical
    framework for transformer circuits"). Their lengths are defined by Kobayashi et al. 2020 (arXiv:2004.10102,
    section 3).
    """

    def __init__(self, trace: Trace, weights: Weights, part: Part) -> None:
        stack: Stack = "encoder" if part == "encoder" else "decoder"
        self.trace, self.weights, self.part = trace, weights, part
        self.config: ModelConfig = stack_config(trace.config, stack)
        two = trace.config.kind == "encoder-decoder"
        self.name = f"{stack}." if two else ""
        self.prefix = "encoder." if two and stack == "encoder" else ""

    def vectors(self, layer: int) -> torch.Tensor:
        """Return the vectors that are added to the residual stream, [H, Q, K, d]; if the attention's output is normed
        before that, their share of the normed output.
        """
        config, cross = self.config.at(layer), self.part == "cross"
        module = "cross_attn" if cross else "attn"
        pattern, v = self.point(f"{module}.hook_pattern", layer), self.point(f"{module}.hook_v", layer)
        w_o = self.weights[f"{self.prefix}layers.{layer}.{'cross_out' if cross else 'attn_out'}.weight"]
        added = []
        for head in range(config.num_heads):
            values = v[:, head * config.num_kv_heads // config.num_heads]
            columns = slice(head * config.head_dim, (head + 1) * config.head_dim)
            if config.attention_gate and not cross:  # each query lets through its own share of a value
                values = values * torch.sigmoid(self.point("attn.hook_gate", layer)[:, head])[:, None]
            added.append(pattern[head][:, :, None] * (values @ w_o[:, columns].T))
        x = torch.stack(added) * config.residual_scale
        placement = config.norm_placement
        if cross or placement not in ("sandwich", "output"):
            return x
        return self._through(
            "ln1_post" if placement == "sandwich" else "ln1", f"layers.{layer}.attn_post_norm", x, layer
        )

    def logits(self, layer: int, token: int) -> torch.Tensor:
        """Return the numbers that the vectors of a layer add to a token's logit before a final cap, [H, Q, K]."""
        config, x = self.config, self.vectors(layer)
        if config.norm_placement == "post":
            points = [point for point in _NORMS if point != "ln_cross" or config.cross_attention]
            own = points.index("ln_cross" if self.part == "cross" else "ln1")
            for later in range(layer, config.num_layers):
                for point in points[own if later == layer else 0 :]:
                    x = self._through(point, f"layers.{later}.{_NORMS[point]}", x, later)
        if config.stream_scales:
            for later in range(layer, config.num_layers):
                x = x * self.weights[f"layers.{later}.stream_scale.weight"]
        if config.final_norm:
            x = self._through("ln_final", "final_norm", x, None)
        x = x * config.logit_scale
        if config.embedding_size is not None:
            x = x @ self.weights["embed_out.weight"].T
        return x @ self.weights.get("head.weight", self.weights["embed.weight"])[token]

    def _through(self, point: str, weight: str, x: torch.Tensor, layer: int | None) -> torch.Tensor:
        """Carry x [H, Q, K, d] through a norm that divides as it divided the whole residual stream, without the
        norm's bias.
        """
        if self.config.norm == "layernorm":
            x = x - x.mean(-1, keepdim=True)
        gamma = self.weights[f"{self.prefix}{weight}.weight"] + self.config.norm_weight_offset
        return x / self.point(f"{point}.hook_scale", layer)[:, None] * gamma

    def point(self, point: str, layer: int | None) -> torch.Tensor:
        """Return a point of the stack with the queries."""
        return self.trace.points[self.name + (point if layer is None else f"blocks.{layer}.{point}")]
