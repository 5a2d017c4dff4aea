"""Reads Jina's encoders. Version 2 is a BERT with symmetric ALiBi in place of a position table, and gated mlps
(Guenther et al. 2023, arXiv:2310.19923). Version 3 is an XLM-RoBERTa with rotary positions, as transformers writes it
(Sturua et al. 2024, arXiv:2409.10173).

The code of version 2 is in no release of transformers. It is not run: only its config.json and tensors are read.
"""

import re

from model.checkpoint.families.bert import (
    ATTENTION_ROWS,
    EMBED_ROWS,
    HEADS,
    LABELS,
    LM_HEAD,
    POOLED,
    PREDICTIONS,
    TASKS,
    named,
    read_like_bert,
)
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.output_heads import first_token
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.sizes import equal_heads
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


def _read_2(hf: Fields, common: Common) -> ModelConfig:
    hf.only("position_embedding_type", "alibi")
    hf.only("is_decoder", False)
    hf.only("add_cross_attention", False)
    if any(_OTHER_CODE in str(code) for code in hf.nested("auto_map").values.values()):
        raise hf.refuse("auto_map", f"networks of {_OTHER_CODE}, which norm queries and keys, are not supported")
    gate = hf.text("feed_forward_type", "original")
    if gate not in _GATES:
        raise ModelLoadError(f"{hf.file}: feed_forward_type is {gate!r}; supported are {', '.join(_GATES)}")
    return read_like_bert(
        hf,
        common,
        hf.activation("hidden_act", "gelu"),
        activation=_GATES[gate],
        gated_mlp=True,
        mlp_bias=False,
        alibi=True,
        learned_positions=False,
        num_token_types=hf.size("type_vocab_size", 2),
    )


def _read_3(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(
        vocab_size=250_002,
        hidden_size=1024,
        num_attention_heads=16,
        num_hidden_layers=24,
        intermediate_size=4096,
        max_position_embeddings=8194,
        layer_norm_eps=1e-5,
        rope_theta=20000.0,
    )
    head_dim = equal_heads(hf)["head_dim"]
    hf.only("head_dim", head_dim)
    return read_like_bert(
        hf,
        common,
        "gelu",  # whatever the mlps have
        rope=read_rope(hf, head_dim, hf.size("max_position_embeddings")),
        learned_positions=False,
        num_token_types=hf.size("type_vocab_size", 1),
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
