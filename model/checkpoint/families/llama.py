"""Reads Llama, and networks that differ from it in options only: Mistral (a window), Qwen2 (biases), Qwen3 (q/k norm).

Touvron et al. 2023, arXiv:2307.09288; Jiang et al. 2023, arXiv:2310.06825; Yang et al. 2024, arXiv:2407.10671; 2025,
arXiv:2505.09388.
"""

import re
from collections.abc import Iterable
from typing import Any

from model.checkpoint.families.classifier import SCORE_ROWS
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import HeadCounts, grouped_heads
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import (
    WeightMap,
    WeightRow,
    linear,
    mlp_bias,
    norm,
    out_bias,
    qkv_bias,
    separate_qkv,
    untied,
)
from model.config import ModelConfig

_ATTENTION, _MLP = "model.layers.{i}.self_attn", "model.layers.{i}.mlp"


def has_head_norm(config: ModelConfig) -> bool:
    return config.qk_norm == "head"


ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias=qkv_bias),
    WeightRow("layers.{i}.q_norm.weight", (f"{_ATTENTION}.q_norm.weight",), ("head",), has_head_norm),
    WeightRow("layers.{i}.k_norm.weight", (f"{_ATTENTION}.k_norm.weight",), ("head",), has_head_norm),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias=out_bias),
)
MLP_ROWS: tuple[WeightRow, ...] = (
    *linear("layers.{i}.gate_up", (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"), ("ff d", "ff d"), bias=mlp_bias),
    *linear("layers.{i}.down", f"{_MLP}.down_proj", "d ff", bias=mlp_bias),
)
EMBED_ROWS: tuple[WeightRow, ...] = (WeightRow("embed.weight", ("model.embed_tokens.weight",), ("vocab d",)),)
END_ROWS: tuple[WeightRow, ...] = (
    *norm("final_norm", "model.norm"),
    WeightRow("head.weight", ("lm_head.weight",), ("vocab d",), untied),
    *SCORE_ROWS,
)
OLD_BUFFERS = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Buffers that transformers before 4.32 saved with the weights."""


def llama_table(
    attention: Iterable[WeightRow] = ATTENTION_ROWS, feedforward: Iterable[WeightRow] = MLP_ROWS, **options: Any
) -> WeightMap:
    """Return the table of a network built on Llama, from the rows of its sublayers; `options` are fields of the
    table.
    """
    rows = (
        *EMBED_ROWS,
        *norm("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        *attention,
        *norm("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        *feedforward,
        *END_ROWS,
    )
    return WeightMap(rows, **{"prefixes": ("model.",), **options})


TABLE = llama_table(ignored=OLD_BUFFERS)


def read_common(hf: Fields, heads: HeadCounts) -> dict[str, Any]:
    """Return the fields that all networks built on Llama share: sizes, gated mlp, RMSNorm, rotary positions only."""
    return {
        **heads.fields(),
        "vocab_size": hf.size("vocab_size"),
        "num_layers": hf.size("num_hidden_layers"),
        "intermediate_size": hf.size("intermediate_size"),
        "norm": "rmsnorm",
        "norm_eps": hf.number("rms_norm_eps", 1e-6),
        "gated_mlp": True,
        "tie_word_embeddings": hf.flag("tie_word_embeddings", False),
    }


def read_like_llama(hf: Fields, common: Common, heads: HeadCounts, max_model_len: int, **options: Any) -> ModelConfig:
    """Read a network built on Llama; `options` are the fields of ModelConfig in which it differs."""
    bias = hf.flag("attention_bias", False)
    defaults: dict[str, Any] = {
        "activation": hf.activation("hidden_act", "silu"),
        "attention_bias": bias,
        "attention_out_bias": bias,
        "max_model_len": max_model_len,
    }
    if "rope" not in options:
        original = hf.optional_int("original_max_position_embeddings")
        defaults["rope"] = read_rope(hf, heads.head_dim, max_model_len, original=original)
    return ModelConfig(**common, **{**read_common(hf, heads), **defaults, **options})


def _read_llama(hf: Fields, common: Common) -> ModelConfig:
    context = hf.size("max_position_embeddings", 2048)
    return read_like_llama(hf, common, grouped_heads(hf), context, mlp_bias=hf.flag("mlp_bias", False))


def _read_mistral(hf: Fields, common: Common) -> ModelConfig:
    hf.only("layer_types", None)  # transformers reads none either: every layer has the window
    window = hf.nullable_size("sliding_window", 4096)
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf, num_kv_heads=8),
        hf.size("max_position_embeddings", 4096 * 32),
        attention_bias=False,
        attention_out_bias=False,
        sliding_windows=() if window is None else (window,) * hf.size("num_hidden_layers"),
    )


def _read_qwen2(hf: Fields, common: Common) -> ModelConfig:
    context = hf.size("max_position_embeddings", 32768)
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf, num_kv_heads=32),
        context,
        attention_bias=True,
        attention_out_bias=False,
        sliding_windows=_qwen_windows(hf),
    )


def _read_qwen3(hf: Fields, common: Common) -> ModelConfig:
    context = hf.size("max_position_embeddings", 32768)
    heads = grouped_heads(hf, num_kv_heads=32, head_dim=128)
    return read_like_llama(hf, common, heads, context, qk_norm="head", sliding_windows=_qwen_windows(hf))


def _qwen_windows(hf: Fields) -> tuple[int | None, ...]:
    """Return the window of each layer. `layer_types` says which layers have it; without it, those from
    `max_window_layers` on.
    """
    num_layers = hf.size("num_hidden_layers")
    first = hf.optional_int("max_window_layers")
    first = 28 if first is None else first
    has_window = hf.windowed_layers([i >= first for i in range(num_layers)])
    window = hf.nullable_size("sliding_window", 4096) if hf.flag("use_sliding_window", False) else None
    if window is None:
        return ()
    return tuple(window if windowed else None for windowed in has_window)


LLAMA = Family("llama", ("LlamaForCausalLM", "LlamaForSequenceClassification"), ("llama",), _read_llama, TABLE)
MISTRAL = Family(
    "mistral", ("MistralForCausalLM", "MistralForSequenceClassification"), ("mistral",), _read_mistral, TABLE
)
QWEN2 = Family("qwen2", ("Qwen2ForCausalLM", "Qwen2ForSequenceClassification"), ("qwen2",), _read_qwen2, TABLE)
QWEN3 = Family("qwen3", ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"), ("qwen3",), _read_qwen3, TABLE)
