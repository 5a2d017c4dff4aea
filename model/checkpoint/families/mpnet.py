"""Reads MPNet: BERT with a position bias by distance, one table for all layers. Song et al. 2020, arXiv:2004.09297."""

import re

from model.checkpoint.families.bert import HEADS, LABELS, LM_HEAD, TASKS, named, read_encoder
from model.checkpoint.families.classifier import first_token
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, separate_qkv
from model.config import ModelConfig, PositionBiasConfig

_BLOCK = "encoder.layer.{i}"
_TABLE = WeightMap(
    rows=(
        WeightRow("embed.weight", ("embeddings.word_embeddings.weight",), ("vocab d",)),
        WeightRow("pos_embed.weight", ("embeddings.position_embeddings.weight",), ("positions d",)),
        *norm("embed_norm", "embeddings.LayerNorm", bias=True),
        WeightRow("position_bias.weight", ("encoder.relative_attention_bias.weight",), ("buckets heads",)),
        *separate_qkv(f"{_BLOCK}.attention.attn.*", bias=True),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attention.attn.o", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.attention.LayerNorm", bias=True),
        *linear("layers.{i}.up", f"{_BLOCK}.intermediate.dense", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_BLOCK}.output.dense", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.output.LayerNorm", bias=True),
        *LM_HEAD,
        *LABELS,
    ),
    prefixes=("mpnet.",),
    ignored=re.compile(rf"{HEADS}|embeddings\.position_ids"),
    tied_heads=("lm_head.decoder.weight",),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    # transformers buckets distances into 32 whatever the file says, and counts positions from 2 whatever the padding.
    hf.only("relative_attention_num_buckets", 32)
    bias = PositionBiasConfig(num_buckets=32, max_distance=128, bidirectional=True)
    return read_encoder(hf, common, 2, position_bias=bias)


MPNET = Family("mpnet", named("MPNet", *TASKS), ("mpnet",), _read, _TABLE, read_classifier=first_token("tanh"))
