"""Reads Qwen3-MoE: Qwen3 with a mixture of experts in place of most mlps. Yang et al. 2025, arXiv:2505.09388."""

from dataclasses import replace

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import ATTENTION_ROWS, EMBED_ROWS, END_ROWS, MLP_ROWS, read_like_llama
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm
from model.config import ExpertsConfig, ModelConfig

_MLP, _EXPERT = "model.layers.{i}.mlp", "model.layers.{i}.mlp.experts.{e}"
_MOST_EXPERTS = 100_000
"""Most experts of all layers together: each is an entry of a table, which must not fill the memory."""


def _is_dense(config: ModelConfig, layer: int) -> bool:
    return not config.has_experts(layer)


_EXPERTS: tuple[WeightRow, ...] = (
    *linear("layers.{i}.router", f"{_MLP}.gate", "experts d"),
    *linear(
        "layers.{i}.experts.{e}.gate_up",
        (f"{_EXPERT}.gate_proj", f"{_EXPERT}.up_proj"),
        ("expert_ff d", "expert_ff d"),
    ),
    *linear("layers.{i}.experts.{e}.down", f"{_EXPERT}.down_proj", "d expert_ff"),
)
_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        *ATTENTION_ROWS,
        *norm("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        *(replace(row, in_layer=_is_dense) for row in MLP_ROWS),
        *(replace(row, in_layer=ModelConfig.has_experts) for row in _EXPERTS),
        *END_ROWS,
    ),
    prefixes=("model.",),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    window = hf.nullable_size("sliding_window", 4096) if hf.flag("use_sliding_window", False) else None
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf, num_kv_heads=4),
        hf.size("max_position_embeddings", 32768),
        qk_norm="head",
        sliding_windows=() if window is None else (window,) * hf.size("num_hidden_layers"),
        experts=_read_experts(hf),
    )


def _read_experts(hf: Fields) -> ExpertsConfig:
    name = "num_experts" if hf.values.get("num_experts") else "num_local_experts"  # the spelling of transformers 5
    num_experts, num_chosen = expert_counts(hf, name, "num_experts_per_tok", (128, 8))
    num_layers, step = hf.size("num_hidden_layers"), hf.size("decoder_sparse_step", 1)
    dense = frozenset(hf.ids("mlp_only_layers"))
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=hf.size("moe_intermediate_size", 768),
        normalized=hf.flag("norm_topk_prob", False),
        dense_layers=tuple(layer for layer in range(num_layers) if layer in dense or (layer + 1) % step),
    )


def expert_counts(
    hf: Fields, count: str, chosen: str, usual: tuple[int | None, int | None] = (None, None)
) -> tuple[int, int]:
    """Read how many experts a layer has, and how many a token goes through, from the fields `count` and `chosen`.

    Raises ModelLoadError where all layers together have more than would fit, or more are chosen than there are.
    """
    num_layers, num_experts = hf.size("num_hidden_layers"), hf.size(count, usual[0])
    if num_experts * num_layers > _MOST_EXPERTS:
        raise hf.refuse(count, f"at most {_MOST_EXPERTS} in all {num_layers} layers are accepted")
    num_chosen = hf.size(chosen, usual[1])
    if num_chosen > num_experts:
        raise hf.refuse(chosen, f"at most {count} ({num_experts}) is accepted")
    return num_experts, num_chosen


QWEN3_MOE = Family("qwen3_moe", ("Qwen3MoeForCausalLM",), ("qwen3_moe",), _read, _TABLE)
