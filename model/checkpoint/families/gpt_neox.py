"""Reads GPT-NeoX and Pythia: attention and mlp in parallel, a part of each head rotated.

Black et al. 2022, arXiv:2204.06745.
"""

import re

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.output_heads import SCORE_ROWS
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.sizes import equal_heads, read_sizes
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, out_bias, qkv_bias, untied
from model.config import ModelConfig

_BLOCK = "gpt_neox.layers.{i}"
_TABLE = WeightMap(
    rows=(
        *linear("embed", "gpt_neox.embed_in", "vocab d"),
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
    hf = hf.with_spellings(
        rope_theta=("rope_theta", "rotary_emb_base"), partial_rotary_factor=("partial_rotary_factor", "rotary_pct")
    ).with_defaults(max_position_embeddings=2048, hidden_act="gelu", partial_rotary_factor=0.25)
    sizes, bias = read_sizes(hf, equal_heads(hf)), hf.flag("attention_bias", True)
    return ModelConfig(
        **common,
        **sizes,
        norm="layernorm",
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        parallel_blocks=hf.flag("use_parallel_residual", True),
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=True,
        rope=read_rope(hf, sizes["head_dim"], sizes["max_model_len"]),
    )


GPT_NEOX = Family("gpt_neox", ("GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"), ("gpt_neox",), _read, _TABLE)
