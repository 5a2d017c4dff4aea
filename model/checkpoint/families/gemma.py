"""Reads the text networks of Gemma. The networks for images and sounds are not read.

Gemma 2 and 3: norms before and after each sublayer, norm weights stored around 0, scaled embeddings, soft caps or q/k
norms, and windows in most layers. EmbeddingGemma is a Gemma 3 with bidirectional attention: an encoder without a head.
Gemma 4: also a norm of v, other heads in layers without a window, keys and values shared between layers, and a factor
of the residual stream after each block; E2B and E4B have per-layer token embeddings, 26B A4B has experts next to its
mlps. Gemma 3n: Gemma 4's E2B and E4B with several residual streams, a low-rank path around attention, and sparse gates.

Riviere et al. 2024, arXiv:2408.00118; Kamath et al. 2025, arXiv:2503.19786; Schechter Vera et al. 2025,
arXiv:2509.20354; Google 2026, "Gemma 4 model card"; Google 2025, "Gemma 3n model card"; the code of transformers.
"""

import re
from dataclasses import replace
from typing import Any

from lightwell.model.checkpoint.families.family import Common, Family, decoders
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.llama import (
    ATTENTION_ROWS,
    EMBED_ROWS,
    END_ROWS,
    MLP_ROWS,
    OLD_BUFFERS,
    read_like_llama,
)
from lightwell.model.checkpoint.families.rotary import read_local_and_global_rope, rope_of
from lightwell.model.checkpoint.families.sizes import grouped_heads, read_experts
from lightwell.model.checkpoint.families.weight_table import (
    StackedTensor,
    WeightMap,
    WeightRow,
    gated_mlp,
    in_layers,
    linear,
    norm,
)
from lightwell.model.config import AltUpConfig, ExpertsConfig, ModelConfig, RopeConfig

_LAYER = "model.layers.{i}"
_GEMMA_2_AND_3_ROWS = (
    *EMBED_ROWS,
    *norm("layers.{i}.attn_norm", f"{_LAYER}.input_layernorm"),
    *ATTENTION_ROWS,
    *norm("layers.{i}.attn_post_norm", f"{_LAYER}.post_attention_layernorm"),
    *norm("layers.{i}.mlp_norm", f"{_LAYER}.pre_feedforward_layernorm"),
    *MLP_ROWS,
    *norm("layers.{i}.mlp_post_norm", f"{_LAYER}.post_feedforward_layernorm"),
    *END_ROWS,
)
_ENCODER = "Gemma3TextModel"
_WITH_IMAGES = ("Gemma3ForConditionalGeneration", "Gemma3ForSequenceClassification")
_GEMMA3_SIZES = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8,
}  # fmt: skip
"""Values of absent fields in the text part of a Gemma 3 with images."""


def _read_2_and_3(hf: Fields, common: Common, pattern: int, **options: Any) -> ModelConfig:
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


def _of_gemma(hf: Fields, **defaults: Any) -> Fields:
    """Return the fields of a Gemma under their usual names, and with the values of absent fields."""
    return hf.with_spellings(hidden_act="hidden_activation").with_defaults(
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, head_dim=256, **defaults
    )


def _read_gemma2(hf: Fields, common: Common) -> ModelConfig:
    hf.only("use_bidirectional_attention", False)
    return _read_2_and_3(
        _of_gemma(hf, num_key_value_heads=4, max_position_embeddings=8192),
        common,
        2,
        attn_logit_softcap=hf.nullable_number("attn_logit_softcapping", 50.0),
        final_logit_softcap=hf.nullable_number("final_logit_softcapping", 30.0),
    )


def _ropes(hf: Fields) -> dict[str, Any]:
    thetas = {
        "full_attention": hf.number("rope_theta", 1_000_000.0),
        "sliding_attention": hf.number("rope_local_base_freq", 10_000.0),
    }
    length = hf.size("max_position_embeddings")
    rope, local_rope = read_local_and_global_rope(hf, hf.size("head_dim"), length, thetas, scale_both=False)
    return {"rope": rope, "local_rope": local_rope}


def _read_gemma3(hf: Fields, common: Common) -> ModelConfig:
    if common["architecture"] in _WITH_IMAGES:
        hf = hf.text_network().with_defaults(**_GEMMA3_SIZES)
    hf = _of_gemma(hf, num_key_value_heads=4, max_position_embeddings=131_072)
    config = _read_2_and_3(
        hf,
        common,
        hf.size("sliding_window_pattern", 6),
        qk_norm="head",
        **_ropes(hf),
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
    decoders("Gemma2"),
    _read_gemma2,
    WeightMap(_GEMMA_2_AND_3_ROWS, prefixes=("model.",), ignored=OLD_BUFFERS),
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
    _read_gemma3,
    WeightMap(
        _GEMMA_2_AND_3_ROWS,
        prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
        ignored=re.compile(r"(vision_tower|multi_modal_projector)\..*"),
    ),
    types=("gemma3_text",),
)


_ATTENTION = f"{_LAYER}.self_attn"


def _has_kv(config: ModelConfig, layer: int) -> bool:
    return config.kv_layer(layer) == layer


def _has_values(config: ModelConfig, layer: int) -> bool:
    return _has_kv(config, layer) and not _has_keys_alone(config, layer)


def _has_keys_alone(config: ModelConfig, layer: int) -> bool:
    return _has_kv(config, layer) and config.keys_are_values and config.window_of(layer) is None


def _qkv(parts: str) -> tuple[WeightRow, ...]:
    names = tuple(f"{_ATTENTION}.{part}_proj" for part in parts)
    return linear("layers.{i}.qkv", names, ("q d", "kv d", "kv d")[: len(parts)], bias="attention_bias")


_EXPERTS: tuple[WeightRow, ...] = (
    *norm("layers.{i}.dense_post_norm", f"{_LAYER}.post_feedforward_layernorm_1"),
    WeightRow("layers.{i}.router_norm.weight", (f"{_LAYER}.router.scale",), ("d",)),
    *linear("layers.{i}.router", f"{_LAYER}.router.proj", "experts d"),
    WeightRow("layers.{i}.expert_scales.weight", (f"{_LAYER}.router.per_expert_scale",), ("experts",)),
    *norm("layers.{i}.experts_norm", f"{_LAYER}.pre_feedforward_layernorm_2"),
    *gated_mlp(
        "layers.{i}.experts.{e}", f"{_LAYER}.experts.{{e}}.gate_up", f"{_LAYER}.experts.{{e}}.down", "expert_ff"
    ),
    *norm("layers.{i}.experts_post_norm", f"{_LAYER}.post_feedforward_layernorm_2"),
)
_GEMMA4_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *linear(
            "per_layer_embed", "model.embed_tokens_per_layer", "per_layer_vocab all_per_layer", when="per_layer_size"
        ),
        *linear("per_layer_project", "model.per_layer_model_projection", "all_per_layer d", when="per_layer_size"),
        *linear("per_layer_norm", "model.per_layer_projection_norm", "per_layer", when="per_layer_size"),
        *norm("layers.{i}.attn_norm", f"{_LAYER}.input_layernorm"),
        *in_layers(_has_values, *_qkv("qkv")),
        *in_layers(_has_keys_alone, *_qkv("qkk")),
        *in_layers(lambda config, layer: not _has_kv(config, layer), *_qkv("q")),
        *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_norm", "head"),
        *in_layers(_has_kv, *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_norm", "head")),
        *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias="attention_out_bias"),
        *norm("layers.{i}.attn_post_norm", f"{_LAYER}.post_attention_layernorm"),
        *norm("layers.{i}.mlp_norm", f"{_LAYER}.pre_feedforward_layernorm"),
        *MLP_ROWS,
        *in_layers(ModelConfig.has_experts, *_EXPERTS),
        *norm("layers.{i}.mlp_post_norm", f"{_LAYER}.post_feedforward_layernorm"),
        *linear("layers.{i}.per_layer_gate", f"{_LAYER}.per_layer_input_gate", "per_layer d", when="per_layer_size"),
        *linear("layers.{i}.per_layer_out", f"{_LAYER}.per_layer_projection", "d per_layer", when="per_layer_size"),
        *norm("layers.{i}.per_layer_post_norm", f"{_LAYER}.post_per_layer_input_norm", when="per_layer_size"),
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
_GEMMA4_SIZES: dict[str, int] = {
    "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8,
}  # fmt: skip


def _read_gemma4(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.text_network() if common["architecture"].endswith("ConditionalGeneration") else hf
    if hf.values.get("use_bidirectional_attention") not in (None, "vision"):
        raise hf.refuse("use_bidirectional_attention", "only null and 'vision' (for images) are supported")
    hf = _of_gemma(hf, num_key_value_heads=4, max_position_embeddings=131_072, **_GEMMA4_SIZES)
    heads, num_layers = grouped_heads(hf), hf.size("num_hidden_layers")
    # transformers leaves the last layer no window, whatever the file says.
    windows = (*hf.windows([(i + 1) % 6 > 0 for i in range(num_layers)], 512)[:-1], None)
    full = _full_heads(hf, windows)
    max_model_len, ropes = hf.size("max_position_embeddings"), hf.nested("rope_parameters")
    per_layer = hf.values.get("hidden_size_per_layer_input", 256) or None
    num_shared = hf.integer("num_kv_shared_layers", 0)
    _check_shared(hf, windows, num_shared)
    is_wide, size = hf.flag("use_double_wide_mlp", False) and num_shared > 0, hf.size("intermediate_size")
    # Layers without keys and values of their own have twice as many neurons.
    wide_sizes = (size,) * (num_layers - num_shared) + (2 * size,) * num_shared
    return read_like_llama(
        hf,
        common,
        **_alike_in_gemma_3n_and_4(hf),
        final_logit_softcap=hf.optional_number("final_logit_softcapping"),
        rope=_rope(ropes, "full_attention", _GLOBAL, full["head_dim"], max_model_len),
        local_rope=_rope(ropes, "sliding_attention", _LOCAL, heads["head_dim"], max_model_len),
        sliding_windows=windows,
        full_head_dim=None if full["head_dim"] == heads["head_dim"] else full["head_dim"],
        full_num_kv_heads=None if full["num_kv_heads"] == heads["num_kv_heads"] else full["num_kv_heads"],
        keys_are_values=hf.flag("attention_k_eq_v", False),
        num_kv_shared_layers=num_shared,
        intermediate_sizes=wide_sizes if is_wide else (),
        experts=_experts(hf) if hf.flag("enable_moe_block", False) else None,
        stream_scales=True,
        per_layer_size=per_layer and hf.size("hidden_size_per_layer_input", 256),
        per_layer_vocab_size=hf.size("vocab_size_per_layer_input", 262_144) if per_layer else 0,
    )


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
        layers = {i.lstrip("0") or "0": each for i, each in given.values.items() if each}  # transformers writes "05"
        own = dict(Fields(layers, given.file).nested(str(len(windows) - 1)).values)  # the last layer has no window
        expected = {str(i): own for i, window in enumerate(windows) if window is None}
        if not own.keys() <= usual.keys() or layers != expected:
            accepted = "other head_dim and num_key_value_heads for all full_attention layers alike are supported"
            raise hf.refuse("per_layer_config", accepted)
    return grouped_heads(hf.with_values(**{**usual, **own}))


def _alike_in_gemma_3n_and_4(hf: Fields) -> dict[str, Any]:
    return {
        "norm_placement": "sandwich",
        "norm_rounds_once": True,
        "attention_scale": 1.0,
        "qk_norm": "head",
        "v_norm": True,
        "embedding_scale": hf.size("hidden_size") ** 0.5,
    }


def _check_shared(hf: Fields, windows: tuple[int | None, ...], num_shared: int) -> None:
    """Raise ModelLoadError if no earlier layer of the same kind has the keys and values of a layer."""
    own = windows[: len(windows) - num_shared]
    if not 0 <= num_shared < len(windows) or {each is None for each in windows} != {each is None for each in own}:
        raise hf.refuse(
            "num_kv_shared_layers",
            "a number that leaves earlier layers of each kind, with and without a window, is expected",
        )


GEMMA4 = Family(
    "gemma4",
    ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    _read_gemma4,
    _GEMMA4_TABLE,
    types=("gemma4_text", "gemma4"),
)


_STREAMS = 4
_GEMMA3N_SIZES: dict[str, int] = {
    "vocab_size": 262_400, "hidden_size": 2048, "num_hidden_layers": 35, "num_attention_heads": 8,
}  # fmt: skip


def _projections(ours: str, theirs: str) -> tuple[WeightRow, ...]:
    return linear(ours, tuple(f"model.{theirs}.{i}" for i in range(_STREAMS - 1)), ("d d",) * (_STREAMS - 1))


_BLOCK_ROWS: tuple[WeightRow, ...] = (
    *norm("layers.{i}.altup_norm", f"{_LAYER}.altup.router_norm"),
    *linear("layers.{i}.altup_router", f"{_LAYER}.altup.modality_router", "streams d"),
    *linear("layers.{i}.altup_predict", f"{_LAYER}.altup.prediction_coefs", "streams^2 streams"),
    *linear("layers.{i}.altup_correct", f"{_LAYER}.altup.correction_coefs", "streams streams"),
    WeightRow(
        "layers.{i}.altup_scale.weight", (f"{_LAYER}.altup.correct_output_scale",), ("d",), "altup.scales_corrected"
    ),
    *linear("layers.{i}.laurel_left", f"{_LAYER}.laurel.linear_left", "laurel d"),
    *linear("layers.{i}.laurel_right", f"{_LAYER}.laurel.linear_right", "d laurel"),
    *norm("layers.{i}.laurel_norm", f"{_LAYER}.laurel.post_laurel_norm"),
)
_rows = [row for row in _GEMMA4_TABLE.rows if "stream_scale" not in row.name]
_last = max(i for i, row in enumerate(_rows) if "{i}" in row.name) + 1
_GEMMA3N_TABLE = WeightMap(
    rows=(
        *_projections("altup_in", "altup_projections"),
        *_rows[:_last],
        *_BLOCK_ROWS,
        *_projections("altup_out", "altup_unembed_projections"),
        *_rows[_last:],
    ),
    prefixes=_GEMMA4_TABLE.prefixes,
    ignored=re.compile(rf"{_GEMMA4_TABLE.ignored.pattern}|layers\.\d+\.altup\.correct_output_scale"),
)


def _read_gemma3n(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.text_network() if common["architecture"].endswith("ConditionalGeneration") else hf
    hf = _of_gemma(hf, num_key_value_heads=2, max_position_embeddings=32_768, **_GEMMA3N_SIZES)
    hf.only("altup_num_inputs", _STREAMS)
    hf.only("altup_active_idx", 0)
    num_layers = hf.size("num_hidden_layers")
    sizes = _of_layers(hf, "intermediate_size", 16_384)
    hf = hf.with_values(intermediate_size=sizes[0])
    windows = hf.windows([(i + 1) % 5 > 0 for i in range(num_layers)], 512)
    num_shared = hf.integer("num_kv_shared_layers", 15)
    _check_shared(hf, windows, num_shared)
    return read_like_llama(
        hf,
        common,
        **_alike_in_gemma_3n_and_4(hf),
        final_logit_softcap=hf.nullable_number("final_logit_softcapping", 30.0),
        **_ropes(hf),
        sliding_windows=windows,
        num_kv_shared_layers=num_shared,
        intermediate_sizes=sizes if len(set(sizes)) > 1 else (),
        sparsities=_sparsities(hf, num_layers),
        per_layer_size=hf.size("hidden_size_per_layer_input", 256),
        per_layer_vocab_size=hf.size("vocab_size_per_layer_input", 262_144),
        altup=AltUpConfig(
            num_streams=_STREAMS,
            laurel_rank=hf.size("laurel_rank", 64),
            scales_corrected=hf.flag("altup_correct_scale", True),
        ),
    )


def _of_layers(hf: Fields, name: str, usual: int) -> tuple[int, ...]:
    """Return the size of each layer from a field that is one number, or a list."""
    num_layers, value = hf.size("num_hidden_layers"), hf.values.get(name)
    if not isinstance(value, list):
        return (hf.size(name, usual),) * num_layers
    if len(value) != num_layers:
        raise hf.refuse(name, f"a positive integer, or a list of {num_layers}, is expected")
    return tuple(Fields({name: each}, hf.file).size(name) for each in value)


def _sparsities(hf: Fields, num_layers: int) -> tuple[float, ...]:
    value = hf.values.get("activation_sparsity_pattern")
    if value is None:
        value = [0.95] * (10 if num_layers > 10 else 0)
        value += [0.0] * (num_layers - len(value))
    if (
        not isinstance(value, list)
        or len(value) != num_layers
        or not all(isinstance(each, int | float) and 0 <= each < 1 for each in value)
    ):
        raise hf.refuse("activation_sparsity_pattern", f"a list of {num_layers} numbers from 0 to below 1 is expected")
    return tuple(map(float, value)) if any(value) else ()


GEMMA3N = Family(
    "gemma3n",
    ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    _read_gemma3n,
    _GEMMA3N_TABLE,
    types=("gemma3n_text", "gemma3n"),
)
