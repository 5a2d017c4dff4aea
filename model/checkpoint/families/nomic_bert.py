"""Reads Nomic BERT: a BERT with rotary positions, gated mlps and no biases outside its norms (Nussbaum et al. 2024,
arXiv:2402.01613). Its config.json has the names of GPT-2, or those of transformers, where the head has biases.
"""

import re

from model.checkpoint.families.bert import EMBED_ROWS, HEADS, POOLED, named, read_like_bert
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.output_heads import first_token, masked_head_fields, masked_head_rows
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.sizes import equal_heads
from model.checkpoint.families.weight_table import WeightMap, linear, norm
from model.config import ModelConfig

_BLOCK = "encoder.layers.{i}"
_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
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
_SPELLINGS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "intermediate_size": ("n_inner", "intermediate_size"),
    "layer_norm_eps": ("layer_norm_epsilon", "layer_norm_eps"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
}
"""Names of fields in the first checkpoints and in transformers."""
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
"""Options of the first checkpoints, and the only supported value of each."""


def _read(hf: Fields, common: Common) -> ModelConfig:
    for option, value in _BUILT.items():
        hf.only(option, value)
    is_first = "n_embd" in hf.values
    hf = hf.with_spellings(**_SPELLINGS).with_defaults(
        vocab_size=30528, hidden_size=768, num_attention_heads=12, hidden_act="silu", rope_theta=1000.0
    )
    head_dim = equal_heads(hf)["head_dim"]
    hf.only("head_dim", head_dim)
    # A rotary embedding that would be stretched beyond the trained length is left as it is up to there.
    is_stretched = hf.optional_number("rotary_scaling_factor") is not None
    length = hf.size("max_trained_positions" if is_stretched else "n_positions", 2048)
    max_model_len = hf.size("max_position_embeddings", length)
    activation = hf.activation("hidden_act")
    return read_like_bert(
        hf,
        common,
        **masked_head_fields(hf, common, activation, transform_bias=not is_first, bias=not is_first),
        max_model_len=max_model_len,
        gated_mlp=True,
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
        learned_positions=False,
        rope=read_rope(hf, head_dim, max_model_len),
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
