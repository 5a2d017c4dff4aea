"""Reads GPT-2. Radford et al. 2019, "Language models are unsupervised multitask learners"."""

import re

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.output_heads import SCORE_ROWS
from model.checkpoint.families.sizes import equal_heads, read_sizes
from model.checkpoint.families.weight_table import WeightMap, linear, norm, untied
from model.config import ModelConfig

_BLOCK = "transformer.h.{i}"
_TABLE = WeightMap(
    rows=(
        *linear("embed", "transformer.wte", "vocab d"),
        *linear("pos_embed", "transformer.wpe", "positions d"),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.ln_1", bias=True),
        # Matrices are [in, out] (Conv1D).
        *linear("layers.{i}.qkv", f"{_BLOCK}.attn.c_attn", "d qkv", bias=True, arrange="transpose"),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attn.c_proj", "q d", bias=True, arrange="transpose"),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.ln_2", bias=True),
        *linear("layers.{i}.up", f"{_BLOCK}.mlp.c_fc", "d ff", bias=True, arrange="transpose"),
        *linear("layers.{i}.down", f"{_BLOCK}.mlp.c_proj", "ff d", bias=True, arrange="transpose"),
        *norm("final_norm", "transformer.ln_f", bias=True),
        *linear("head", "lm_head", "vocab d", when=untied),
        *SCORE_ROWS,
    ),
    prefixes=("transformer.",),
    # The causal mask and its fill value, saved as buffers by transformers before 4.30.
    ignored=re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(
        hidden_size="n_embd",
        num_attention_heads="n_head",
        num_hidden_layers="n_layer",
        intermediate_size="n_inner",
        max_position_embeddings="n_positions",
        hidden_act="activation_function",
    ).with_defaults(
        vocab_size=50257,
        hidden_size=768,
        num_attention_heads=12,
        num_hidden_layers=12,
        max_position_embeddings=1024,
        hidden_act="gelu_new",
        tie_word_embeddings=True,
    )
    sizes = read_sizes(hf.with_defaults(intermediate_size=4 * hf.size("hidden_size")), equal_heads(hf))
    if not hf.flag("scale_attn_weights", True):
        sizes["attention_scale"] = 1.0
    # Softmax is in float32 for every file. A scale that differs by layer and cross-attention are not built.
    hf.only("scale_attn_by_inverse_layer_idx", False)
    hf.only("add_cross_attention", False)
    return ModelConfig(
        **common,
        **sizes,
        norm="layernorm",
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        learned_positions=True,
    )


GPT2 = Family("gpt2", ("GPT2LMHeadModel", "GPT2ForSequenceClassification"), ("gpt2",), _read, _TABLE)
