"""Reads GPT-2. Radford et al. 2019, "Language models are unsupervised multitask learners"."""

import re

from model.checkpoint.families.classifier import SCORE_ROWS
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, untied
from model.config import ModelConfig

_BLOCK = "transformer.h.{i}"
_TABLE = WeightMap(
    rows=(
        WeightRow("embed.weight", ("transformer.wte.weight",), ("vocab d",)),
        WeightRow("pos_embed.weight", ("transformer.wpe.weight",), ("positions d",)),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.ln_1", bias=True),
        # Its Conv1D keeps a matrix as [in, out].
        *linear("layers.{i}.qkv", f"{_BLOCK}.attn.c_attn", "d qkv", bias=True, arrange="transpose"),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attn.c_proj", "q d", bias=True, arrange="transpose"),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.ln_2", bias=True),
        *linear("layers.{i}.up", f"{_BLOCK}.mlp.c_fc", "d ff", bias=True, arrange="transpose"),
        *linear("layers.{i}.down", f"{_BLOCK}.mlp.c_proj", "ff d", bias=True, arrange="transpose"),
        *norm("final_norm", "transformer.ln_f", bias=True),
        WeightRow("head.weight", ("lm_head.weight",), ("vocab d",), untied),
        *SCORE_ROWS,
    ),
    prefixes=("transformer.",),
    # The causal mask and its fill value, saved as buffers by transformers before 4.30.
    ignored=re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads = equal_heads(hf, "n_embd", "n_head", defaults=(768, 12))
    sizes = heads.fields()
    if not hf.flag("scale_attn_weights", True):
        sizes["attention_scale"] = 1.0
    # Softmax in float32 is what we do anyway; a scale that differs by layer and cross-attention are not built.
    hf.only("scale_attn_by_inverse_layer_idx", False)
    hf.only("add_cross_attention", False)
    return ModelConfig(
        **common,
        **sizes,
        vocab_size=hf.size("vocab_size", 50257),
        num_layers=hf.size("n_layer", 12),
        intermediate_size=hf.size("n_inner", 4 * heads.hidden_size),
        max_model_len=hf.size("n_positions", 1024),
        norm="layernorm",
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation=hf.activation("activation_function", "gelu_new"),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        learned_positions=True,
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
    )


GPT2 = Family("gpt2", ("GPT2LMHeadModel", "GPT2ForSequenceClassification"), ("gpt2",), _read, _TABLE)
