"""Reads Jina's encoders. Version 2 is a BERT whose scores sink with the distance, on both sides alike (ALiBi), in place
of positions in its embedding, and whose feed-forwards are gated (Guenther et al. 2023, arXiv:2310.19923). Version 3 is
an XLM-RoBERTa with rotary positions, as transformers writes it (Sturua et al. 2024, arXiv:2409.10173).

The code of version 2 is in no release of transformers; it is never run, and only its config.json and tensors are read.
"""

import re
from typing import Any

from model.checkpoint.families.bert import (
    ATTENTION_ROWS,
    EMBED_ROWS,
    ENCODER_FIELDS,
    HEADS,
    LABELS,
    LM_HEAD,
    POOLED,
    PREDICTIONS,
    TASKS,
    named,
)
from model.checkpoint.families.classifier import first_token
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import HeadCounts, equal_heads
from model.checkpoint.families.masked_head import masked_head_fields
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import WeightMap, linear, norm
from model.checkpoint.folder import ModelLoadError
from model.config import Activation, ModelConfig

_BLOCK = "encoder.layer.{i}"
_TABLE_2 = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("embed_norm", "embeddings.LayerNorm", bias=True),
        *ATTENTION_ROWS,
        *linear("layers.{i}.gate_up", f"{_BLOCK}.mlp.gated_layers", "2ff d"),
        *linear("layers.{i}.down", f"{_BLOCK}.mlp.wo", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_BLOCK}.mlp.layernorm", bias=True),
        *PREDICTIONS,
        *POOLED,
    ),
    prefixes=("bert.",),
    ignored=re.compile(rf"{HEADS}|embeddings\.position_ids|encoder\.alibi"),
    tied_heads=("cls.predictions.decoder.weight",),
)
_LAYER = "encoder.layers.{i}"
_TABLE_3 = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("embed_norm", "emb_ln", bias=True),
        *linear("layers.{i}.qkv", f"{_LAYER}.mixer.Wqkv", "qkv d", bias=True),
        *linear("layers.{i}.attn_out", f"{_LAYER}.mixer.out_proj", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{_LAYER}.norm1", bias=True),
        *linear("layers.{i}.up", f"{_LAYER}.mlp.fc1", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_LAYER}.mlp.fc2", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_LAYER}.norm2", bias=True),
        *LM_HEAD,
        *LABELS,
    ),
    prefixes=("roberta.",),
    ignored=re.compile(HEADS),
    tied_heads=("lm_head.decoder.weight",),
)
_GATES: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
_OTHER_CODE = "jina-bert-v2-qk-post-norm"


def _read(
    hf: Fields, common: Common, heads: HeadCounts, head_activation: Activation, num_token_types: int, **options: Any
) -> ModelConfig:
    """Read the fields that both versions share; `num_token_types` is for files that do not say."""
    shared = {
        **ENCODER_FIELDS,
        **masked_head_fields(hf, common, head_activation),
        "learned_positions": False,
        "num_token_types": hf.size("type_vocab_size", num_token_types),
    }
    return ModelConfig(**common, **heads.fields(), **{**shared, **options})


def _read_2(hf: Fields, common: Common) -> ModelConfig:
    hf.only("position_embedding_type", "alibi")
    hf.only("is_decoder", False)
    hf.only("add_cross_attention", False)
    if any(_OTHER_CODE in str(code) for code in hf.nested("auto_map").values.values()):
        raise hf.refuse("auto_map", f"networks of {_OTHER_CODE}, which norm queries and keys, are not supported")
    gate = hf.text("feed_forward_type", "original")
    if gate not in _GATES:
        raise ModelLoadError(f"{hf.file}: feed_forward_type is {gate!r}; supported are {', '.join(_GATES)}")
    return _read(
        hf,
        common,
        equal_heads(hf, defaults=(768, 12)),
        hf.activation("hidden_act", "gelu"),
        2,
        vocab_size=hf.size("vocab_size", 30522),
        num_layers=hf.size("num_hidden_layers", 12),
        intermediate_size=hf.size("intermediate_size", 3072),
        max_model_len=hf.size("max_position_embeddings", 512),
        norm_eps=hf.number("layer_norm_eps", 1e-12),
        activation=_GATES[gate],
        gated_mlp=True,
        mlp_bias=False,
        alibi=True,
    )


def _read_3(hf: Fields, common: Common) -> ModelConfig:
    heads, max_model_len = equal_heads(hf, defaults=(1024, 16)), hf.size("max_position_embeddings", 8194)
    hf.only("head_dim", heads.head_dim)
    return _read(
        hf,
        common,
        heads,
        "gelu",  # of the head, whatever the blocks have
        1,
        vocab_size=hf.size("vocab_size", 250_002),
        num_layers=hf.size("num_hidden_layers", 24),
        intermediate_size=hf.size("intermediate_size", 4096),
        max_model_len=max_model_len,
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        activation=hf.activation("hidden_act", "gelu"),
        rope=read_rope(hf, heads.head_dim, max_model_len, theta=20000.0),
    )


JINA_BERT = Family("jina_bert", named("JinaBert", *TASKS), (), _read_2, _TABLE_2, read_classifier=first_token("tanh"))
JINA_EMBEDDINGS_3 = Family(
    "jina_embeddings_v3",
    named("JinaEmbeddingsV3", *(task for task in TASKS if task != "ForMultipleChoice")),
    ("jina_embeddings_v3",),
    _read_3,
    _TABLE_3,
    read_classifier=first_token("tanh"),
)
