"""Reads SmolLM3: Llama, of which every fourth layer has no rotary positions (Yang et al. 2025, arXiv:2501.18795).

Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner".
"""

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import TABLE, read_like_llama
from model.checkpoint.families.rotary import read_rope
from model.config import ModelConfig


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads = grouped_heads(hf, num_kv_heads=4)
    context = hf.size("max_position_embeddings", 32768)
    unrotated = _unrotated_layers(hf)
    return read_like_llama(
        hf,
        common,
        heads,
        context,
        mlp_bias=hf.flag("mlp_bias", False),
        rope=read_rope(hf, heads.head_dim, context, theta=2_000_000.0),
        unrotated_layers=unrotated,
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        sliding_windows=_windows(hf, unrotated),
    )


def _unrotated_layers(hf: Fields) -> tuple[int, ...]:
    """Return the layers without rotary positions: where `no_rope_layers` is 0, despite its name, or, if it is absent,
    one in `no_rope_layer_interval`.
    """
    num_layers, rotates = hf.size("num_hidden_layers"), hf.values.get("no_rope_layers")
    if rotates is None:
        interval = hf.size("no_rope_layer_interval", 4)
        return tuple(range(interval - 1, num_layers, interval))
    if not isinstance(rotates, list) or len(rotates) < num_layers or not all(one in (0, 1) for one in rotates):
        raise hf.refuse("no_rope_layers", f"a list of {num_layers}, each 1 (rotary positions) or 0, is expected")
    return tuple(layer for layer in range(num_layers) if not rotates[layer])


def _windows(hf: Fields, unrotated: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the window of each layer. `layer_types` says which layers have it; without it, those without rotary
    positions.
    """
    window = hf.nullable_size("sliding_window", None) if hf.flag("use_sliding_window", False) else None
    usual = [window is not None and layer in unrotated for layer in range(hf.size("num_hidden_layers"))]
    has_window = hf.windowed_layers(usual)
    if any(has_window) and window is None:
        # What transformers computes then depends on how it computes attention.
        raise hf.refuse("layer_types", "sliding_attention needs use_sliding_window true and a sliding_window")
    return tuple(window if windowed else None for windowed in has_window) if any(has_window) else ()


SMOLLM3 = Family("smollm3", ("SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification"), ("smollm3",), _read, TABLE)
