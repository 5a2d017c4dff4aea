"""Reads GPT-NeoX and Pythia: attention and mlp in parallel, a part of each head rotated.

Black et al. 2022, arXiv:2204.06745.
"""

import re

from model.checkpoint.families.classifier import SCORE_ROWS
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, out_bias, qkv_bias, untied
from model.config import ModelConfig

_BLOCK = "gpt_neox.layers.{i}"
_TABLE = WeightMap(
    rows=(
        WeightRow("embed.weight", ("gpt_neox.embed_in.weight",), ("vocab d",)),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.input_layernorm", bias=True),
        *linear("layers.{i}.qkv", f"{_BLOCK}.attention.query_key_value", "qkv d", bias=qkv_bias, arrange="heads first"),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attention.dense", "d q", bias=out_bias),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.post_attention_layernorm", bias=True),
        *linear("layers.{i}.up", f"{_BLOCK}.mlp.dense_h_to_4h", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_BLOCK}.mlp.dense_4h_to_h", "d ff", bias=True),
        *norm("final_norm", "gpt_neox.final_layer_norm", bias=True),
        WeightRow("head.weight", ("embed_out.weight|lm_head.weight",), ("vocab d",), untied),
        *SCORE_ROWS,
    ),
    prefixes=("gpt_neox.",),
    # The causal mask, its fill value and the frequencies, saved as buffers by transformers before 4.32.
    ignored=re.compile(r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)"),
    tied_heads=("embed_out.weight", "lm_head.weight"),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads = equal_heads(hf)
    max_model_len = hf.size("max_position_embeddings", 2048)
    bias = hf.flag("attention_bias", True)
    # Its own names for two parameters of the rotary embedding, before transformers 5.
    renamed = {"rope_theta": hf.number("rotary_emb_base", 10000.0)} if "rope_theta" not in hf.values else {}
    return ModelConfig(
        **common,
        **heads.fields(),
        vocab_size=hf.size("vocab_size"),
        num_layers=hf.size("num_hidden_layers"),
        intermediate_size=hf.size("intermediate_size"),
        max_model_len=max_model_len,
        norm="layernorm",
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        parallel_blocks=hf.flag("use_parallel_residual", True),
        activation=hf.activation("hidden_act", "gelu"),
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=True,
        rope=read_rope(
            Fields({**renamed, **hf.values}, hf.file),
            heads.head_dim,
            max_model_len,
            partial=hf.number("rotary_pct", 0.25),
        ),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
    )


GPT_NEOX = Family("gpt_neox", ("GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"), ("gpt_neox",), _read, _TABLE)
