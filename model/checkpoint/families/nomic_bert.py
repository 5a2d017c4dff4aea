"""Reads Nomic BERT: a BERT with rotary positions, gated feed-forwards and no biases outside its norms (Nussbaum et al.
2024, arXiv:2402.01613). Its config.json is spelt as GPT-2's is, or as transformers writes it, whose head has biases.
"""

import re

from model.checkpoint.families.bert import ENCODER_FIELDS, HEADS, POOLED, named
from model.checkpoint.families.classifier import first_token
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
from model.checkpoint.families.masked_head import masked_head_fields, masked_head_rows
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm
from model.config import ModelConfig

_BLOCK = "encoder.layers.{i}"
_TABLE = WeightMap(
    rows=(
        WeightRow("embed.weight", ("embeddings.word_embeddings.weight",), ("vocab d",)),
        WeightRow("token_type_embed.weight", ("embeddings.token_type_embeddings.weight",), ("types d",)),
        *norm("embed_norm", "emb_ln", bias=True),
        *linear("layers.{i}.qkv", f"{_BLOCK}.attn.Wqkv", "qkv d"),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attn.out_proj", "d q"),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.norm1", bias=True),
        *linear("layers.{i}.gate_up", (f"{_BLOCK}.mlp.fc12", f"{_BLOCK}.mlp.fc11"), ("ff d", "ff d")),
        *linear("layers.{i}.down", f"{_BLOCK}.mlp.fc2", "d ff"),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.norm2", bias=True),
        *masked_head_rows(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.layer_norm",
            "cls.predictions.decoder",
            "cls.predictions.decoder.bias|cls.predictions.bias",
        ),
        *POOLED,
    ),
    prefixes=("nomic_bert.", "bert."),
    ignored=re.compile(HEADS),
    tied_heads=("cls.predictions.decoder.weight",),
)
_OLD_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
}
"""Fields as transformers writes them, and as the first checkpoints spell them."""
_UNLIKE_BERT = ("attention_bias", "attention_out_bias", "mlp_bias", "learned_positions")
_BUILT = {
    "activation_function": "swiglu",
    "causal": False,
    "prenorm": False,
    "parallel_block": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "num_experts": 0,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "use_rms_norm": False,
}
"""Options of the first checkpoints, and the one value of each that is built."""


def _read(hf: Fields, common: Common) -> ModelConfig:
    for option, value in _BUILT.items():
        hf.only(option, value)
    names = {name: old if old in hf.values else name for name, old in _OLD_NAMES.items()}
    heads = equal_heads(hf, names["hidden_size"], names["num_attention_heads"], defaults=(768, 12))
    hf.only("head_dim", heads.head_dim)
    # A rotary embedding that would be stretched beyond the trained length is left as it is up to there.
    is_stretched = hf.optional_number("rotary_scaling_factor") is not None
    length = hf.size("max_trained_positions" if is_stretched else "n_positions", 2048)
    max_model_len = hf.size("max_position_embeddings", length)
    theta = hf.number("rotary_emb_base", 1000.0)
    activation, is_first = hf.activation("hidden_act", "silu"), "n_embd" in hf.values
    return ModelConfig(
        **common,
        **heads.fields(),
        **{**ENCODER_FIELDS, **dict.fromkeys(_UNLIKE_BERT, False)},
        **masked_head_fields(hf, common, activation, transform_bias=not is_first, bias=not is_first),
        vocab_size=hf.size("vocab_size", 30528),
        num_layers=hf.size(names["num_hidden_layers"], 12),
        intermediate_size=hf.size(names["intermediate_size"], 3072),
        max_model_len=max_model_len,
        norm_eps=hf.number(names["layer_norm_eps"], 1e-12),
        activation=activation,
        gated_mlp=True,
        rope=read_rope(Fields({"rope_theta": theta, **hf.values}, hf.file), heads.head_dim, max_model_len),
        num_token_types=hf.size("type_vocab_size", 2),
    )


NOMIC_BERT = Family(
    "nomic_bert",
    named("NomicBert", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"),
    ("nomic_bert",),
    _read,
    _TABLE,
    read_classifier=first_token("tanh"),
)
