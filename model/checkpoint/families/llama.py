"""Reads Llama and its variants: Mistral (windows), Qwen2 (biases), Qwen3 (q/k norm), Phi-3 and Phi-4-mini (fused
projections, a part of each head rotated), OLMo 2 and 3 (norms of each sublayer's output, and of q and k over all heads
at once; OLMo 3 also has windows in three layers of four).

Touvron et al. 2023, arXiv:2307.09288; Jiang et al. 2023, arXiv:2310.06825; Yang et al. 2024, arXiv:2407.10671; 2025,
arXiv:2505.09388; Abdin et al. 2024, arXiv:2404.14219; Walsh et al. 2025, arXiv:2501.00656; Ettinger et al. 2025,
arXiv:2512.13961.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lightwell.model.checkpoint.families.family import Common, Family, decoders
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.output_heads import SCORE_ROWS
from lightwell.model.checkpoint.families.rotary import read_local_and_global_rope, read_rope
from lightwell.model.checkpoint.families.sizes import grouped_heads, read_sizes
from lightwell.model.checkpoint.families.weight_table import (
    UNTIED,
    WeightMap,
    WeightRow,
    gated_mlp,
    linear,
    norm,
    separate_qkv,
)
from lightwell.model.config import ModelConfig, RopeType

_ATTENTION, _MLP = "model.layers.{i}.self_attn", "model.layers.{i}.mlp"


ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias="attention_bias"),
    *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_norm", "head", when="qk_norm"),
    *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_norm", "head", when="qk_norm"),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias="attention_out_bias"),
)
MLP_ROWS = gated_mlp("layers.{i}", (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"), f"{_MLP}.down_proj", bias="mlp_bias")
EMBED_ROWS: tuple[WeightRow, ...] = linear("embed", "model.embed_tokens", "vocab d")
END_ROWS: tuple[WeightRow, ...] = (
    *norm("final_norm", "model.norm"),
    *linear("head", "lm_head", "vocab d", when=UNTIED),
    *SCORE_ROWS,
)
OLD_BUFFERS = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Buffers that transformers before 4.32 saved with the weights."""


def llama_table(
    attention: Iterable[WeightRow] = ATTENTION_ROWS, feedforward: Iterable[WeightRow] = MLP_ROWS, **options: Any
) -> WeightMap:
    """Return the table of a network built on Llama, from the rows of its sublayers. options: fields of `WeightMap`."""
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
_FUSED_TABLE = llama_table(
    attention=(
        *linear("layers.{i}.qkv", f"{_ATTENTION}.qkv_proj", "qkv d"),
        *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q"),
    ),
    feedforward=gated_mlp("layers.{i}", f"{_MLP}.gate_up_proj", f"{_MLP}.down_proj"),
    ignored=OLD_BUFFERS,
)


def read_like_llama(
    hf: Fields, common: Common, rope_types: Mapping[str, RopeType] | None = None, **options: Any
) -> ModelConfig:
    """Read a network built on Llama: RMSNorm, gated mlp, rotary positions.

    rope_types: as `renamed` in `read_rope`. options: the fields of ModelConfig that differ.
    """
    sizes, bias = read_sizes(hf.with_defaults(hidden_act="silu"), grouped_heads(hf)), hf.flag("attention_bias", False)
    fields = {
        **sizes,
        "norm": "rmsnorm",
        "norm_eps": hf.number("rms_norm_eps", 1e-6),
        "gated_mlp": True,
        "attention_bias": bias,
        "attention_out_bias": bias,
    }
    if "rope" not in options:
        fields["rope"] = read_rope(hf, sizes["head_dim"], sizes["max_model_len"], rope_types)
    return ModelConfig(**common, **{**fields, **options})


def _read_llama(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(max_position_embeddings=2048)
    return read_like_llama(hf, common, mlp_bias=hf.flag("mlp_bias", False))


def _read_mistral(hf: Fields, common: Common) -> ModelConfig:
    hf.only("layer_types", None)  # transformers ignores them: every layer has the window
    hf = hf.with_defaults(num_key_value_heads=8, max_position_embeddings=4096 * 32).with_values(attention_bias=False)
    return read_like_llama(hf, common, sliding_windows=hf.equal_windows(4096))


def _read_qwen2(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(num_key_value_heads=32, max_position_embeddings=32768)
    windows = _qwen_windows(hf)
    return read_like_llama(hf, common, attention_bias=True, attention_out_bias=False, sliding_windows=windows)


def _read_qwen3(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(num_key_value_heads=32, head_dim=128, max_position_embeddings=32768)
    return read_like_llama(hf, common, qk_norm="head", sliding_windows=_qwen_windows(hf))


def _qwen_windows(hf: Fields) -> tuple[int | None, ...]:
    """Return the window of each layer: by `layer_types`, else of the layers from `max_window_layers` on."""
    first = hf.integer("max_window_layers", 28)
    has_window = hf.windowed_layers([i >= first for i in range(hf.size("num_hidden_layers"))])
    window = hf.nullable_size("sliding_window", 4096) if hf.flag("use_sliding_window", False) else None
    return () if window is None else tuple(window if windowed else None for windowed in has_window)


def _read_phi3(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(
        max_position_embeddings=4096, original_max_position_embeddings=4096, rms_norm_eps=1e-5,
        partial_rotary_factor=1.0,
    )  # fmt: skip
    hf = hf.with_values(attention_bias=False)
    rope_types: dict[str, RopeType] = {"yarn": "longrope"}  # the name in early files
    return read_like_llama(hf, common, rope_types, sliding_windows=hf.equal_windows())


LLAMA = Family("llama", decoders("Llama"), _read_llama, TABLE)
MISTRAL = Family("mistral", decoders("Mistral"), _read_mistral, TABLE)
QWEN2 = Family("qwen2", decoders("Qwen2"), _read_qwen2, TABLE)
QWEN3 = Family("qwen3", decoders("Qwen3"), _read_qwen3, TABLE)
PHI3 = Family("phi3", decoders("Phi3"), _read_phi3, _FUSED_TABLE)


_THETA = 500_000.0
"""The base of OLMo 3's rotary embedding if its file has none."""
NORMED_ATTENTION_ROWS = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias="attention_bias"),
    *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_norm", "q"),
    *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_norm", "kv"),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias="attention_out_bias"),
)
_OLMO_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *NORMED_ATTENTION_ROWS,
        *norm("layers.{i}.attn_post_norm", "model.layers.{i}.post_attention_layernorm"),
        *MLP_ROWS,
        *norm("layers.{i}.mlp_post_norm", "model.layers.{i}.post_feedforward_layernorm"),
        *END_ROWS,
    ),
    prefixes=("model.",),
    ignored=OLD_BUFFERS,
)


def _read_olmo2(hf: Fields, common: Common, **options: Any) -> ModelConfig:
    """Read the fields of both. options: the fields of ModelConfig that differ."""
    hf = hf.with_defaults(max_position_embeddings=2048, rms_norm_eps=1e-5)
    return read_like_llama(hf, common, norm_placement="output", qk_norm="full", **options)


def _read_olmo3(hf: Fields, common: Common) -> ModelConfig:
    # With another base, transformers 4 and 5 rotate the layers with a window differently; nested ones are clear.
    hf.only("rope_theta", _THETA)
    thetas, length = {"full_attention": _THETA, "sliding_attention": _THETA}, hf.size("max_position_embeddings", 2048)
    rope, local_rope = read_local_and_global_rope(hf, grouped_heads(hf)["head_dim"], length, thetas, scale_both=False)
    windows = hf.windows([(i + 1) % 4 > 0 for i in range(hf.size("num_hidden_layers"))], 4096)
    return _read_olmo2(hf, common, rope=rope, local_rope=local_rope, sliding_windows=windows)


OLMO2 = Family("olmo2", decoders("Olmo2"), _read_olmo2, _OLMO_TABLE)
OLMO3 = Family("olmo3", decoders("Olmo3"), _read_olmo3, _OLMO_TABLE)
