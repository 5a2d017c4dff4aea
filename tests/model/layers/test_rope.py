"""Rotary embedding: every scaling as transformers computes it."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import RopeConfig
from lightwell.model.layers.rope import Rope, frequencies

HEAD_DIM, TRAINED = 16, 128
SHORT, LONG = [1.0 + i / 16 for i in range(8)], [2.0 + i for i in range(8)]
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 32}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "another base": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {**LLAMA_3, "original_max_position_embeddings": 32},
    "yarn": YARN,
    "yarn, its own betas": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, attention factor": {**YARN, "attention_factor": 1.25},
    "longrope": LONGROPE,
    "longrope, factor": {**LONGROPE, "factor": 16.0},
}


def config_of(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=48,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_theta": 10000.0, **parameters},
        architectures=["LlamaForCausalLM"],
    )


def ours(parameters: dict[str, Any], tmp_path: Any) -> RopeConfig:
    """Return the parameters as read through config.json, as a checkpoint's would be."""
    config_of(parameters).save_pretrained(tmp_path)
    rope = read_config(tmp_path).rope
    assert rope is not None
    return rope


def turned_by_theirs(parameters: dict[str, Any], q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = LlamaRotaryEmbedding(config_of(parameters))(q, torch.arange(len(q))[None])
    turned = apply_rotary_pos_emb(q[None], k[None], cos, sin, unsqueeze_dim=2)
    return turned[0][0], turned[1][0]


def rotated(rope: Rope, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = rope.at(positions)
    return Rope.rotate(q, cos, sin), Rope.rotate(k, cos, sin)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [32, TRAINED, 400])
def test_every_scaling_turns_as_transformers_does_at_the_full_context(name: str, length: int, tmp_path: Any) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(length, 4, HEAD_DIM), torch.randn(length, 2, HEAD_DIM)
    expected_q, expected_k = turned_by_theirs(SCALINGS[name], q, k)
    rope = Rope(ours(SCALINGS[name], tmp_path), HEAD_DIM, length, torch.float32)
    turned_q, turned_k = rotated(rope, q, k, torch.arange(length))
    assert (turned_q - expected_q).abs().max() <= 1e-6
    assert (turned_k - expected_k).abs().max() <= 1e-6


@pytest.mark.parametrize("name", SCALINGS)
def test_float64_frequencies_are_more_exact_than_float32_ones_and_agree_with_them(name: str, tmp_path: Any) -> None:
    rope = ours(SCALINGS[name], tmp_path)
    exact = frequencies(rope, HEAD_DIM, TRAINED, torch.float64)
    rounded = frequencies(rope, HEAD_DIM, TRAINED, torch.float32)
    assert exact.inverse.dtype == torch.float64
    assert exact.scaling == rounded.scaling
    torch.testing.assert_close(rounded.inverse.double(), exact.inverse, rtol=1e-6, atol=0)


def test_frequencies_that_follow_the_length_are_fixed_by_the_context_served(tmp_path: Any) -> None:
    rope = ours(SCALINGS["dynamic"], tmp_path)
    x = torch.randn(8, 2, HEAD_DIM)
    within = 128

    def rotate(max_len: int) -> torch.Tensor:
        return rotated(Rope(rope, HEAD_DIM, max_len, torch.float32), x, x, torch.arange(8))[0]

    assert torch.equal(rotate(within), rotate(within // 2))
    assert not torch.equal(rotate(within), rotate(within + 64))


def test_long_texts_have_rows_of_their_own_after_those_of_short_ones(tmp_path: Any) -> None:
    rope = ours(SCALINGS["longrope"], tmp_path)
    both = Rope(rope, HEAD_DIM, 96, torch.float32, switch=32)
    short, long = Rope(rope, HEAD_DIM, 32, torch.float32), Rope(rope, HEAD_DIM, 96, torch.float32)
    assert torch.equal(both.cos[:32], short.cos)
    assert torch.equal(both.cos[32:], long.cos)
    assert not torch.allclose(both.cos[1:32], both.cos[33:64], atol=1e-3)
