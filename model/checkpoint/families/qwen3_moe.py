"""Reads Qwen3-MoE, Qwen3 with a mixture of experts in place of most mlps, and the mixtures that name experts alike:
Qwen2-MoE, with one that every token goes through, and OLMoE, whose attention is OLMo 2's.

Yang et al. 2025, arXiv:2505.09388; 2024, arXiv:2407.10671; Muennighoff et al. 2024, arXiv:2409.02060.
"""

from collections.abc import Iterable
from dataclasses import replace

from model.checkpoint.families.experts import read_experts
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import ATTENTION_ROWS, MLP_ROWS, llama_table, read_like_llama
from model.checkpoint.families.olmo2 import NORMED_ATTENTION_ROWS
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear
from model.config import ExpertsConfig, ModelConfig

_MLP, _EXPERT = "model.layers.{i}.mlp", "model.layers.{i}.mlp.experts.{e}"
_SHARED = f"{_MLP}.shared_expert"


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
_SHARED_EXPERT: tuple[WeightRow, ...] = (
    *linear("layers.{i}.shared.router", f"{_SHARED}_gate", "1 d"),
    *linear(
        "layers.{i}.shared.gate_up", (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj"), ("shared_ff d", "shared_ff d")
    ),
    *linear("layers.{i}.shared.down", f"{_SHARED}.down_proj", "d shared_ff"),
)


def _table(attention: Iterable[WeightRow], mixture: Iterable[WeightRow]) -> WeightMap:
    dense = (replace(row, in_layer=_is_dense) for row in MLP_ROWS)
    return llama_table(attention, (*dense, *(replace(row, in_layer=ModelConfig.has_experts) for row in mixture)))


def _read_qwen3(hf: Fields, common: Common) -> ModelConfig:
    window = hf.nullable_size("sliding_window", 4096) if hf.flag("use_sliding_window", False) else None
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf, num_kv_heads=4),
        hf.size("max_position_embeddings", 32768),
        qk_norm="head",
        sliding_windows=() if window is None else (window,) * hf.size("num_hidden_layers"),
        experts=_read_experts(hf, num_experts=128, num_chosen=8, intermediate_size=768),
    )


def _read_qwen2(hf: Fields, common: Common) -> ModelConfig:
    experts = _read_experts(hf, num_experts=60, num_chosen=4, intermediate_size=1408)
    shared = hf.size("shared_expert_intermediate_size", 5632)
    windows: tuple[int | None, ...] = ()
    if hf.flag("use_sliding_window", False):
        first = hf.optional_int("max_window_layers")
        most = 28 if first is None else first
        windows = hf.windows([i % 2 == 0 and i < most for i in range(hf.size("num_hidden_layers"))], 4096)
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf, num_kv_heads=16),
        hf.size("max_position_embeddings", 32768),
        attention_bias=hf.flag("qkv_bias", True),
        attention_out_bias=False,
        sliding_windows=windows,
        experts=replace(experts, shared_intermediate_size=shared, shared_gate=True),
    )


def _read_olmoe(hf: Fields, common: Common) -> ModelConfig:
    hf.only("clip_qkv", None)
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf),
        hf.size("max_position_embeddings", 4096),
        norm_eps=hf.number("rms_norm_eps", 1e-5),
        qk_norm="full",
        experts=read_experts(
            hf,
            _name_of_count(hf),
            64,
            num_chosen=8,
            intermediate_size=hf.size("intermediate_size", 2048),
            normalized=hf.flag("norm_topk_prob", False),
        ),
    )


def _name_of_count(hf: Fields) -> str:
    return "num_experts" if hf.values.get("num_experts") else "num_local_experts"  # the spelling of transformers 5


def _read_experts(hf: Fields, *, num_experts: int, num_chosen: int, intermediate_size: int) -> ExpertsConfig:
    """Read what both Qwens write; the arguments are for files that do not."""
    dense, step = frozenset(hf.ids("mlp_only_layers")), hf.size("decoder_sparse_step", 1)
    layers = range(hf.size("num_hidden_layers"))
    return read_experts(
        hf,
        _name_of_count(hf),
        num_experts,
        num_chosen=num_chosen,
        intermediate_size=hf.size("moe_intermediate_size", intermediate_size),
        normalized=hf.flag("norm_topk_prob", False),
        dense_layers=[layer for layer in layers if layer in dense or (layer + 1) % step],
    )


QWEN2_MOE = Family(
    "qwen2_moe",
    ("Qwen2MoeForCausalLM", "Qwen2MoeForSequenceClassification"),
    ("qwen2_moe",),
    _read_qwen2,
    _table(ATTENTION_ROWS, (*_EXPERTS, *_SHARED_EXPERT)),
)
QWEN3_MOE = Family(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"),
    ("qwen3_moe",),
    _read_qwen3,
    _table(ATTENTION_ROWS, _EXPERTS),
)
OLMOE = Family("olmoe", ("OlmoeForCausalLM",), ("olmoe",), _read_olmoe, _table(NORMED_ATTENTION_ROWS, _EXPERTS))
