"""Reads DistilBERT: BERT with half the layers and no token types. Sanh et al. 2019, arXiv:1910.01108."""

import re

from model.checkpoint.families.bert import ENCODER_FIELDS, HEADS, OLD_NORMS, TASKS, named
from model.checkpoint.families.classifier import classifier_rows, first_token
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
from model.checkpoint.families.masked_head import masked_head_fields, masked_head_rows
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, separate_qkv
from model.config import ModelConfig

_BLOCK = "transformer.layer.{i}"
_TABLE = WeightMap(
    rows=(
        WeightRow("embed.weight", ("embeddings.word_embeddings.weight",), ("vocab d",)),
        WeightRow("pos_embed.weight", ("embeddings.position_embeddings.weight",), ("positions d",)),
        *norm("embed_norm", "embeddings.LayerNorm", bias=True),
        *separate_qkv(f"{_BLOCK}.attention.*_lin", bias=True),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attention.out_lin", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.sa_layer_norm", bias=True),
        *linear("layers.{i}.up", f"{_BLOCK}.ffn.lin1", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_BLOCK}.ffn.lin2", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.output_layer_norm", bias=True),
        *masked_head_rows("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
        *classifier_rows("classifier", "pre_classifier"),
    ),
    prefixes=("distilbert.",),
    ignored=re.compile(rf"{HEADS}|vocab_(transform|layer_norm|projector)\..*|embeddings\.position_ids"),
    respelled=OLD_NORMS,
    tied_heads=("vocab_projector.weight",),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    activation = hf.activation("activation", "gelu")
    heads = equal_heads(hf, "dim", "n_heads", defaults=(768, 12))
    # sinusoidal_pos_embds only says how the position table was made; the file has the table.
    return ModelConfig(
        **common,
        **heads.fields(),
        **ENCODER_FIELDS,
        **masked_head_fields(hf, common, activation),
        vocab_size=hf.size("vocab_size", 30522),
        num_layers=hf.size("n_layers", 6),
        intermediate_size=hf.size("hidden_dim", 3072),
        max_model_len=hf.size("max_position_embeddings", 512),
        norm_eps=1e-12,
        activation=activation,
    )


DISTILBERT = Family(
    "distilbert",
    named("DistilBert", *TASKS),
    ("distilbert",),
    _read,
    _TABLE,
    read_classifier=first_token("relu"),
)
