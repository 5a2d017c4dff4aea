"""Random weights for networks of any options."""

import torch

from lightwell.model.config import ModelConfig, Recurrence, ShortConvConfig


def draw_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Draw weights under our names (model/weight_maps), so large that no part of the network is lost in the others."""
    drawn = _Weights(config)
    width = config.embedding_size or config.hidden_size
    drawn.table("embed", config.vocab_size, width)
    drawn.stack()
    if config.has_head:
        if config.embedding_size is not None:
            drawn.linear("embed_out", width, config.hidden_size, False)
        if not config.tie_word_embeddings:
            drawn.table("head", config.vocab_size, width)
        if config.head_bias:
            drawn.weights["head.bias"] = torch.randn(config.vocab_size, dtype=torch.float64)
    if config.encoder is not None:
        encoder = _Weights(config.encoder)
        encoder.stack()
        drawn.weights |= {f"encoder.{name}": weight for name, weight in encoder.weights.items()}
    return drawn.weights


class _Weights:
    """The weights of one stack, without its prefix."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.weights: dict[str, torch.Tensor] = {}

    def table(self, name: str, *shape: int) -> None:
        self.weights[f"{name}.weight"] = torch.randn(shape, dtype=torch.float64)

    def linear(self, name: str, outputs: int, inputs: int, bias: bool) -> None:
        self.weights[f"{name}.weight"] = torch.randn(outputs, inputs, dtype=torch.float64) / inputs**0.5
        if bias:
            self.weights[f"{name}.bias"] = torch.randn(outputs, dtype=torch.float64) / 3

    def norm(self, name: str, length: int, bias: bool) -> None:
        self.weights[f"{name}.weight"] = 1 + torch.randn(length, dtype=torch.float64) / 3
        if bias:
            self.weights[f"{name}.bias"] = torch.randn(length, dtype=torch.float64) / 3

    def stack(self) -> None:
        config, d = self.config, self.config.hidden_size
        if config.embedding_size is not None:
            self.linear("embed_in", d, config.embedding_size, False)
        if config.learned_positions:
            self.table("pos_embed", config.max_model_len + config.position_offset, d)
        if config.num_token_types:
            self.table("token_type_embed", config.num_token_types, d)
        if config.embedding_norm:
            self.norm("embed_norm", d, config.norm_bias)
        if config.position_bias is not None:
            self.table("position_bias", config.position_bias.num_buckets, config.num_heads)
        for index in range(config.num_layers):
            self.block(index)
        if config.final_norm:
            self.norm("final_norm", d, config.norm_bias)

    def block(self, index: int) -> None:
        config, layer = self.config, f"layers.{index}."
        d, hidden = config.hidden_size, config.intermediate_size
        heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        placed = {"pre": ("norm",), "post": ("norm",), "sandwich": ("norm", "post_norm"), "output": ("post_norm",)}
        for sublayer in ("attn", "cross", "mlp") if config.cross_attention else ("attn", "mlp"):
            for which in placed[config.norm_placement]:
                if index or sublayer != "attn" or config.first_attention_norm:
                    self.norm(f"{layer}{sublayer}_{which}", d, config.norm_bias)
        if config.recurrence is not None and not config.has_attention(index):
            self.recurrence(layer, config.recurrence)
        else:
            gated = heads * (1 + config.attention_gate)
            self.linear(f"{layer}qkv", gated + 2 * kv_heads, d, config.attention_bias)
            if config.qk_norm is not None:
                self.norm(f"{layer}q_norm", config.head_dim if config.qk_norm == "head" else heads, False)
                self.norm(f"{layer}k_norm", config.head_dim if config.qk_norm == "head" else kv_heads, False)
            if config.attention_sinks:
                self.weights[f"{layer}sinks.weight"] = torch.randn(config.num_heads, dtype=torch.float64)
            self.linear(f"{layer}attn_out", d, heads, config.attention_out_bias)
        if config.cross_attention:
            self.linear(f"{layer}cross_q", heads, d, config.attention_bias)
            self.linear(f"{layer}cross_kv", 2 * kv_heads, d, config.attention_bias)
            self.linear(f"{layer}cross_out", d, heads, config.attention_out_bias)
        if config.experts is not None and config.has_experts(index):
            self.linear(f"{layer}router", config.experts.num_experts, d, config.mlp_bias)
            for expert in range(config.experts.num_experts):
                neurons = config.experts.intermediate_size
                self.linear(f"{layer}experts.{expert}.gate_up", 2 * neurons, d, config.mlp_bias)
                self.linear(f"{layer}experts.{expert}.down", d, neurons, config.mlp_bias)
            if config.experts.shared_gate:
                self.linear(f"{layer}shared.router", 1, d, config.mlp_bias)
            if (shared := config.experts.shared_intermediate_size) is not None:
                self.linear(f"{layer}shared.gate_up", 2 * shared, d, config.mlp_bias)
                self.linear(f"{layer}shared.down", d, shared, config.mlp_bias)
            return
        up = ("gate_up", 2 * hidden) if config.gated_mlp else ("up", hidden)
        self.linear(f"{layer}{up[0]}", up[1], d, config.mlp_bias)
        self.linear(f"{layer}down", d, hidden, config.mlp_bias)

    def recurrence(self, layer: str, net: Recurrence) -> None:
        d = self.config.hidden_size
        if isinstance(net, ShortConvConfig):
            self.linear(f"{layer}conv_in", 3 * d, d, net.bias)
            self.convolution(f"{layer}conv", d, net.kernel_size, net.bias)
            self.linear(f"{layer}conv_out", d, d, net.bias)
            return
        heads, values = net.num_value_heads, net.values_width
        self.linear(f"{layer}delta_in", net.convolved_width + values + 2 * heads, d, False)
        self.convolution(f"{layer}conv", net.convolved_width, net.kernel_size, False)
        self.table(f"{layer}delta_decay", heads)
        self.weights[f"{layer}delta_step.bias"] = torch.randn(heads, dtype=torch.float64)
        self.norm(f"{layer}delta_norm", net.value_dim, False)
        self.linear(f"{layer}delta_out", d, values, False)

    def convolution(self, name: str, channels: int, kernel_size: int, bias: bool) -> None:
        self.table(name, channels, 1, kernel_size)
        if bias:
            self.weights[f"{name}.bias"] = torch.randn(channels, dtype=torch.float64) / 3
