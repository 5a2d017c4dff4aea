"""Reads SmolLM3: Llama without rotary positions in every fourth layer (Yang et al. 2025, arXiv:2501.18795).

Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner".
"""

from lightwell.model.checkpoint.families.family import Common, Family, decoders
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.llama import TABLE, read_like_llama
from lightwell.model.config import ModelConfig


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(
        num_key_value_heads=4, max_position_embeddings=32768, rope_theta=2_000_000.0, tie_word_embeddings=True
    )
    unrotated, mlp_bias = _unrotated_layers(hf), hf.flag("mlp_bias", False)
    windows = _windows(hf, unrotated)
    return read_like_llama(hf, common, mlp_bias=mlp_bias, unrotated_layers=unrotated, sliding_windows=windows)


def _unrotated_layers(hf: Fields) -> tuple[int, ...]:
    """Return the layers without rotary positions: the zeros of `no_rope_layers`, or one in `no_rope_layer_interval`."""
    num_layers, rotates = hf.size("num_hidden_layers"), hf.values.get("no_rope_layers")
    if rotates is None:
        interval = hf.size("no_rope_layer_interval", 4)
        return tuple(range(interval - 1, num_layers, interval))
    if not isinstance(rotates, list) or len(rotates) < num_layers or not all(one in (0, 1) for one in rotates):
        raise hf.refuse("no_rope_layers", f"a list of {num_layers}, each 1 (rotary positions) or 0, is expected")
    return tuple(layer for layer in range(num_layers) if not rotates[layer])


def _windows(hf: Fields, unrotated: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the window of each layer, by `layer_types`, else of the layers without rotary positions."""
    window = hf.nullable_size("sliding_window", None) if hf.flag("use_sliding_window", False) else None
    usual = [window is not None and layer in unrotated for layer in range(hf.size("num_hidden_layers"))]
    has_window = hf.windowed_layers(usual)
    if any(has_window) and window is None:
        # The result of transformers then depends on its implementation of attention.
        raise hf.refuse("layer_types", "sliding_attention needs use_sliding_window true and a sliding_window")
    return tuple(window if windowed else None for windowed in has_window) if any(has_window) else ()


SMOLLM3 = Family("smollm3", decoders("SmolLM3"), _read, TABLE)
