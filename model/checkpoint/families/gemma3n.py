"""Reads the text network of Gemma 3n: Gemma 4's E2B and E4B with several residual streams, a low-rank path around
attention, and mlps with sparse gates. Google 2025, "Gemma 3n model card", and the code of transformers.

The networks for images and sounds are not read.
"""

import re

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.gemma import of_gemma
from model.checkpoint.families.gemma4 import TABLE, alike_in_gemma_3n_and_4, check_shared
from model.checkpoint.families.llama import read_like_llama
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
"""Values of absent fields."""


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
    hf = hf.text_network() if common["architecture"].endswith("ConditionalGeneration") else hf
    hf = of_gemma(hf, num_key_value_heads=2, max_position_embeddings=32_768, **_SIZES)
    hf.only("altup_num_inputs", _STREAMS)
    hf.only("altup_active_idx", 0)
    num_layers = hf.size("num_hidden_layers")
    sizes = _of_layers(hf, "intermediate_size", 16_384)
    hf = hf.with_values(intermediate_size=sizes[0])
    windows = hf.windows([(i + 1) % 5 > 0 for i in range(num_layers)], 512)
    num_shared = hf.integer("num_kv_shared_layers", 15)
    check_shared(hf, windows, num_shared)
    thetas = {
        "full_attention": hf.number("rope_theta", 1_000_000.0),
        "sliding_attention": hf.number("rope_local_base_freq", 10_000.0),
    }
    rope, local_rope = read_local_and_global_rope(
        hf, hf.size("head_dim"), hf.size("max_position_embeddings"), thetas, scale_both=False
    )
    return read_like_llama(
        hf,
        common,
        **alike_in_gemma_3n_and_4(hf),
        final_logit_softcap=hf.nullable_number("final_logit_softcapping", 30.0),
        rope=rope,
        local_rope=local_rope,
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
    "gemma3n", ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"), ("gemma3n_text", "gemma3n"), _read, _TABLE
)
