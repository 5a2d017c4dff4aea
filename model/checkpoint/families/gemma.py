"""Reads Gemma 2 and 3: norms before and after each sublayer, norm weights stored around 0, scaled embeddings, soft caps
or q/k norms, and windows in most layers. Riviere et al. 2024, arXiv:2408.00118; Kamath et al. 2025, arXiv:2503.19786.

From a Gemma 3 with images only the text network is read. EmbeddingGemma is a Gemma 3 with bidirectional attention: an
encoder without a head (Schechter Vera et al. 2025, arXiv:2509.20354).
"""

import re
from dataclasses import replace
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import ATTENTION_ROWS, EMBED_ROWS, END_ROWS, MLP_ROWS, OLD_BUFFERS, read_like_llama
from model.checkpoint.families.rotary import read_local_and_global_rope
from model.checkpoint.families.weight_table import WeightMap, norm
from model.config import ModelConfig

_ROWS = (
    *EMBED_ROWS,
    *norm("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
    *ATTENTION_ROWS,
    *norm("layers.{i}.attn_post_norm", "model.layers.{i}.post_attention_layernorm"),
    *norm("layers.{i}.mlp_norm", "model.layers.{i}.pre_feedforward_layernorm"),
    *MLP_ROWS,
    *norm("layers.{i}.mlp_post_norm", "model.layers.{i}.post_feedforward_layernorm"),
    *END_ROWS,
)
_ENCODER = "Gemma3TextModel"
_WITH_IMAGES = ("Gemma3ForConditionalGeneration", "Gemma3ForSequenceClassification")
_SIZES = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
"""Values of absent fields in the text part of a Gemma 3 with images."""


def _read(hf: Fields, common: Common, pattern: int, **options: Any) -> ModelConfig:
    """Read the fields of both. Without `layer_types`, every `pattern`-th layer has full attention.

    options: the fields of ModelConfig that differ.
    """
    shared = {
        "norm_placement": "sandwich",
        "norm_weight_offset": 1.0,
        "embedding_scale": hf.size("hidden_size") ** 0.5,
        "attention_scale": hf.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "sliding_windows": hf.windows([(i + 1) % pattern > 0 for i in range(hf.size("num_hidden_layers"))], 4096),
    }
    return read_like_llama(hf, common, **shared, **options)


def of_gemma(hf: Fields, **defaults: Any) -> Fields:
    """Return the fields of a Gemma under their usual names, and with the values of absent fields."""
    return hf.with_spellings(hidden_act="hidden_activation").with_defaults(
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, head_dim=256, **defaults
    )


def _read_gemma2(hf: Fields, common: Common) -> ModelConfig:
    hf.only("use_bidirectional_attention", False)
    return _read(
        of_gemma(hf, num_key_value_heads=4, max_position_embeddings=8192),
        common,
        2,
        attn_logit_softcap=hf.nullable_number("attn_logit_softcapping", 50.0),
        final_logit_softcap=hf.nullable_number("final_logit_softcapping", 30.0),
    )


def _read_gemma3(hf: Fields, common: Common) -> ModelConfig:
    if common["architecture"] in _WITH_IMAGES:
        hf = hf.text_network().with_defaults(**_SIZES)
    hf = of_gemma(hf, num_key_value_heads=4, max_position_embeddings=131_072)
    thetas = {
        "full_attention": hf.number("rope_theta", 1_000_000.0),
        "sliding_attention": hf.number("rope_local_base_freq", 10_000.0),
    }
    global_rope, local_rope = read_local_and_global_rope(
        hf, hf.size("head_dim"), hf.size("max_position_embeddings"), thetas, scale_both=False
    )
    config = _read(
        hf,
        common,
        hf.size("sliding_window_pattern", 6),
        qk_norm="head",
        rope=global_rope,
        local_rope=local_rope,
        attn_logit_softcap=hf.optional_number("attn_logit_softcapping"),
        final_logit_softcap=hf.optional_number("final_logit_softcapping"),
    )
    if common["architecture"] != _ENCODER:
        hf.only("use_bidirectional_attention", False)
        return config
    if not hf.flag("use_bidirectional_attention", False):
        raise hf.refuse("use_bidirectional_attention", f"only True is supported for {_ENCODER}, which has no head")
    # config.json counts the keys on both sides of a query, a window those on one and the query.
    windows = tuple(window and window // 2 + 1 for window in config.sliding_windows)
    return replace(config, kind="encoder", causal=False, has_head=False, sliding_windows=windows)


GEMMA2 = Family(
    "gemma2",
    ("Gemma2ForCausalLM", "Gemma2ForSequenceClassification"),
    ("gemma2",),
    _read_gemma2,
    WeightMap(_ROWS, prefixes=("model.",), ignored=OLD_BUFFERS),
)
GEMMA3 = Family(
    "gemma3",
    (
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        _ENCODER,
        "Gemma3TextForSequenceClassification",
        "Gemma3ForSequenceClassification",
    ),
    ("gemma3_text",),
    _read_gemma3,
    WeightMap(
        _ROWS,
        prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
        ignored=re.compile(r"(vision_tower|multi_modal_projector)\..*"),
    ),
)
