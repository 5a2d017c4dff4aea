"""One stack of a transformer written to be read: one sequence, one head at a time, float64, plain torch.

It shares no code with the layers it checks. Every named point of `model.hooks.points` is kept under its short name.

Axes: S positions of the sequence (query or key), H heads, K key heads, D head_dim, d width.
"""

import math
from collections.abc import Mapping

import torch

from lightwell.model.config import DeltaNetConfig, ExpertsConfig, ModelConfig
from tests.reference import formulas, recurrences

Weights = Mapping[str, torch.Tensor]
Points = dict[str, torch.Tensor]


class Stack:
    """The encoder or the decoder. `prefix` comes before its weights' names, and `name` before its points'."""

    def __init__(
        self, config: ModelConfig, weights: Weights, *, prefix: str, name: str, casts: str | None, max_len: int
    ) -> None:
        self.config, self.weights, self.casts, self.max_len = config, weights, casts, max_len
        self.prefix, self.name = prefix, name
        self.points: Points = {}
        """Points by full name."""
        self.dots: list[torch.Tensor] = []
        """For each layer, q.k of self-attention before scale, cap, bias and mask, [H, S, S]."""

    def run(self, token_ids: list[int], encoded: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the residual stream after the last block and the final norm, [S, d], from token ids [S] (and the
        encoder's output).
        """
        x = self.embed(token_ids)
        self.of_tokens = None if self.config.per_layer_size is None else self.per_layer_inputs(token_ids, x)
        x = self.blocks(x, encoded)
        return self.norm("ln_final", "final_norm", x) if self.config.final_norm else x

    def blocks(self, x: torch.Tensor, encoded: torch.Tensor | None) -> torch.Tensor:
        for layer in range(self.config.num_layers):
            x = self.block(layer, x, encoded)
        return x

    def keep(self, point: str, x: torch.Tensor, layer: int | None = None) -> torch.Tensor:
        self.points[self.name + (point if layer is None else f"blocks.{layer}.{point}")] = x
        return x

    def weight(self, name: str) -> torch.Tensor:
        return self.weights[self.prefix + name]

    def has(self, name: str) -> bool:
        return self.prefix + name in self.weights

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if self.has(f"{name}.bias") else y

    def norm(self, point: str, name: str, x: torch.Tensor, layer: int | None = None) -> torch.Tensor:
        config, weight = self.config, self.weight(f"{name}.weight")
        if config.norm == "rmsnorm":
            scale = formulas.rms_scale(x, config.norm_eps)
            normalized = x / scale
            y = formulas.rms_norm(x, weight, config.norm_eps, config.norm_weight_offset, self.casts)
        else:
            scale = formulas.layer_norm_scale(x, config.norm_eps)
            normalized = (x - x.mean(-1, keepdim=True)) / scale
            bias = self.weight(f"{name}.bias") if self.has(f"{name}.bias") else None
            y = formulas.layer_norm(x, weight, bias, config.norm_eps)
        self.keep(f"{point}.hook_scale", scale, layer)
        self.keep(f"{point}.hook_normalized", normalized, layer)
        return self.keep(f"{point}.hook_out", y, layer)

    def embed(self, token_ids: list[int]) -> torch.Tensor:
        config, length = self.config, len(token_ids)
        x = torch.stack([self.weights["embed.weight"][token] for token in token_ids])  # both stacks share the table
        x = x * config.embedding_scale
        if config.embedding_size is not None:
            x = self.linear("embed_in", x)
        self.keep("hook_embed", x)
        if config.num_token_types:
            x = x + self.keep("hook_token_type_embed", self.weight("token_type_embed.weight")[0].expand(length, -1))
        if config.learned_positions:
            rows = [self.weight("pos_embed.weight")[position + config.position_offset] for position in range(length)]
            x = x + self.keep("hook_pos_embed", torch.stack(rows))
        if config.sinusoidal_positions:
            rows = [formulas.sinusoid(position, config.hidden_size, self.casts) for position in range(length)]
            x = x + self.keep("hook_pos_embed", torch.stack(rows))
        return self.norm("embed_norm", "embed_norm", x) if config.embedding_norm else x

    def block(self, layer: int, x: torch.Tensor, encoded: torch.Tensor | None) -> torch.Tensor:
        self.keep("hook_resid_pre", x, layer)
        factor = self.config.residual_scale
        if self.config.parallel_blocks:
            attention = self.keep("hook_attn_out", factor * self.mixer(layer, self.before(layer, "ln1", x)), layer)
            mlp = self.keep("hook_mlp_out", factor * self.mlp(layer, self.before(layer, "ln2", x)), layer)
            return self.keep("hook_resid_post", x + attention + mlp, layer)
        added = factor * self.after(layer, "ln1", self.mixer(layer, self.before(layer, "ln1", x)))
        x = self.outside(layer, "ln1", x + self.keep("hook_attn_out", added, layer))
        self.keep("hook_resid_mid", x, layer)
        if self.config.cross_attention:
            assert encoded is not None
            added = factor * self.cross_attention(layer, self.before(layer, "ln_cross", x), encoded)
            x = self.outside(layer, "ln_cross", x + self.keep("hook_cross_attn_out", added, layer))
            self.keep("hook_resid_mid_cross", x, layer)
        added = factor * self.after(layer, "ln2", self.feedforward(layer, x))
        x = self.outside(layer, "ln2", x + self.keep("hook_mlp_out", added, layer))
        if self.of_tokens is not None:
            x = x + self.per_layer(layer, self.keep("hook_resid_mid_mlp", x, layer), self.of_tokens[:, layer])
        if self.config.stream_scales:
            x = x * self.weight(f"layers.{layer}.stream_scale.weight")
        return self.keep("hook_resid_post", x, layer)

    def per_layer_inputs(self, token_ids: list[int], x: torch.Tensor) -> torch.Tensor:
        """Return the per-layer input from the tokens and from their vectors x [S, d]: [S, L, P]."""
        width = self.config.per_layer_size
        assert width is not None
        of_vectors = (self.linear("per_layer_project", x) / math.sqrt(x.shape[-1])).reshape(len(x), -1, width)
        weight = self.weight("per_layer_norm.weight")
        of_vectors = formulas.rms_norm(of_vectors, weight, self.config.norm_eps, casts=self.casts)
        table = self.weight("per_layer_embed.weight")
        of_tokens = torch.stack([table[token if token < len(table) else 0] for token in token_ids])
        return (of_vectors + of_tokens.reshape(of_vectors.shape) * math.sqrt(width)) / math.sqrt(2)

    def per_layer(self, layer: int, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Return the vectors [S, d] that the layer adds for its per-layer input, `given` [S, P]."""
        self.keep("hook_per_layer_input", given, layer)
        gate = formulas.activate(self.linear(f"layers.{layer}.per_layer_gate", x), self.config.activation)
        y = self.linear(f"layers.{layer}.per_layer_out", gate * given)
        return self.keep(
            "hook_per_layer_out", self.norm("ln_per_layer", f"layers.{layer}.per_layer_post_norm", y, layer), layer
        )

    # The places of a sublayer f's norms: pre x + f(norm(x)), post norm(x + f(x)), sandwich x + norm2(f(norm1(x))),
    # output x + norm(f(x)).

    def before(self, layer: int, point: str, x: torch.Tensor) -> torch.Tensor:
        skipped = point == "ln1" and layer == 0 and not self.config.first_attention_norm
        if self.config.norm_placement not in ("pre", "sandwich") or skipped:
            return x
        name = {"ln1": "attn_norm", "ln_cross": "cross_norm", "ln2": "mlp_norm"}[point]
        return self.norm(point, f"layers.{layer}.{name}", x, layer)

    def after(self, layer: int, point: str, x: torch.Tensor) -> torch.Tensor:
        if self.config.norm_placement not in ("sandwich", "output"):
            return x
        name = {"ln1": "attn_post_norm", "ln2": "mlp_post_norm"}[point]
        called = f"{point}_post" if self.config.norm_placement == "sandwich" else point
        return self.norm(called, f"layers.{layer}.{name}", x, layer)

    def outside(self, layer: int, point: str, x: torch.Tensor) -> torch.Tensor:
        if self.config.norm_placement != "post":
            return x
        name = {"ln1": "attn_norm", "ln_cross": "cross_norm", "ln2": "mlp_norm"}[point]
        return self.norm(point, f"layers.{layer}.{name}", x, layer)

    def mixer(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        recurrence = self.config.recurrence
        if recurrence is None or layer not in recurrence.layers:
            return self.attention(layer, x)
        if isinstance(recurrence, DeltaNetConfig):
            return recurrences.delta_net(self, layer, x, recurrence)
        return recurrences.short_convolution(self, layer, x)

    def attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        config, length = self.config.at(layer), len(x)
        width, kv_layer = config.head_dim, config.kv_layer(layer)
        num_gates = config.num_heads if config.attention_gate else 0
        qkv = self.linear(f"layers.{layer}.qkv", x).reshape(length, -1, width)
        q, gate, own = torch.split(qkv, [config.num_heads, num_gates, qkv.shape[1] - config.num_heads - num_gates], 1)
        if kv_layer == layer:
            k, v = own.chunk(2, 1)
            v = self.normed_values(v) if config.v_norm else v
        else:
            k, v = (self.points[f"{self.name}blocks.{kv_layer}.attn.hook_{part}"] for part in "kv")
        window = config.window_of(layer)
        visible, bias = torch.zeros(length, length, dtype=torch.bool), torch.zeros(config.num_heads, length, length)
        bias = bias.double()
        for query in range(length):
            for key in range(length):
                in_window = window is None or abs(query - key) < window
                visible[query, key] = in_window and (key <= query or not config.causal)
                if config.position_bias is not None:
                    index = formulas.bucket(key - query, config.position_bias)
                    bias[:, query, key] = self.weight("position_bias.weight")[index]
                if config.alibi:
                    bias[:, query, key] = formulas.alibi(config.num_heads, abs(key - query))
        for name, heads in (("q", q), ("k", k), ("v", v)):
            self.keep(f"attn.hook_{name}", heads, layer)
        q, k = self.prepared(layer, "q", q), self.prepared(kv_layer, "k", k)
        gates = self.keep("attn.hook_gate", gate, layer) if num_gates else None
        return self.mixed(layer, "attn", q, k, v, visible, bias, f"layers.{layer}.attn_out", gates)

    def normed_values(self, v: torch.Tensor) -> torch.Tensor:
        return formulas.rms_norm(v, torch.ones(v.shape[-1]).double(), self.config.norm_eps, casts=self.casts)

    def cross_attention(self, layer: int, x: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        config, width = self.config, self.config.head_dim
        q = self.linear(f"layers.{layer}.cross_q", x).reshape(len(x), -1, width)
        keys, values = self.linear(f"layers.{layer}.cross_kv", encoded).chunk(2, dim=-1)
        k, v = keys.reshape(len(encoded), -1, width), values.reshape(len(encoded), -1, width)
        for name, heads in (("q", q), ("k", k), ("v", v)):
            self.keep(f"cross_attn.hook_{name}", heads, layer)
        visible = torch.ones(len(x), len(encoded), dtype=torch.bool)
        bias = torch.zeros(config.num_heads, len(x), len(encoded), dtype=torch.float64)
        return self.mixed(layer, "cross_attn", q, k, v, visible, bias, f"layers.{layer}.cross_out")

    def prepared(self, layer: int, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return q or k [S, H or K, D] after its norm and its rotation."""
        config = self.config
        if config.qk_norm is not None:
            weight = self.weight(f"layers.{layer}.{name}_norm.weight")
            flat = x.flatten(1) if config.qk_norm == "full" else x
            x = formulas.rms_norm(flat, weight, config.norm_eps, config.norm_weight_offset, self.casts).reshape(x.shape)
        has_window = config.window_of(layer) is not None
        rope = config.local_rope if has_window and config.local_rope is not None else config.rope
        if layer in config.unrotated_layers:
            rope = None
        return x if rope is None else formulas.rotate(x, rope, self.max_len, self.casts)

    def mixed(
        self,
        layer: int,
        point: str,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        visible: torch.Tensor,
        bias: torch.Tensor,
        out: str,
        gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Apply scale, cap, bias, mask, softmax, values, gates and output, head by head. -> [queries, d]"""
        config = self.config.at(layer)
        all_dots, scores, patterns, zs, given, results = [], [], [], [], [], []
        for head in range(config.num_heads):
            kv_head = head * config.num_kv_heads // config.num_heads
            dots = q[:, head] @ k[:, kv_head].T
            capped = formulas.soft_cap(dots * config.attention_scale, config.attn_logit_softcap)
            masked = (capped + bias[head]).masked_fill(~visible, -math.inf)
            if config.attention_sinks and point == "attn":  # one more score; its weight is dropped
                sink = self.weight(f"layers.{layer}.sinks.weight")[head].expand(len(masked), 1)
                pattern = formulas.softmax(torch.cat((masked, sink), -1), self.casts)[:, :-1]
            else:
                pattern = formulas.softmax(masked, self.casts)
            z = pattern @ v[:, kv_head]
            columns = slice(head * config.head_dim, (head + 1) * config.head_dim)
            given.append(z if gate is None else z * torch.sigmoid(gate[:, head]))
            results.append(given[-1] @ self.weight(f"{out}.weight")[:, columns].T)
            all_dots.append(dots)
            scores.append(masked)
            patterns.append(pattern)
            zs.append(z)
        if point == "attn":
            self.dots.append(torch.stack(all_dots))
        self.keep(f"{point}.hook_rot_q", q, layer)
        self.keep(f"{point}.hook_rot_k", k, layer)
        self.keep(f"{point}.hook_attn_scores", torch.stack(scores), layer)
        self.keep(f"{point}.hook_pattern", torch.stack(patterns), layer)
        self.keep(f"{point}.hook_z", torch.stack(zs, 1), layer)
        self.keep(f"{point}.hook_result", torch.stack(results, 1), layer)
        return self.linear(out, torch.stack(given, 1).flatten(1))

    def feedforward(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        config, name = self.config, f"layers.{layer}"
        normed = self.before(layer, "ln2", x)
        if config.experts is None or not config.experts.beside_mlp:
            return self.mlp(layer, normed)

        def inner(name: str, y: torch.Tensor) -> torch.Tensor:
            return formulas.rms_norm(y, self.weight(f"{name}.weight"), config.norm_eps, casts=self.casts)

        # The router's norm has its weight apart, and is scaled.
        routed = formulas.rms_norm(x, torch.ones_like(x[0]), config.norm_eps, casts=self.casts)
        routed = routed * self.weight(f"{name}.router_norm.weight") / math.sqrt(x.shape[-1])
        dense = self.keep("mlp.hook_dense_out", inner(f"{name}.dense_post_norm", self.one_mlp(layer, normed)), layer)
        experts = self.mixture(layer, inner(f"{name}.experts_norm", x), config.experts, routed)
        experts = self.keep("mlp.hook_experts_out", inner(f"{name}.experts_post_norm", experts), layer)
        return dense + experts

    def mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        if self.config.experts is not None and layer not in self.config.experts.dense_layers:
            return self.mixture(layer, x, self.config.experts, x)
        return self.one_mlp(layer, x)

    def one_mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        if not self.config.gated_mlp:
            before = self.keep("mlp.hook_pre", self.linear(f"layers.{layer}.up", x), layer)
            hidden = formulas.activate(before, self.config.activation)
        else:
            gate, up = self.linear(f"layers.{layer}.gate_up", x).chunk(2, dim=-1)
            self.keep("mlp.hook_pre", gate, layer)
            self.keep("mlp.hook_pre_linear", up, layer)
            if self.config.sparsities and self.config.sparsities[layer]:
                gate = formulas.without_small(gate, self.config.sparsities[layer])
            hidden = self.gated(gate, up)
        return self.linear(f"layers.{layer}.down", self.keep("mlp.hook_post", hidden, layer))

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if (clamps := self.config.clamped_gate) is None:
            return formulas.activate(gate, self.config.activation) * up
        gate, up = gate.clamp(max=clamps.limit), up.clamp(-clamps.limit, clamps.limit)
        return gate / (1 + torch.exp(-clamps.alpha * gate)) * (up + 1)

    def mixture(self, layer: int, x: torch.Tensor, experts: ExpertsConfig, routed: torch.Tensor) -> torch.Tensor:
        """Apply a mixture of experts to x [S, d], token by token (Shazeer et al. 2017, arXiv:1701.06538); the router
        reads `routed` [S, d].
        """
        logits = self.keep("mlp.hook_router_logits", self.linear(f"layers.{layer}.router", routed), layer)
        weights = self.keep("mlp.hook_expert_weights", formulas.softmax(logits, self.casts), layer)
        chosen, out = [], torch.zeros_like(x)
        for token, own in enumerate(weights.float() if self.casts in formulas.SOFTMAX_IN_FLOAT32 else weights):
            best = sorted(range(experts.num_experts), key=own.tolist().__getitem__, reverse=True)[: experts.num_chosen]
            shares = own[best] / own[best].sum() if experts.normalized else own[best]
            if self.casts in formulas.SOFTMAX_OF_CHOSEN:
                shares = torch.softmax(logits[token][best].float(), -1)
            for expert, share in zip(best, shares.double(), strict=True):
                gate, up = self.linear(f"layers.{layer}.experts.{expert}.gate_up", x[token]).chunk(2)
                hidden = self.gated(gate, up)
                factor = self.weight(f"layers.{layer}.expert_scales.weight")[expert] if experts.beside_mlp else 1.0
                out[token] += share * factor * self.linear(f"layers.{layer}.experts.{expert}.down", hidden)
            chosen.append(best)
        if experts.shared_intermediate_size is not None:
            name = f"layers.{layer}.shared"
            gate, up = self.linear(f"{name}.gate_up", x).chunk(2, dim=-1)
            shared = self.linear(f"{name}.down", self.gated(gate, up))
            out += shared / (1 + torch.exp(-self.linear(f"{name}.router", x))) if experts.shared_gate else shared
        self.keep("mlp.hook_expert_indices", torch.tensor(chosen, dtype=torch.float64), layer)
        return out
