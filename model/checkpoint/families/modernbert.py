"""Reads ModernBERT: an encoder with rotary positions, a gated mlp, and a window in two layers of three. Warner et al.
2024, arXiv:2412.13663.
"""

import re
from operator import attrgetter

from model.checkpoint.families.bert import TASKS, named
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.output_heads import (
    classifier_rows,
    masked_head_fields,
    masked_head_rows,
    names_masked_head,
    read_classifier,
)
from model.checkpoint.families.rotary import read_local_and_global_rope
from model.checkpoint.families.sizes import equal_heads, read_sizes
from model.checkpoint.families.weight_table import WeightMap, in_layers, linear, mlp_bias, norm, out_bias, qkv_bias
from model.config import ClassifierConfig, ModelConfig

_BLOCK = "model.layers.{i}"
_norm_bias = attrgetter("norm_bias")
_TABLE = WeightMap(
    rows=(
        *linear("embed", "model.embeddings.tok_embeddings", "vocab d"),
        *norm("embed_norm", "model.embeddings.norm", bias=_norm_bias),
        *in_layers(
            lambda config, layer: layer > 0, *norm("layers.{i}.attn_norm", f"{_BLOCK}.attn_norm", bias=_norm_bias)
        ),
        *linear("layers.{i}.qkv", f"{_BLOCK}.attn.Wqkv", "qkv d", bias=qkv_bias),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attn.Wo", "d q", bias=out_bias),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.mlp_norm", bias=_norm_bias),
        *linear("layers.{i}.gate_up", f"{_BLOCK}.mlp.Wi", "2ff d", bias=mlp_bias),  # the activated half comes first
        *linear("layers.{i}.down", f"{_BLOCK}.mlp.Wo", "d ff", bias=mlp_bias),
        *norm("final_norm", "model.final_norm", bias=_norm_bias),
        *masked_head_rows("head.dense", "head.norm", "decoder", "decoder.bias"),
        *classifier_rows("classifier", "head.dense", "head.norm"),
    ),
    prefixes=("model.",),
    ignored=re.compile(r"(head|decoder|classifier|drop)\..*"),
    tied_heads=("decoder.weight",),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(hidden_act="hidden_activation").with_defaults(
        vocab_size=50368,
        hidden_size=768,
        num_attention_heads=12,
        num_hidden_layers=22,
        intermediate_size=1152,
        max_position_embeddings=8192,
        hidden_act="gelu",
    )
    sizes, every = read_sizes(hf, equal_heads(hf)), hf.size("global_attn_every_n_layers", 3)
    has_window = hf.windowed_layers([i % every > 0 for i in range(sizes["num_layers"])])
    window = hf.size("local_attention", 128) // 2 + 1  # as many tokens on either side, and the query's own
    global_theta = hf.number("global_rope_theta", 160_000.0)
    local_theta = hf.nullable_number("local_rope_theta", 10_000.0) or global_theta
    thetas = {"full_attention": global_theta, "sliding_attention": local_theta}
    global_rope, local_rope = read_local_and_global_rope(
        hf, sizes["head_dim"], sizes["max_model_len"], thetas, scale_both=True
    )
    bias, head_activation = hf.flag("attention_bias", False), sizes["activation"]
    if names_masked_head(common):
        head_activation = hf.activation("classifier_activation", "gelu")
    head = masked_head_fields(
        hf,
        common,
        head_activation,
        transform_bias=hf.flag("classifier_bias", False),
        bias=hf.flag("decoder_bias", True),
    )
    return ModelConfig(
        **common,
        **{**sizes, **head},
        kind="encoder",
        norm="layernorm",
        norm_eps=hf.number("norm_eps", 1e-5),
        norm_bias=hf.flag("norm_bias", False),
        embedding_norm=True,
        first_attention_norm=False,
        gated_mlp=True,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=hf.flag("mlp_bias", False),
        rope=global_rope,
        local_rope=local_rope,
        causal=False,
        sliding_windows=tuple(window if windowed else None for windowed in has_window),
    )


def _read_classifier(hf: Fields) -> ClassifierConfig:
    pooling = hf.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise hf.refuse("classifier_pooling", "cls and mean are supported")
    return read_classifier(
        hf,
        state=pooling,
        dense=hf.activation("classifier_activation", "gelu"),
        dense_bias=hf.flag("classifier_bias", False),
        norm=True,
        norm_bias=hf.flag("norm_bias", False),
    )


MODERNBERT = Family(
    "modernbert",
    named("ModernBert", *TASKS),
    ("modernbert",),
    _read,
    _TABLE,
    read_classifier=_read_classifier,
)
