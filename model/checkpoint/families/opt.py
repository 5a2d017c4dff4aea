"""Reads OPT. Zhang et al. 2022, arXiv:2205.01068. OPT-350m norms after each sublayer and embeds in fewer dimensions."""

import re
from operator import attrgetter

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.sizes import equal_heads, read_sizes
from model.checkpoint.families.weight_table import (
    WeightMap,
    has,
    linear,
    mlp_bias,
    norm,
    out_bias,
    qkv_bias,
    separate_qkv,
    untied,
)
from model.config import ModelConfig

_projects = has("embedding_size")
_TOP, _BLOCK = "model.decoder", "model.decoder.layers.{i}"
_TABLE = WeightMap(
    rows=(
        *linear("embed", f"{_TOP}.embed_tokens", "vocab embedding"),
        *linear("embed_in", f"{_TOP}.project_in", "d embedding", when=_projects),
        *linear("pos_embed", f"{_TOP}.embed_positions", "positions d"),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.self_attn_layer_norm", bias=True),
        *separate_qkv(f"{_BLOCK}.self_attn.*_proj", bias=qkv_bias),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.self_attn.out_proj", "d q", bias=out_bias),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.final_layer_norm", bias=True),
        *linear("layers.{i}.up", f"{_BLOCK}.fc1", "ff d", bias=mlp_bias),
        *linear("layers.{i}.down", f"{_BLOCK}.fc2", "d ff", bias=mlp_bias),
        *norm("final_norm", f"{_TOP}.final_layer_norm", bias=True, when=attrgetter("final_norm")),
        *linear("embed_out", f"{_TOP}.project_out", "embedding d", when=_projects),
        *linear("head", "lm_head", "vocab embedding", when=untied),
    ),
    prefixes=("model.decoder.", "decoder.", "model."),
    ignored=re.compile("version"),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(intermediate_size="ffn_dim", hidden_act="activation_function").with_defaults(
        max_position_embeddings=2048, hidden_act="relu", tie_word_embeddings=True
    )
    sizes = read_sizes(hf, equal_heads(hf))
    hf.only("layer_norm_elementwise_affine", True)
    before, bias = hf.flag("do_layer_norm_before", True), hf.flag("enable_bias", True)
    embedding_size = hf.size("word_embed_proj_dim", sizes["hidden_size"])
    return ModelConfig(
        **common,
        **sizes,
        norm="layernorm",
        norm_eps=1e-5,
        norm_placement="pre" if before else "post",
        final_norm=before and not hf.flag("_remove_final_layer_norm", False),
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        learned_positions=True,
        position_offset=2,
        embedding_size=None if embedding_size == sizes["hidden_size"] else embedding_size,
    )


OPT = Family("opt", ("OPTForCausalLM",), ("opt",), _read, _TABLE)
