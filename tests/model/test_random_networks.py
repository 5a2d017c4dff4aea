"""Networks of no family: options and sizes drawn at random, every point against the slow reference.

Each family uses a few combinations of the layers' options; users' checkpoints use others.
"""

import random
import secrets
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from lightwell.model.config import (
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
from lightwell.model.loading.loader import build_model
from tests import reference
from tests.model.random_weights import draw_weights
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


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("attempt", range(9))
def test_a_network_of_random_options_equals_the_reference_at_every_point(attempt: int, kind: Kind) -> None:
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config = _draw_config(rng, kind)
    weights = draw_weights(config)
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
