"""Old spellings of config.json, against the same configuration in today's."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.checkpoint.test_families import read, sizes_of

LONGROPE = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
OLD_AND_NEW: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama": (
        "LlamaForCausalLM",
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ),
    "no scaling": (
        "LlamaForCausalLM",
        {"rope_theta": 2e4, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
    ),
    "dtype": ("LlamaForCausalLM", {"torch_dtype": "float16"}, {"dtype": "float16"}),
    "NeoX": (
        "GPTNeoXForCausalLM",
        {"rotary_pct": 0.5, "rotary_emb_base": 20000},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 20000, "partial_rotary_factor": 0.5}},
    ),
    "Gemma 3": (
        "Gemma3ForCausalLM",
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 5e3,
            "sliding_window_pattern": 3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
    "ModernBERT": (
        "ModernBertModel",
        {"global_rope_theta": 5e5, "local_rope_theta": 5e3, "global_attn_every_n_layers": 2},
        {
            "layer_types": ["full_attention", "sliding_attention"] * 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
    "Phi-3": (
        "Phi3ForCausalLM",
        {
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 16,
            "rope_theta": 5e3,
            "rope_scaling": {"type": "su", **LONGROPE},
        },
        {
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 16,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 5e3, **LONGROPE},
        },
    ),
    "Qwen2": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 4},
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 2,
        },
    ),
    "Qwen3-MoE": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 9, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        {"num_experts": None, "num_local_experts": 9, "mlp_only_layers": [0, 2, 3, 4]},
    ),
    "Granite 4": (
        "GraniteMoeHybridForCausalLM",
        {"layer_types": None, "layers_block_type": ["attention"] * 6, "position_embedding_type": "rope"},
        {"layer_types": ["full_attention"] * 6, "position_embedding_type": "rope"},
    ),
    "Qwen2-MoE": (
        "Qwen2MoeForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 4},
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"] * 2,
        },
    ),
    "Mixtral": (
        "MixtralForCausalLM",
        {"rope_theta": 1e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        {
            "rope_theta": 5e4,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False},
            "sliding_window": 5,
        },
        {
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e4, "factor": 8.0, "truncate": False},
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
    ),
    "SmolLM3": (
        "SmolLM3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 3},
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "no_rope_layers": [1, 1, 0, 1, 1, 0],
            "layer_types": ["full_attention", "full_attention", "sliding_attention"] * 2,
        },
    ),
    "OLMo 3": (
        "Olmo3ForCausalLM",
        {"rope_theta": 500_000, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}, "sliding_window": 5},
        {
            "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0}},
            "sliding_window": 5,
            "layer_types": [*["sliding_attention"] * 3, "full_attention", *["sliding_attention"] * 2],
        },
    ),
    "T5": (  # whether an unscaled head is tied is another question; where there are files, they answer it
        "T5ForConditionalGeneration",
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": False, "scale_decoder_outputs": False},
    ),
}


@pytest.mark.parametrize("name", OLD_AND_NEW)
def test_old_and_new_spellings_mean_the_same(tmp_path: Path, name: str) -> None:
    architecture, old, new = OLD_AND_NEW[name]
    sizes = {**sizes_of(architecture), "architectures": [architecture]}
    assert read(tmp_path, {**sizes, **old}) == read(tmp_path, {**sizes, **new})
    assert read(tmp_path, {**sizes, **old}) != read(tmp_path, sizes)
