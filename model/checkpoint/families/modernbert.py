"""Reads ModernBERT: an encoder with rotary positions, a gated mlp, and a window in two layers of three. Warner et al.
2024, arXiv:2412.13663.
"""

import re
from operator import attrgetter

from model.checkpoint.families.bert import TASKS, named
from model.checkpoint.families.classifier import classifier_rows, read_labels, read_problem_type
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
from model.checkpoint.families.masked_head import masked_head_fields, masked_head_rows, names_masked_head
from model.checkpoint.families.rotary import read_local_and_global_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, mlp_bias, norm, out_bias, qkv_bias
from model.config import ClassifierConfig, ModelConfig

_BLOCK = "model.layers.{i}"
_norm_bias = attrgetter("norm_bias")
_TABLE = WeightMap(
    rows=(
        WeightRow("embed.weight", ("model.embeddings.tok_embeddings.weight",), ("vocab d",)),
        *norm("embed_norm", "model.embeddings.norm", bias=_norm_bias),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.attn_norm", bias=_norm_bias, first_layer=1),
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
    heads = equal_heads(hf, defaults=(768, 12))
    num_layers, max_model_len = hf.size("num_hidden_layers", 22), hf.size("max_position_embeddings", 8192)
    every = hf.size("global_attn_every_n_layers", 3)
    has_window = hf.windowed_layers([i % every > 0 for i in range(num_layers)])
    window = hf.size("local_attention", 128) // 2 + 1  # as many tokens on either side, and the query's own
    global_theta = hf.number("global_rope_theta", 160_000.0)
    local_theta = hf.nullable_number("local_rope_theta", 10_000.0) or global_theta
    global_rope, local_rope = read_local_and_global_rope(
        hf,
        heads.head_dim,
        max_model_len,
        {"full_attention": global_theta, "sliding_attention": local_theta},
        scale_both=True,
    )
    bias = hf.flag("attention_bias", False)
    return ModelConfig(
        **common,
        **heads.fields(),
        kind="encoder",
        vocab_size=hf.size("vocab_size", 50368),
        num_layers=num_layers,
        intermediate_size=hf.size("intermediate_size", 1152),
        max_model_len=max_model_len,
        norm="layernorm",
        norm_eps=hf.number("norm_eps", 1e-5),
        norm_bias=hf.flag("norm_bias", False),
        embedding_norm=True,
        first_attention_norm=False,
        activation=hf.activation("hidden_activation", "gelu"),
        gated_mlp=True,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=hf.flag("mlp_bias", False),
        rope=global_rope,
        local_rope=local_rope,
        **masked_head_fields(
            hf,
            common,
            hf.activation("classifier_activation", "gelu") if names_masked_head(common) else "gelu",
            transform_bias=hf.flag("classifier_bias", False),
            bias=hf.flag("decoder_bias", True),
        ),
        causal=False,
        sliding_windows=tuple(window if windowed else None for windowed in has_window),
    )


def _read_classifier(hf: Fields) -> ClassifierConfig:
    pooling = hf.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise hf.refuse("classifier_pooling", "cls and mean are supported")
    return ClassifierConfig(
        labels=read_labels(hf),
        problem_type=read_problem_type(hf),
        state="cls" if pooling == "cls" else "mean",
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
