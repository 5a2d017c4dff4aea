"""Every weight by TransformerLens's name, against the parameters of `transformers` and of GGUF files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.matrices import UnknownMatrix
from lightwell.model.analysis.weight_names import find_weight, list_weights
from lightwell.model.analysis.weight_reader import WeightReader
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import ModelConfig
from lightwell.model.loading.loader import build_model, load_model
from tests import tiny
from tests.gguf_files import make_network, write_gguf
from tests.model.analysis.weights_by_hand import network

Tensors = dict[str, torch.Tensor]


def by_head(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return [head, d_model, d_head] of [head d_head, d_model]."""
    return torch.stack([part.T for part in weight.chunk(heads)])


def of_llama(theirs: Tensors, config: ModelConfig, layer: int = 0) -> Tensors:
    """Return transformers' parameters of a Llama block, and those outside the blocks, by TransformerLens's names."""
    at, to = f"model.layers.{layer}.", f"blocks.{layer}."
    heads, kv_heads = config.num_heads, config.num_kv_heads
    return {
        "embed.W_E": theirs["model.embed_tokens.weight"],
        "unembed.W_U": theirs["lm_head.weight"].T,
        "ln_final.w": theirs["model.norm.weight"],
        f"{to}ln1.w": theirs[f"{at}input_layernorm.weight"],
        f"{to}ln2.w": theirs[f"{at}post_attention_layernorm.weight"],
        f"{to}attn.W_Q": by_head(theirs[f"{at}self_attn.q_proj.weight"], heads),
        f"{to}attn.W_K": by_head(theirs[f"{at}self_attn.k_proj.weight"], kv_heads),
        f"{to}attn.W_V": by_head(theirs[f"{at}self_attn.v_proj.weight"], kv_heads),
        f"{to}attn.W_O": torch.stack([part.T for part in theirs[f"{at}self_attn.o_proj.weight"].chunk(heads, 1)]),
        f"{to}mlp.W_gate": theirs[f"{at}mlp.gate_proj.weight"].T,
        f"{to}mlp.W_in": theirs[f"{at}mlp.up_proj.weight"].T,
        f"{to}mlp.W_out": theirs[f"{at}mlp.down_proj.weight"].T,
    }


def of_gpt2(theirs: Tensors, config: ModelConfig) -> Tensors:
    """Return the same for transformers' GPT-2, with matrices that are already [in, out]."""
    heads, at, to = config.num_heads, "transformer.h.1.", "blocks.1."
    q, _, v = theirs[f"{at}attn.c_attn.weight"].chunk(3, 1)
    biases = theirs[f"{at}attn.c_attn.bias"].chunk(3)
    return {
        "pos_embed.W_pos": theirs["transformer.wpe.weight"],
        "ln_final.b": theirs["transformer.ln_f.bias"],
        f"{to}ln1.b": theirs[f"{at}ln_1.bias"],
        f"{to}attn.W_Q": torch.stack(q.chunk(heads, 1)),
        f"{to}attn.W_V": torch.stack(v.chunk(heads, 1)),
        f"{to}attn.W_O": torch.stack(theirs[f"{at}attn.c_proj.weight"].chunk(heads)),
        f"{to}attn.b_K": biases[1].view(heads, -1),
        f"{to}attn.b_O": theirs[f"{at}attn.c_proj.bias"],
        f"{to}mlp.W_in": theirs[f"{at}mlp.c_fc.weight"],
        f"{to}mlp.b_in": theirs[f"{at}mlp.c_fc.bias"],
        f"{to}mlp.b_out": theirs[f"{at}mlp.c_proj.bias"],
    }


def of_gemma2(theirs: Tensors, config: ModelConfig) -> Tensors:
    """Return the norms of transformers' Gemma 2, which adds 1 to their gains."""
    at = "model.layers.0."
    return {
        "blocks.0.ln1.w": 1 + theirs[f"{at}input_layernorm.weight"],
        "blocks.0.ln1_post.w": 1 + theirs[f"{at}post_attention_layernorm.weight"],
        "blocks.0.ln2.w": 1 + theirs[f"{at}pre_feedforward_layernorm.weight"],
        "blocks.0.ln2_post.w": 1 + theirs[f"{at}post_feedforward_layernorm.weight"],
    }


def of_olmo2(theirs: Tensors, config: ModelConfig) -> Tensors:
    """Return norms of transformers' OLMo 2, which are applied after the sublayers and over all query heads."""
    at = "model.layers.0."
    return {
        "blocks.0.ln1.w": theirs[f"{at}post_attention_layernorm.weight"],
        "blocks.0.ln2.w": theirs[f"{at}post_feedforward_layernorm.weight"],
        "blocks.0.attn.q_norm.w": theirs[f"{at}self_attn.q_norm.weight"],
    }


def of_bart(theirs: Tensors, config: ModelConfig) -> Tensors:
    """Return some of transformers' BART: both stacks, and cross attention."""
    heads = config.num_heads
    cross = theirs["model.decoder.layers.1.encoder_attn.k_proj.weight"]
    return {
        "encoder.blocks.0.attn.W_Q": by_head(theirs["model.encoder.layers.0.self_attn.q_proj.weight"], heads),
        "decoder.blocks.1.cross_attn.W_K": by_head(cross, heads),
        "decoder.blocks.1.ln_cross.b": theirs["model.decoder.layers.1.encoder_attn_layer_norm.bias"],
        "encoder.embed_norm.w": theirs["model.encoder.layernorm_embedding.weight"],
        "encoder.pos_embed.W_pos": theirs["model.encoder.embed_positions.weight"][config.position_offset :],
        "decoder.pos_embed.W_pos": theirs["model.decoder.embed_positions.weight"][config.position_offset :],
        "encoder.blocks.2.mlp.W_out": theirs["model.encoder.layers.2.fc2.weight"].T,
        "unembed.W_U": theirs["model.shared.weight"].T,
    }


def of_mixtral(theirs: Tensors, config: ModelConfig) -> Tensors:
    """Return the router and an expert of transformers' Mixtral."""
    at = "model.layers.0.mlp."
    gate, up = theirs[f"{at}experts.gate_up_proj"][2].chunk(2)
    return {
        "blocks.0.mlp.W_router": theirs[f"{at}gate.weight"].T,
        "blocks.0.mlp.experts.2.W_gate": gate.T,
        "blocks.0.mlp.experts.2.W_in": up.T,
        "blocks.0.mlp.experts.2.W_out": theirs[f"{at}experts.down_proj"][2].T,
    }


FAMILIES: dict[str, Callable[[Tensors, ModelConfig], Tensors]] = {
    "llama-gqa": of_llama, "gpt2": of_gpt2, "gemma2": of_gemma2, "olmo2": of_olmo2, "bart": of_bart,
    "mixtral": of_mixtral,
}  # fmt: skip


@pytest.mark.every_family
@pytest.mark.parametrize("name", FAMILIES)
def test_a_weight_is_the_parameter_of_transformers(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    config = read_config(folder)
    lookup = LiveWeights(load_model(folder, config, torch.float32, torch.device("cpu")))
    theirs: Any = tiny.theirs(folder, torch.float32)
    for full, expected in FAMILIES[name](theirs.state_dict(), config).items():
        found = WeightReader(lookup).named(find_weight(config, full))
        assert torch.equal(found, expected), full


@pytest.mark.every_family
@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "bert", "t5-gated-untied", "qwen2_moe", "gemma4"])
def test_every_name_of_the_list_is_there_in_its_shape_and_tells_how_it_is_kept(name: str) -> None:
    config, _, lookup = network(name)
    listed = list_weights(config)
    assert len({each.name for each in listed.weights}) == len(listed.weights)
    for each in listed.weights:
        assert WeightReader(lookup).named(each).shape == each.shape, each
        assert len(each.axes) == len(each.shape)
        assert (each.num_heads is not None) == (each.axes[0] in ("head", "kv_head"))
        assert lookup.stored_as(each.weight) in ("bfloat16", "float32"), each
    unembedding = next(each for each in listed.weights if each.name == "unembed.W_U")
    assert unembedding.tied_to == ("embed.W_E" if config.tie_word_embeddings else None)


@pytest.mark.every_family
@pytest.mark.parametrize("name", ["llama-llama3", "gemma3", "gpt_neox"])
def test_frequencies_of_a_rotation_turn_a_query_as_the_network_does(name: str) -> None:
    config, _, lookup = network(name)
    assert not [each for each in list_weights(config).weights if "rotary" in each.name]
    found = WeightReader(lookup).named(find_weight(config, "rotary_frequencies", 1)).double()
    rope = lookup._model.decoder.ropes[1]
    assert rope is not None
    cos, _ = rope.at(torch.tensor([3]))
    torch.testing.assert_close((3 * found).cos(), cos[0, 0, : len(found)].double(), rtol=0, atol=1e-6)
    with pytest.raises(UnknownMatrix, match="no weight 'rotary_frequencies'"):
        find_weight(network("gpt2")[0], "rotary_frequencies", 1)


def test_what_transformer_lens_has_no_name_for_is_told() -> None:
    config, *_ = network("qwen3_5")
    assert "delta_out.weight" in list_weights(config).not_listed
    assert not list_weights(network("llama-gqa")[0]).not_listed


def test_a_name_that_is_not_there_is_answered_with_near_ones() -> None:
    config, *_ = network("gpt2")
    for name, layer, told in (
        ("W_q", 0, r"layer 0 has no weight 'W_q'; similar names are .*W_"),
        ("W_Q", None, r"'attn.W_Q' exists in every block; set layer to a number from 0 to"),
        ("W_E", 1, r"'embed.W_E' is outside the blocks; leave out layer"),
        ("blocks.0.ln1.w", 1, r"names layer 0 but layer is 1"),
        ("ln1.w", 99, r"there is no layer 99"),
        ("w", 0, r"no weight 'w'"),
    ):
        with pytest.raises(UnknownMatrix, match=told):
            find_weight(config, name, layer)
    assert find_weight(config, "ln1.b", 1) == find_weight(config, "blocks.1.ln1.b")
    assert find_weight(config, "W_Q", 1) == find_weight(config, "attn.W_Q", 1)


def test_quantised_weights_of_a_gguf_file_are_dequantised_as_its_own_package_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    theirs = make_network("llama", attention_bias=False)
    write_gguf(theirs, "llama", Type.Q4_0, tmp_path / "a.gguf")
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    folder = resolve(str(tmp_path / "a.gguf"))
    config = read_config(folder)
    lookup = LiveWeights(load_model(folder, config, torch.float32, torch.device("cpu")))
    value = reader["blk.1.attn_v.weight"]
    values = gguf.quants.dequantize(value.data, value.tensor_type)
    found = WeightReader(lookup).named(find_weight(config, "W_V", 1), head=1)
    np.testing.assert_array_equal(found.numpy(), values[config.head_dim : 2 * config.head_dim].T)
    for full, expected in of_llama(dict(theirs.state_dict()), config, 2).items():  # with the numbers that the file has
        assert torch.equal(WeightReader(lookup).named(find_weight(config, full)), expected), full
    assert lookup.stored_as("layers.1.down.weight") == "4 bits, a scale for 32 inputs"
    assert lookup.stored_as("layers.1.ln1.gain") == "float32"


@pytest.mark.parametrize(
    ("quantize", "kept"), [("int8", "int8, a scale for each output"), ("int4", "4 bits, a scale for 16 inputs")]
)
def test_weights_quantised_on_load_are_told_as_they_are_kept(quantize: Any, kept: str, tmp_path: Path) -> None:
    folder = tiny.make_variant("llama-gqa", tmp_path)
    config = read_config(folder)
    plain = load_weights(folder, config, torch.float32)
    weights = {name: tensor.clone() for name, tensor in plain.items()}
    lookup = LiveWeights(build_model(config, weights, context=config.max_model_len, quantize=quantize))
    assert lookup.stored_as("layers.0.qkv.weight") == kept
    found = WeightReader(lookup).named(find_weight(config, "W_O", 0))
    exact = plain["layers.0.attn_out.weight"].T.reshape(found.shape)
    assert not torch.equal(found, exact)
    assert (found - exact).abs().max() <= exact.abs().max() / 8
