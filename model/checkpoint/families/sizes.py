"""Reads the sizes of a network and of its experts from config.json, under the field names that most families share."""

from collections.abc import Sequence
from typing import Any

from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.config import ExpertsConfig

_MOST_EXPERTS = 100_000
"""Most experts of all layers together. Each is an entry of a table, which must fit in memory."""


def read_sizes(hf: Fields, heads: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelConfig that almost all families have. heads: from one of the functions below."""
    return {
        **heads,
        "vocab_size": hf.size("vocab_size"),
        "num_layers": hf.size("num_hidden_layers"),
        "intermediate_size": hf.size("intermediate_size"),
        "max_model_len": hf.size("max_position_embeddings"),
        "activation": hf.activation("hidden_act"),
        "tie_word_embeddings": hf.flag("tie_word_embeddings", False),
    }


def equal_heads(hf: Fields) -> dict[str, Any]:
    """Return the width and the heads of a network with as many key heads as query heads, as fields of ModelConfig.

    Raises ModelLoadError if the number of heads does not divide the width.
    """
    hidden_size, num_heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    if hidden_size % num_heads:
        heads = hf.spelling("num_attention_heads")
        raise hf.refuse("hidden_size", f"a multiple of {heads} ({num_heads}) is expected")
    return _heads(hidden_size, num_heads, num_heads, hidden_size // num_heads)


def grouped_heads(hf: Fields) -> dict[str, Any]:
    """Return the width and the heads of a network with shared key heads, as fields of ModelConfig.

    Without a number of key heads, or with null, each query head has its own; without a head_dim it is width / heads.
    Raises ModelLoadError if the key heads cannot be shared evenly, and for an odd head_dim, which cannot be rotated.
    """
    hidden_size, num_heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    shared = hf.nullable_size("num_key_value_heads", None) or num_heads
    if num_heads % shared:
        raise hf.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads}) is expected")
    head_dim = hf.size("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise hf.refuse("head_dim", f"rotary embedding needs an even head_dim, not {head_dim}")
    return _heads(hidden_size, num_heads, shared, head_dim)


def _heads(hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "attention_scale": head_dim**-0.5,
    }


def read_experts(
    hf: Fields, *, intermediate_size: int, normalized: bool, dense_layers: Sequence[int] = (), beside_mlp: bool = False
) -> ExpertsConfig:
    """Return the configuration of `num_experts` experts; a token passes `num_experts_per_tok` of them.

    The arguments are fields of `ExpertsConfig`. Raises ModelLoadError for too many experts, and for more chosen experts
    than experts.
    """
    num_layers, num_experts = hf.size("num_hidden_layers"), hf.size("num_experts")
    if num_experts * num_layers > _MOST_EXPERTS:
        raise hf.refuse("num_experts", f"at most {_MOST_EXPERTS} in all {num_layers} layers are accepted")
    num_chosen = hf.size("num_experts_per_tok")
    if num_chosen > num_experts:
        raise hf.refuse("num_experts_per_tok", f"at most {hf.spelling('num_experts')} ({num_experts}) is accepted")
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=intermediate_size,
        normalized=normalized,
        dense_layers=tuple(dense_layers),
        beside_mlp=beside_mlp,
    )
