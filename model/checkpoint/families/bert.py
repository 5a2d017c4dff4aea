"""Reads BERT, RoBERTa (also XLM-RoBERTa and CamemBERT), DistilBERT (half the layers, no token types) and MPNet (a
position bias by distance, one table for all layers): encoders with a norm after each residual sum. Devlin et al. 2018,
arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; Conneau et al. 2019, arXiv:1911.02116; Martin et al. 2019,
arXiv:1911.03894; Sanh et al. 2019, arXiv:1910.01108; Song et al. 2020, arXiv:2004.09297.

The encoder and the heads for masked words and for classification are read, other heads are not. Positions count tokens.
transformers does not count padding; in RoBERTa and MPNet the results differ for a text that contains "<pad>".
"""

import re
from typing import Any

from lightwell.model.checkpoint.families.family import Common, Family
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.output_heads import (
    classifier_rows,
    first_token,
    masked_head_fields,
    masked_head_rows,
)
from lightwell.model.checkpoint.families.sizes import equal_heads, read_sizes
from lightwell.model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, separate_qkv
from lightwell.model.config import Activation, ModelConfig, PositionBiasConfig

HEADS = r"(cls|pooler|lm_head|classifier|qa_outputs|pre_classifier|score|dropout)\..*"
"""Names of the heads of an encoder: for masked words, labels, spans. Only those in a table are read."""
OLD_NORMS = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
"""Names of norms in the first checkpoints, such as bert-base-uncased, and their new names."""

_BLOCK = "encoder.layer.{i}"
EMBED_ROWS = (
    *linear("embed", "embeddings.word_embeddings", "vocab d"),
    *linear("token_type_embed", "embeddings.token_type_embeddings", "types d", when="num_token_types"),
)
ATTENTION_ROWS = (
    *separate_qkv(f"{_BLOCK}.attention.self.*", ("query", "key", "value"), bias=True),
    *linear("layers.{i}.attn_out", f"{_BLOCK}.attention.output.dense", "d q", bias=True),
    *norm("layers.{i}.attn_norm", f"{_BLOCK}.attention.output.LayerNorm", bias=True),
)
_POSITION_ROWS = (
    *linear("pos_embed", "embeddings.position_embeddings", "positions d"),
    *norm("embed_norm", "embeddings.LayerNorm", bias=True),
)
_MLP_ROWS = (
    *linear("layers.{i}.up", f"{_BLOCK}.intermediate.dense", "ff d", bias=True),
    *linear("layers.{i}.down", f"{_BLOCK}.output.dense", "d ff", bias=True),
    *norm("layers.{i}.mlp_norm", f"{_BLOCK}.output.LayerNorm", bias=True),
)
_ROWS = (*EMBED_ROWS, *_POSITION_ROWS, *ATTENTION_ROWS, *_MLP_ROWS)
LM_HEAD = masked_head_rows(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.decoder.bias|lm_head.bias"
)
"""The masked-word head's rows of RoBERTa and MPNet."""
PREDICTIONS = masked_head_rows(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.decoder.bias|cls.predictions.bias",
)
"""The masked-word head's rows of BERT."""
ENCODER_FIELDS: dict[str, Any] = {
    "kind": "encoder", "norm": "layernorm", "norm_placement": "post", "final_norm": False, "embedding_norm": True,
    "attention_bias": True, "attention_out_bias": True, "mlp_bias": True, "learned_positions": True, "causal": False,
}  # fmt: skip
POOLED = classifier_rows("classifier", "pooler.dense")
"""The classifier's rows of BERT: its dense layer is the pooler."""
LABELS = classifier_rows("classifier.out_proj", "classifier.dense")
"""The classifier's rows of RoBERTa and MPNet, with a dense layer of its own."""


def _table(prefix: str, head: tuple[WeightRow, ...], tied: str) -> WeightMap:
    # The buffer of position numbers was saved by transformers before 4.31.
    ignored = re.compile(rf"{HEADS}|embeddings\.(position|token_type)_ids")
    return WeightMap((*_ROWS, *head), prefixes=(prefix,), ignored=ignored, respelled=OLD_NORMS, tied_heads=(tied,))


_DISTILBERT_BLOCK = "transformer.layer.{i}"
_DISTILBERT_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *_POSITION_ROWS,
        *separate_qkv(f"{_DISTILBERT_BLOCK}.attention.*_lin", bias=True),
        *linear("layers.{i}.attn_out", f"{_DISTILBERT_BLOCK}.attention.out_lin", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{_DISTILBERT_BLOCK}.sa_layer_norm", bias=True),
        *linear("layers.{i}.up", f"{_DISTILBERT_BLOCK}.ffn.lin1", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_DISTILBERT_BLOCK}.ffn.lin2", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_DISTILBERT_BLOCK}.output_layer_norm", bias=True),
        *masked_head_rows("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
        *classifier_rows("classifier", "pre_classifier"),
    ),
    prefixes=("distilbert.",),
    ignored=re.compile(rf"{HEADS}|vocab_(transform|layer_norm|projector)\..*|embeddings\.position_ids"),
    respelled=OLD_NORMS,
    tied_heads=("vocab_projector.weight",),
)
_MPNET_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *_POSITION_ROWS,
        *linear("position_bias", "encoder.relative_attention_bias", "buckets heads"),
        *separate_qkv(f"{_BLOCK}.attention.attn.*", bias=True),
        *linear("layers.{i}.attn_out", f"{_BLOCK}.attention.attn.o", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{_BLOCK}.attention.LayerNorm", bias=True),
        *_MLP_ROWS,
        *LM_HEAD,
        *LABELS,
    ),
    prefixes=("mpnet.",),
    ignored=re.compile(rf"{HEADS}|embeddings\.position_ids"),
    tied_heads=("lm_head.decoder.weight",),
)


def read_like_bert(
    hf: Fields, common: Common, head_activation: Activation | None = None, **options: Any
) -> ModelConfig:
    """Read an encoder built on BERT. head_activation: of the masked-word head's dense layer, by default that of the
    mlps. options: the fields of ModelConfig that differ.
    """
    hf = hf.with_defaults(
        vocab_size=30522, hidden_size=768, num_attention_heads=12, num_hidden_layers=12, intermediate_size=3072,
        max_position_embeddings=512, layer_norm_eps=1e-12, hidden_act="gelu",
    )  # fmt: skip
    sizes = read_sizes(hf, equal_heads(hf))
    fields = {
        **sizes,
        **ENCODER_FIELDS,
        **masked_head_fields(hf, common, head_activation or sizes["activation"]),
        "norm_eps": hf.optional_number("layer_norm_eps"),
    }
    return ModelConfig(**common, **{**fields, **options})


def _read_with_positions(hf: Fields, common: Common, offset: int, **options: Any) -> ModelConfig:
    """Read BERT, RoBERTa or MPNet. offset: the row of position 0 in the position table."""
    hf.only("is_decoder", False)
    hf.only("add_cross_attention", False)
    hf.only("position_embedding_type", "absolute")
    max_model_len = hf.size("max_position_embeddings", 512) - offset
    return read_like_bert(hf, common, position_offset=offset, max_model_len=max_model_len, **options)


def _read_bert(hf: Fields, common: Common) -> ModelConfig:
    return _read_with_positions(hf, common, 0, num_token_types=hf.size("type_vocab_size", 2))


def _read_roberta(hf: Fields, common: Common) -> ModelConfig:
    offset = hf.integer("pad_token_id", 1) + 1  # the first position follows the padding's
    types = hf.size("type_vocab_size", 2)
    return _read_with_positions(hf, common, offset, head_activation="gelu", num_token_types=types)


def _read_distilbert(hf: Fields, common: Common) -> ModelConfig:
    # sinusoidal_pos_embds does not matter: the file has the position table.
    hf = hf.with_spellings(
        hidden_size="dim",
        num_attention_heads="n_heads",
        num_hidden_layers="n_layers",
        intermediate_size="hidden_dim",
        hidden_act="activation",
    ).with_defaults(num_hidden_layers=6)
    return read_like_bert(hf, common, norm_eps=1e-12)


def _read_mpnet(hf: Fields, common: Common) -> ModelConfig:
    # transformers buckets distances into 32 whatever the file says, and counts positions from 2 whatever the padding.
    hf.only("relative_attention_num_buckets", 32)
    bias = PositionBiasConfig(num_buckets=32, max_distance=128, bidirectional=True)
    return _read_with_positions(hf, common, 2, head_activation="gelu", position_bias=bias)


def named(prefix: str, *tasks: str) -> tuple[str, ...]:
    """Return the classes of transformers for an encoder without a head, and with each of these heads."""
    return tuple(f"{prefix}{task}" for task in ("Model", *tasks))


TASKS = (
    "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice",
)  # fmt: skip

BERT = Family(
    "bert",
    named("Bert", *TASKS, "ForPreTraining", "ForNextSentencePrediction"),
    _read_bert,
    _table("bert.", (*PREDICTIONS, *POOLED), "cls.predictions.decoder.weight"),
    read_classifier=first_token("tanh"),
)
ROBERTA = Family(
    "roberta",
    (*named("Roberta", *TASKS), *named("XLMRoberta", *TASKS), *named("Camembert", *TASKS)),
    _read_roberta,
    _table("roberta.", (*LM_HEAD, *LABELS), "lm_head.decoder.weight"),
    types=("roberta", "xlm-roberta", "camembert"),
    read_classifier=first_token("tanh"),
)
DISTILBERT = Family(
    "distilbert", named("DistilBert", *TASKS), _read_distilbert, _DISTILBERT_TABLE, read_classifier=first_token("relu")
)
MPNET = Family("mpnet", named("MPNet", *TASKS), _read_mpnet, _MPNET_TABLE, read_classifier=first_token("tanh"))
