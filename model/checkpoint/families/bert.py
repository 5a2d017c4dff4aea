"""Reads BERT and RoBERTa (also XLM-RoBERTa and CamemBERT): encoders with a norm after each residual sum. Devlin et al.
2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; Conneau et al. 2019, arXiv:1911.02116; Martin et al. 2019,
arXiv:1911.03894.

The encoder is read, and the heads that fill in masked words or label a whole input; other heads are left out. Positions
count tokens. transformers does not count padding, and in RoBERTa and MPNet that makes a difference in one case: a text
that spells the padding token out, as "<pad>".
"""

import re
from operator import attrgetter
from typing import Any

from model.checkpoint.families.classifier import classifier_rows, first_token
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
from model.checkpoint.families.masked_head import masked_head_fields, masked_head_rows
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, separate_qkv
from model.config import Activation, ModelConfig

HEADS = r"(cls|pooler|lm_head|classifier|qa_outputs|pre_classifier|score|dropout)\..*"
"""Heads on top of an encoder in checkpoints: for masked words, labels, spans. What a table names is read."""
OLD_NORMS = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
"""Names of norms in the first checkpoints, bert-base-uncased's among them, and today's names."""

_BLOCK = "encoder.layer.{i}"
_has_types = attrgetter("num_token_types")


EMBED_ROWS = (
    WeightRow("embed.weight", ("embeddings.word_embeddings.weight",), ("vocab d",)),
    WeightRow("token_type_embed.weight", ("embeddings.token_type_embeddings.weight",), ("types d",), _has_types),
)
ATTENTION_ROWS = (
    *separate_qkv(f"{_BLOCK}.attention.self.*", ("query", "key", "value"), bias=True),
    *linear("layers.{i}.attn_out", f"{_BLOCK}.attention.output.dense", "d q", bias=True),
    *norm("layers.{i}.attn_norm", f"{_BLOCK}.attention.output.LayerNorm", bias=True),
)
_ROWS = (
    *EMBED_ROWS,
    WeightRow("pos_embed.weight", ("embeddings.position_embeddings.weight",), ("positions d",)),
    *norm("embed_norm", "embeddings.LayerNorm", bias=True),
    *ATTENTION_ROWS,
    *linear("layers.{i}.up", f"{_BLOCK}.intermediate.dense", "ff d", bias=True),
    *linear("layers.{i}.down", f"{_BLOCK}.output.dense", "d ff", bias=True),
    *norm("layers.{i}.mlp_norm", f"{_BLOCK}.output.LayerNorm", bias=True),
)

LM_HEAD = masked_head_rows(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.decoder.bias|lm_head.bias"
)
"""The head's rows of RoBERTa and MPNet."""
PREDICTIONS = masked_head_rows(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.decoder.bias|cls.predictions.bias",
)
"""The head's rows of BERT."""
ENCODER_FIELDS: dict[str, Any] = {
    "kind": "encoder",
    "norm": "layernorm",
    "norm_placement": "post",
    "final_norm": False,
    "embedding_norm": True,
    "attention_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "learned_positions": True,
    "causal": False,
}
"""The fields of ModelConfig that BERT and its relatives have in common."""
POOLED = classifier_rows("classifier", "pooler.dense")
"""The rows of the head that labels an input, where its dense layer is the one that BERT was trained with."""
LABELS = classifier_rows("classifier.out_proj", "classifier.dense")
"""The same of RoBERTa and MPNet, whose dense layer is the head's own."""


def _table(prefix: str, head: tuple[WeightRow, ...], tied: str) -> WeightMap:
    # The buffer of position numbers was saved by transformers before 4.31.
    ignored = re.compile(rf"{HEADS}|embeddings\.(position|token_type)_ids")
    return WeightMap((*_ROWS, *head), prefixes=(prefix,), ignored=ignored, respelled=OLD_NORMS, tied_heads=(tied,))


def read_encoder(
    hf: Fields, common: Common, offset: int, *, head_activation: Activation = "gelu", **options: Any
) -> ModelConfig:
    """Read the fields that BERT, RoBERTa and MPNet share. `offset` is the first token's row in the position table."""
    heads = equal_heads(hf, defaults=(768, 12))
    hf.only("is_decoder", False)
    hf.only("add_cross_attention", False)
    hf.only("position_embedding_type", "absolute")
    return ModelConfig(
        **common,
        **heads.fields(),
        **ENCODER_FIELDS,
        **masked_head_fields(hf, common, head_activation),
        vocab_size=hf.size("vocab_size", 30522),
        num_layers=hf.size("num_hidden_layers", 12),
        intermediate_size=hf.size("intermediate_size", 3072),
        max_model_len=hf.size("max_position_embeddings", 512) - offset,
        norm_eps=hf.number("layer_norm_eps", 1e-12),
        activation=hf.activation("hidden_act", "gelu"),
        position_offset=offset,
        **options,
    )


def _read_bert(hf: Fields, common: Common) -> ModelConfig:
    activation = hf.activation("hidden_act", "gelu")
    return read_encoder(hf, common, 0, head_activation=activation, num_token_types=hf.size("type_vocab_size", 2))


def _read_roberta(hf: Fields, common: Common) -> ModelConfig:
    padding = hf.optional_int("pad_token_id")
    offset = (1 if padding is None else padding) + 1  # positions count on from the padding's own
    return read_encoder(hf, common, offset, num_token_types=hf.size("type_vocab_size", 2))


def named(prefix: str, *tasks: str) -> tuple[str, ...]:
    """Return the classes of transformers for an encoder with one of these heads, or with none."""
    return tuple(f"{prefix}{task}" for task in ("Model", *tasks))


TASKS = (
    "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice",
)  # fmt: skip

BERT = Family(
    "bert",
    named("Bert", *TASKS, "ForPreTraining", "ForNextSentencePrediction"),
    ("bert",),
    _read_bert,
    _table("bert.", (*PREDICTIONS, *POOLED), "cls.predictions.decoder.weight"),
    read_classifier=first_token("tanh"),
)
ROBERTA = Family(
    "roberta",
    (*named("Roberta", *TASKS), *named("XLMRoberta", *TASKS), *named("Camembert", *TASKS)),
    ("roberta", "xlm-roberta", "camembert"),
    _read_roberta,
    _table("roberta.", (*LM_HEAD, *LABELS), "lm_head.decoder.weight"),
    read_classifier=first_token("tanh"),
)
