"""Networks of no family: options and sizes drawn at random, every point against the slow reference.

Each family uses a few combinations of what the layers can do; users' checkpoints use others.
"""

import random
import secrets
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.config import ModelConfig, PositionBiasConfig, RopeConfig
from model.loader import build_model
from tests import reference
from tests.network import CPU, look_at_everything, worst

VOCAB_SIZE, CONTEXT = 50, 60


def _draw_config(rng: random.Random) -> ModelConfig:
    """A stack with options that no family combines."""
    kv_heads, group, head_dim = rng.randint(1, 3), rng.randint(1, 3), 2 * rng.randint(1, 9)
    num_layers, positions = rng.randint(1, 3), rng.choice(["rope", "learned", "sinusoidal", "bias", "none"])
    rope = RopeConfig(max_position=CONTEXT, original_max_position=CONTEXT, dims=rng.choice([None, 2]))
    bias = PositionBiasConfig(num_buckets=8, max_distance=20, bidirectional=False)
    norm = rng.choice(["rmsnorm", "layernorm"])
    options: dict[str, Any] = {
        "norm": norm,
        "norm_bias": norm == "layernorm" and rng.random() < 0.5,
        "norm_placement": rng.choice(["pre", "post", "sandwich", "output"]),
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
        "learned_positions": positions == "learned",
        "sinusoidal_positions": positions == "sinusoidal",
        "position_offset": rng.choice([0, 2]) if positions == "learned" else 0,
        "position_bias": bias if positions == "bias" else None,
        "num_token_types": rng.choice([0, 2]),
        "embedding_scale": rng.choice([1.0, 2.3]),
        "embedding_size": rng.choice([None, 7]),
        "tie_word_embeddings": rng.random() < 0.5,
        "head_bias": rng.random() < 0.5,
        "logit_scale": rng.choice([1.0, 0.4]),
        "attn_logit_softcap": rng.choice([None, 2.0]),
        "final_logit_softcap": rng.choice([None, 3.0]),
        "sliding_windows": tuple(rng.choice([None, rng.randint(1, 12)]) for _ in range(num_layers)),
    }
    options["parallel_blocks"] = options["norm_placement"] == "pre" and rng.random() < 0.3
    return ModelConfig(
        architecture="Random",
        family="llama",
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


def _draw_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Under our names (model/weight_maps), so large that no part of the network is lost in the others."""
    d, heads, hidden = config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size
    kv_heads, width = config.num_kv_heads * config.head_dim, config.embedding_size or config.hidden_size
    weights: dict[str, torch.Tensor] = {}

    def table(name: str, *shape: int) -> None:
        weights[f"{name}.weight"] = torch.randn(shape, dtype=torch.float64)

    def linear(name: str, outputs: int, inputs: int, bias: bool) -> None:
        weights[f"{name}.weight"] = torch.randn(outputs, inputs, dtype=torch.float64) / inputs**0.5
        if bias:
            weights[f"{name}.bias"] = torch.randn(outputs, dtype=torch.float64) / 3

    def norm(name: str, length: int = d) -> None:
        weights[f"{name}.weight"] = 1 + torch.randn(length, dtype=torch.float64) / 3
        if config.norm_bias:
            weights[f"{name}.bias"] = torch.randn(length, dtype=torch.float64) / 3

    table("embed", VOCAB_SIZE, width)
    if config.embedding_size is not None:
        linear("embed_in", d, width, False)
        linear("embed_out", width, d, False)
    if config.learned_positions:
        table("pos_embed", CONTEXT + config.position_offset, d)
    if config.num_token_types:
        table("token_type_embed", config.num_token_types, d)
    if config.embedding_norm:
        norm("embed_norm")
    if config.position_bias is not None:
        table("position_bias", config.position_bias.num_buckets, config.num_heads)
    placed = {"pre": ("norm",), "post": ("norm",), "sandwich": ("norm", "post_norm"), "output": ("post_norm",)}
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        for sublayer in ("attn", "mlp"):
            for which in placed[config.norm_placement]:
                norm(f"{layer}{sublayer}_{which}")
        linear(f"{layer}qkv", heads + 2 * kv_heads, d, config.attention_bias)
        if config.qk_norm is not None:
            norm(f"{layer}q_norm", config.head_dim if config.qk_norm == "head" else heads)
            norm(f"{layer}k_norm", config.head_dim if config.qk_norm == "head" else kv_heads)
        linear(f"{layer}attn_out", d, heads, config.attention_out_bias)
        up = ("gate_up", 2 * hidden) if config.gated_mlp else ("up", hidden)
        linear(f"{layer}{up[0]}", up[1], d, config.mlp_bias)
        linear(f"{layer}down", d, hidden, config.mlp_bias)
    if config.final_norm:
        norm("final_norm")
    if not config.tie_word_embeddings:
        table("head", VOCAB_SIZE, width)
    if config.head_bias:
        weights["head.bias"] = torch.randn(VOCAB_SIZE, dtype=torch.float64)
    return weights


@pytest.mark.parametrize("attempt", range(25))
def test_a_network_of_random_options_equals_the_reference_at_every_point(attempt: int) -> None:
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config = _draw_config(rng)
    weights = _draw_weights(config)
    print(seed, config)  # shown when it fails
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40))]
    expected = reference.run(config, weights, tokens).points
    network = build_model(config, dict(weights), context=CONTEXT)
    assert network.device == CPU
    ours = look_at_everything(network, tokens, chunk=rng.randint(1, len(tokens)))
    # Where a row is nearly constant its norm divides by little, and rounding grows with it.
    largest = max(float(value[value.isfinite()].abs().max()) for value in expected.values())
    assert worst(ours, expected) <= 1e-10 * max(1.0, largest)
