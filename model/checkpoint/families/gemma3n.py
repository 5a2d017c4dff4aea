"""Reads the text network of Gemma 3n, which is much like Gemma 4's E2B and E4B, with several residual streams, a
low-rank path around attention, and mlps whose gates are mostly closed. Google 2025, "Gemma 3n model card", and the code
of transformers.

Of a Gemma 3n with images and sounds only the text network is read.
"""

import re
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.gemma4 import TABLE, alike_in_gemma_3n_and_4, check_shared
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import read_common
from model.checkpoint.families.rotary import read_local_and_global_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm
from model.config import AltUpConfig, ModelConfig

_LAYER = "model.layers.{i}"
_STREAMS = 4
_SIZES: dict[str, int] = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
}
"""The sizes that a file may leave out."""


def _is_scaled(config: ModelConfig) -> bool:
    return config.altup is not None and config.altup.scales_corrected


def _projections(ours: str, theirs: str) -> tuple[WeightRow, ...]:
    return linear(ours, tuple(f"model.{theirs}.{i}" for i in range(_STREAMS - 1)), ("d d",) * (_STREAMS - 1))


_BLOCK_ROWS: tuple[WeightRow, ...] = (
    *norm("layers.{i}.altup_norm", f"{_LAYER}.altup.router_norm"),
    *linear("layers.{i}.altup_router", f"{_LAYER}.altup.modality_router", "streams d"),
    *linear("layers.{i}.altup_predict", f"{_LAYER}.altup.prediction_coefs", "streams^2 streams"),
    *linear("layers.{i}.altup_correct", f"{_LAYER}.altup.correction_coefs", "streams streams"),
    WeightRow("layers.{i}.altup_scale.weight", (f"{_LAYER}.altup.correct_output_scale",), ("d",), _is_scaled),
    *linear("layers.{i}.laurel_left", f"{_LAYER}.laurel.linear_left", "laurel d"),
    *linear("layers.{i}.laurel_right", f"{_LAYER}.laurel.linear_right", "d laurel"),
    *norm("layers.{i}.laurel_norm", f"{_LAYER}.laurel.post_laurel_norm"),
)
_rows = [row for row in TABLE.rows if "stream_scale" not in row.name]
_last = max(i for i, row in enumerate(_rows) if "{i}" in row.name) + 1
_TABLE = WeightMap(
    rows=(
        *_projections("altup_in", "altup_projections"),
        *_rows[:_last],
        *_BLOCK_ROWS,
        *_projections("altup_out", "altup_unembed_projections"),
        *_rows[_last:],
    ),
    prefixes=TABLE.prefixes,
    ignored=re.compile(rf"{TABLE.ignored.pattern}|layers\.\d+\.altup\.correct_output_scale"),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    text = hf.nested("text_config").values if common["architecture"].endswith("ConditionalGeneration") else hf.values
    hf = Fields({**_SIZES, **text}, hf.file)
    hf.only("altup_num_inputs", _STREAMS)
    hf.only("altup_active_idx", 0)
    num_layers = hf.size("num_hidden_layers")
    sizes = _of_layers(hf, "intermediate_size", 16_384)
    hf = Fields({**hf.values, "intermediate_size": sizes[0]}, hf.file)
    heads = grouped_heads(hf, num_kv_heads=2, head_dim=256)
    windows = hf.windows([(i + 1) % 5 > 0 for i in range(num_layers)], 512)
    num_shared = hf.optional_int("num_kv_shared_layers")
    num_shared = 15 if num_shared is None else num_shared
    check_shared(hf, windows, num_shared)
    max_model_len = hf.size("max_position_embeddings", 32_768)
    thetas = {
        "full_attention": hf.number("rope_theta", 1_000_000.0),
        "sliding_attention": hf.number("rope_local_base_freq", 10_000.0),
    }
    ropes = read_local_and_global_rope(hf, heads.head_dim, max_model_len, thetas, scale_both=False)
    options: dict[str, Any] = {
        "max_model_len": max_model_len,
        **alike_in_gemma_3n_and_4(hf, heads),
        "final_logit_softcap": hf.nullable_number("final_logit_softcapping", 30.0),
        "rope": ropes[0],
        "local_rope": ropes[1],
        "sliding_windows": windows,
        "num_kv_shared_layers": num_shared,
        "intermediate_sizes": sizes if len(set(sizes)) > 1 else (),
        "sparsities": _sparsities(hf, num_layers),
        "per_layer_size": hf.size("hidden_size_per_layer_input", 256),
        "per_layer_vocab_size": hf.size("vocab_size_per_layer_input", 262_144),
        "altup": AltUpConfig(
            num_streams=_STREAMS,
            laurel_rank=hf.size("laurel_rank", 64),
            scales_corrected=hf.flag("altup_correct_scale", True),
        ),
    }
    return ModelConfig(**common, **{**read_common(hf, heads), **options})


def _of_layers(hf: Fields, name: str, usual: int) -> tuple[int, ...]:
    """Read a size that is one number, or a list of one for each layer."""
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
    "gemma3n", ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"), ("gemma3n_text", "gemma3n"), _read, _TABLE
)
