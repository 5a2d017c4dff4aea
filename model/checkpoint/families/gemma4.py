"""Reads the text networks of Gemma 4: norms of q, k and v, other heads in layers without a window, keys and values
shared between layers, and a factor of the residual stream after each block. E2B and E4B have per-layer token
embeddings; 26B A4B has experts next to its mlps. Google 2026, "Gemma 4 model card", and the code of transformers.

The networks for images and sounds are not read.
"""

import re
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.gemma import of_gemma
from model.checkpoint.families.llama import EMBED_ROWS, END_ROWS, MLP_ROWS, read_like_llama
from model.checkpoint.families.rotary import rope_of
from model.checkpoint.families.sizes import grouped_heads, read_experts
from model.checkpoint.families.weight_table import (
    StackedTensor,
    WeightMap,
    WeightRow,
    has,
    in_layers,
    linear,
    norm,
    out_bias,
    qkv_bias,
)
from model.config import ExpertsConfig, ModelConfig, RopeConfig

_LAYER = "model.layers.{i}"
_has_per_layer = has("per_layer_size")
_ATTENTION = f"{_LAYER}.self_attn"


def _has_kv(config: ModelConfig, layer: int) -> bool:
    return config.kv_layer(layer) == layer


def _has_values(config: ModelConfig, layer: int) -> bool:
    return _has_kv(config, layer) and not _has_keys_alone(config, layer)


def _has_keys_alone(config: ModelConfig, layer: int) -> bool:
    return _has_kv(config, layer) and config.keys_are_values and config.window_of(layer) is None


def _qkv(parts: str) -> tuple[WeightRow, ...]:
    names = tuple(f"{_ATTENTION}.{part}_proj" for part in parts)
    return linear("layers.{i}.qkv", names, ("q d", "kv d", "kv d")[: len(parts)], bias=qkv_bias)


_EXPERTS: tuple[WeightRow, ...] = (
    *norm("layers.{i}.dense_post_norm", f"{_LAYER}.post_feedforward_layernorm_1"),
    WeightRow("layers.{i}.router_norm.weight", (f"{_LAYER}.router.scale",), ("d",)),
    *linear("layers.{i}.router", f"{_LAYER}.router.proj", "experts d"),
    WeightRow("layers.{i}.expert_scales.weight", (f"{_LAYER}.router.per_expert_scale",), ("experts",)),
    *norm("layers.{i}.experts_norm", f"{_LAYER}.pre_feedforward_layernorm_2"),
    *linear("layers.{i}.experts.{e}.gate_up", f"{_LAYER}.experts.{{e}}.gate_up", "2expert_ff d"),
    *linear("layers.{i}.experts.{e}.down", f"{_LAYER}.experts.{{e}}.down", "d expert_ff"),
    *norm("layers.{i}.experts_post_norm", f"{_LAYER}.post_feedforward_layernorm_2"),
)
TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *linear(
            "per_layer_embed", "model.embed_tokens_per_layer", "per_layer_vocab all_per_layer", when=_has_per_layer
        ),
        *linear("per_layer_project", "model.per_layer_model_projection", "all_per_layer d", when=_has_per_layer),
        *linear("per_layer_norm", "model.per_layer_projection_norm", "per_layer", when=_has_per_layer),
        *norm("layers.{i}.attn_norm", f"{_LAYER}.input_layernorm"),
        *in_layers(_has_values, *_qkv("qkv")),
        *in_layers(_has_keys_alone, *_qkv("qkk")),
        *in_layers(lambda config, layer: not _has_kv(config, layer), *_qkv("q")),
        *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_norm", "head"),
        *in_layers(_has_kv, *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_norm", "head")),
        *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias=out_bias),
        *norm("layers.{i}.attn_post_norm", f"{_LAYER}.post_attention_layernorm"),
        *norm("layers.{i}.mlp_norm", f"{_LAYER}.pre_feedforward_layernorm"),
        *MLP_ROWS,
        *in_layers(ModelConfig.has_experts, *_EXPERTS),
        *norm("layers.{i}.mlp_post_norm", f"{_LAYER}.post_feedforward_layernorm"),
        *linear("layers.{i}.per_layer_gate", f"{_LAYER}.per_layer_input_gate", "per_layer d", when=_has_per_layer),
        *linear("layers.{i}.per_layer_out", f"{_LAYER}.per_layer_projection", "d per_layer", when=_has_per_layer),
        *norm("layers.{i}.per_layer_post_norm", f"{_LAYER}.post_per_layer_input_norm", when=_has_per_layer),
        WeightRow("layers.{i}.stream_scale.weight", (f"{_LAYER}.layer_scalar",), ("1",)),
        *END_ROWS,
    ),
    prefixes=("model.language_model.", "language_model.", "model."),
    # Files hold unused projections in the layers that read the keys and values of other layers.
    ignored=re.compile(
        r"(vision_tower|audio_tower|embed_vision|embed_audio)\..*|layers\.\d+\.self_attn\.([kv]_proj|k_norm)\.weight"
    ),
    stacked=(
        StackedTensor("experts.gate_up_proj", "experts.{e}.gate_up.weight"),
        StackedTensor("experts.down_proj", "experts.{e}.down.weight"),
    ),
)
_LOCAL: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
_GLOBAL: dict[str, Any] = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}
_SIZES: dict[str, int] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
}
"""Values of absent fields."""


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.text_network() if common["architecture"].endswith("ConditionalGeneration") else hf
    if hf.values.get("use_bidirectional_attention") not in (None, "vision"):
        raise hf.refuse("use_bidirectional_attention", "only null and 'vision' (for images) are supported")
    hf = of_gemma(hf, num_key_value_heads=4, max_position_embeddings=131_072, **_SIZES)
    heads, num_layers = grouped_heads(hf), hf.size("num_hidden_layers")
    # transformers leaves the last layer no window, whatever the file says.
    windows = (*hf.windows([(i + 1) % 6 > 0 for i in range(num_layers)], 512)[:-1], None)
    full = _full_heads(hf, windows)
    max_model_len, ropes = hf.size("max_position_embeddings"), hf.nested("rope_parameters")
    per_layer = hf.values.get("hidden_size_per_layer_input", 256) or None
    num_shared = hf.integer("num_kv_shared_layers", 0)
    check_shared(hf, windows, num_shared)
    is_wide = hf.flag("use_double_wide_mlp", False) and num_shared > 0
    return read_like_llama(
        hf,
        common,
        **alike_in_gemma_3n_and_4(hf),
        final_logit_softcap=hf.optional_number("final_logit_softcapping"),
        rope=_rope(ropes, "full_attention", _GLOBAL, full["head_dim"], max_model_len),
        local_rope=_rope(ropes, "sliding_attention", _LOCAL, heads["head_dim"], max_model_len),
        sliding_windows=windows,
        full_head_dim=None if full["head_dim"] == heads["head_dim"] else full["head_dim"],
        full_num_kv_heads=None if full["num_kv_heads"] == heads["num_kv_heads"] else full["num_kv_heads"],
        keys_are_values=hf.flag("attention_k_eq_v", False),
        num_kv_shared_layers=num_shared,
        intermediate_sizes=_sizes_of_mlps(hf.size("intermediate_size"), num_layers, num_shared) if is_wide else (),
        experts=_experts(hf) if hf.flag("enable_moe_block", False) else None,
        stream_scales=True,
        per_layer_size=per_layer and hf.size("hidden_size_per_layer_input", 256),
        per_layer_vocab_size=hf.size("vocab_size_per_layer_input", 262_144) if per_layer else 0,
    )


def _sizes_of_mlps(size: int, num_layers: int, num_shared: int) -> tuple[int, ...]:
    """Return the neurons of each layer. Layers without keys and values of their own have twice as many."""
    return (size,) * (num_layers - num_shared) + (2 * size,) * num_shared


def _experts(hf: Fields) -> ExpertsConfig:
    hf = hf.with_spellings(num_experts_per_tok="top_k_experts")
    size = hf.size("moe_intermediate_size")
    return read_experts(hf, intermediate_size=size, normalized=True, beside_mlp=True)


def _rope(ropes: Fields, layers: str, usual: dict[str, Any], head_dim: int, max_model_len: int) -> RopeConfig:
    values = ropes.nested(layers).values if ropes.values else usual
    return rope_of(Fields(values, ropes.file), head_dim, max_model_len)


def _full_heads(hf: Fields, windows: tuple[int | None, ...]) -> dict[str, Any]:
    """Return the heads of the layers without a window.

    The first checkpoints have fields for them; later ones have `per_layer_config`, which must set no other layers.
    """
    usual = {"head_dim": hf.size("head_dim"), "num_key_value_heads": hf.size("num_key_value_heads")}
    if hf.values.get("per_layer_config") is None:
        own = {"head_dim": hf.size("global_head_dim", 512)}
        if hf.flag("attention_k_eq_v", False) and hf.values.get("num_global_key_value_heads") is not None:
            own["num_key_value_heads"] = hf.size("num_global_key_value_heads")
    else:
        given = hf.nested("per_layer_config")
        own = dict(given.nested(str(len(windows) - 1)).values)  # the last layer has no window
        expected = {str(i): own for i, window in enumerate(windows) if window is None}
        if not own.keys() <= usual.keys() or {i: one for i, one in given.values.items() if one} != expected:
            accepted = "other head_dim and num_key_value_heads for all full_attention layers alike are supported"
            raise hf.refuse("per_layer_config", accepted)
    return grouped_heads(hf.with_values(**{**usual, **own}))


def alike_in_gemma_3n_and_4(hf: Fields) -> dict[str, Any]:
    """Return the fields of `ModelConfig` that Gemma 3n and 4 share."""
    return {
        "norm_placement": "sandwich",
        "norm_rounds_once": True,
        "attention_scale": 1.0,
        "qk_norm": "head",
        "v_norm": True,
        "embedding_scale": hf.size("hidden_size") ** 0.5,
    }


def check_shared(hf: Fields, windows: tuple[int | None, ...], num_shared: int) -> None:
    """Raise ModelLoadError for a layer that shares the keys and values of an earlier layer of its kind, if none is
    there.
    """
    own = windows[: len(windows) - num_shared]
    if not 0 <= num_shared < len(windows) or {each is None for each in windows} != {each is None for each in own}:
        raise hf.refuse("num_kv_shared_layers", "earlier layers of each kind, with and without a window, are expected")


GEMMA4 = Family(
    "gemma4", ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), ("gemma4_text", "gemma4"), _read, TABLE
)
