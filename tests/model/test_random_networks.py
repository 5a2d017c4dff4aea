"""Networks of no family: options and sizes drawn at random, every point against the slow reference.

Each family uses a few combinations of the layers' options; users' checkpoints use others.
"""

import random
import secrets
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from model.config import (
    ClampedGate,
    DeltaNetConfig,
    ExpertsConfig,
    Kind,
    ModelConfig,
    PositionBiasConfig,
    Recurrence,
    RopeConfig,
    ShortConvConfig,
)
from model.loading.loader import build_model
from tests import reference
from tests.network import CPU, look_at_everything, worst

VOCAB_SIZE, CONTEXT = 50, 60


def _draw_config(rng: random.Random, kind: Kind) -> ModelConfig:
    """Draw a network with options that no family combines."""
    if kind == "decoder":
        config = _draw_stack(rng, kind)
        return replace(config, attention_gate=rng.random() < 0.3, recurrence=_draw_recurrence(rng, config.num_layers))
    if kind == "encoder":
        return _draw_stack(rng, kind)
    decoder, encoder = _draw_stack(rng, kind), _draw_stack(rng, "encoder")
    encoder = replace(encoder, hidden_size=decoder.hidden_size, embedding_size=decoder.embedding_size)  # one table
    return replace(decoder, encoder=encoder)


def _draw_stack(rng: random.Random, kind: Kind) -> ModelConfig:
    """Draw an encoder, a decoder, or a decoder that also attends to an encoder's output."""
    kv_heads, group, head_dim = rng.randint(1, 3), rng.randint(1, 3), 2 * rng.randint(1, 9)
    num_layers, positions = rng.randint(1, 3), rng.choice(["rope", "learned", "sinusoidal", "bias", "none"])
    rope = RopeConfig(max_position=CONTEXT, original_max_position=CONTEXT, dims=rng.choice([None, 2]))
    bias = PositionBiasConfig(num_buckets=8, max_distance=20, bidirectional=kind == "encoder")
    placements = ["pre", "post"] if kind == "encoder-decoder" else ["pre", "post", "sandwich", "output"]
    norm = rng.choice(["rmsnorm", "layernorm"])
    options: dict[str, Any] = {
        "norm": norm,
        "norm_bias": norm == "layernorm" and rng.random() < 0.5,
        "norm_placement": rng.choice(placements),
        "norm_weight_offset": rng.choice([0.0, 1.0]) if norm == "rmsnorm" else 0.0,
        "final_norm": rng.random() < 0.7,
        "embedding_norm": rng.random() < 0.5,
        "qk_norm": rng.choice([None, "head", "full"]) if norm == "rmsnorm" else None,
        "activation": rng.choice(["silu", "gelu", "gelu_tanh", "relu"]),
        "gated_mlp": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.5,
        "attention_out_bias": rng.random() < 0.5,
        "mlp_bias": rng.random() < 0.5,
        "rope": rope if positions == "rope" else None,
        "local_rope": replace(rope, theta=100.0) if positions == "rope" and rng.random() < 0.5 else None,
        "unrotated_layers": tuple(n for n in range(num_layers) if rng.random() < 0.2),
        "learned_positions": positions == "learned",
        "sinusoidal_positions": positions == "sinusoidal",
        "position_offset": rng.choice([0, 2]) if positions == "learned" else 0,
        "position_bias": bias if positions == "bias" else None,
        "num_token_types": rng.choice([0, 2]),
        "embedding_scale": rng.choice([1.0, 2.3]),
        "embedding_size": rng.choice([None, 7]),
        "has_head": kind != "encoder",
        "tie_word_embeddings": kind == "encoder" or rng.random() < 0.5,
        "head_bias": kind != "encoder" and rng.random() < 0.5,
        "logit_scale": rng.choice([1.0, 0.4]),
        "residual_scale": rng.choice([1.0, 0.3]),
        "attention_sinks": rng.random() < 0.3,
        "attn_logit_softcap": rng.choice([None, 2.0]),
        "final_logit_softcap": rng.choice([None, 3.0]),
        "sliding_windows": tuple(rng.choice([None, rng.randint(1, 12)]) for _ in range(num_layers)),
    }
    if options["gated_mlp"]:
        options["clamped_gate"] = ClampedGate(rng.choice([0.5, 7.0]), 1.702) if rng.random() < 0.3 else None
        options["experts"] = _draw_experts(rng, num_layers) if rng.random() < 0.4 else None
    is_pre = options["norm_placement"] == "pre"
    options["first_attention_norm"] = not is_pre or rng.random() < 0.7
    options["parallel_blocks"] = is_pre and kind != "encoder-decoder" and rng.random() < 0.3
    return ModelConfig(
        architecture="Random",
        family="llama",
        kind=kind,
        causal=kind != "encoder",
        cross_attention=kind == "encoder-decoder",
        vocab_size=VOCAB_SIZE,
        hidden_size=2 * rng.randint(2, 20),
        num_layers=num_layers,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=rng.randint(1, 40),
        max_model_len=CONTEXT,
        norm_eps=1e-5,
        attention_scale=rng.choice([1.0, head_dim**-0.5]),
        **options,
    )


def _draw_experts(rng: random.Random, num_layers: int) -> ExpertsConfig:
    count, dense = rng.randint(1, 5), tuple(n for n in range(num_layers) if rng.random() < 0.4)
    shared = rng.choice([None, rng.randint(1, 20)])
    return ExpertsConfig(
        num_experts=count,
        num_chosen=rng.randint(1, count),
        intermediate_size=rng.randint(1, 20),
        normalized=rng.random() < 0.5,
        shared_intermediate_size=shared,
        shared_gate=shared is not None and rng.random() < 0.5,
        dense_layers=dense,
    )


def _draw_recurrence(rng: random.Random, num_layers: int) -> Recurrence | None:
    """Draw the recurrence that replaces attention in some layers, or None."""
    layers = tuple(n for n in range(num_layers - 1) if rng.random() < 0.6)
    if not layers:
        return None
    kernel_size, heads = rng.randint(1, 5), rng.randint(1, 3)
    if rng.random() < 0.5:
        return ShortConvConfig(layers=layers, kernel_size=kernel_size, bias=rng.random() < 0.5)
    return DeltaNetConfig(
        layers=layers,
        kernel_size=kernel_size,
        num_key_heads=heads,
        num_value_heads=heads * rng.randint(1, 3),
        key_dim=rng.randint(1, 12),
        value_dim=rng.randint(1, 12),
    )


def _draw_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Draw weights under our names (model/weight_maps), so large that no part of the network is lost in the others."""
    drawn = _Weights(config)
    width = config.embedding_size or config.hidden_size
    drawn.table("embed", VOCAB_SIZE, width)
    drawn.stack()
    if config.has_head:
        if config.embedding_size is not None:
            drawn.linear("embed_out", width, config.hidden_size, False)
        if not config.tie_word_embeddings:
            drawn.table("head", VOCAB_SIZE, width)
        if config.head_bias:
            drawn.weights["head.bias"] = torch.randn(VOCAB_SIZE, dtype=torch.float64)
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
            self.table("pos_embed", CONTEXT + config.position_offset, d)
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
        config, layer, d, hidden = (
            self.config,
            f"layers.{index}.",
            self.config.hidden_size,
            self.config.intermediate_size,
        )
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


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("attempt", range(12))
def test_a_network_of_random_options_equals_the_reference_at_every_point(attempt: int, kind: Kind) -> None:
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config = _draw_config(rng, kind)
    weights = _draw_weights(config)
    print(seed, config)  # shown when it fails

    def text() -> list[int]:
        return [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40))]

    tokens, encoded = text(), text() if config.encoder else []
    expected = reference.run(config, weights, tokens, encoded).points
    network = build_model(config, dict(weights), context=CONTEXT)
    assert network.device == CPU
    ours = look_at_everything(network, tokens, encoded, chunk=rng.randint(1, len(tokens)))
    # Where a row is nearly constant its norm divides by little, and rounding grows with it.
    largest = max(float(value[value.isfinite()].abs().max()) for value in expected.values())
    assert worst(ours, expected) <= 1e-10 * max(1.0, largest)
