"""Reads networks with experts in place of mlps: Mixtral, Qwen3-MoE, Qwen2-MoE (with a shared expert) and OLMoE (with
the attention of OLMo 2).

Jiang et al. 2024, arXiv:2401.04088; Yang et al. 2025, arXiv:2505.09388; 2024, arXiv:2407.10671; Muennighoff et al.
2024, arXiv:2409.02060.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import ATTENTION_ROWS, MLP_ROWS, llama_table, read_like_llama
from model.checkpoint.families.olmo2 import NORMED_ATTENTION_ROWS
from model.checkpoint.families.sizes import read_experts
from model.checkpoint.families.weight_table import WeightMap, WeightRow, in_layers, linear
from model.config import ExpertsConfig, ModelConfig

_MLP, _EXPERT = "model.layers.{i}.mlp", "model.layers.{i}.mlp.experts.{e}"
_SHARED = f"{_MLP}.shared_expert"
_MIXTRAL = "model.layers.{i}.block_sparse_moe"
_MIXTRAL_EXPERT = f"{_MIXTRAL}.experts.{{e}}"
_MIXTRAL_TABLE = llama_table(
    feedforward=(
        *linear("layers.{i}.router", f"{_MIXTRAL}.gate", "experts d"),
        *linear(
            "layers.{i}.experts.{e}.gate_up",
            (f"{_MIXTRAL_EXPERT}.w1", f"{_MIXTRAL_EXPERT}.w3"),
            ("expert_ff d", "expert_ff d"),
        ),
        *linear("layers.{i}.experts.{e}.down", f"{_MIXTRAL_EXPERT}.w2", "d expert_ff"),
    ),
)


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
    rows = (*in_layers(_is_dense, *MLP_ROWS), *in_layers(ModelConfig.has_experts, *mixture))
    return llama_table(attention, rows)


def _read_mixtral(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(num_experts="num_local_experts").with_defaults(
        num_key_value_heads=8,
        max_position_embeddings=4096 * 32,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        num_experts=8,
        num_experts_per_tok=2,
    )
    return read_like_llama(
        hf,
        common,
        attention_bias=False,
        attention_out_bias=False,
        sliding_windows=hf.equal_windows(),
        experts=read_experts(hf, intermediate_size=hf.size("intermediate_size", 14336), normalized=True),
    )


def _fields(hf: Fields, **defaults: Any) -> Fields:
    """Return the fields of a Qwen or an OLMoE; transformers 5 writes `num_local_experts`."""
    return hf.with_spellings(num_experts=("num_experts", "num_local_experts")).with_defaults(**defaults)


def _read_qwen3(hf: Fields, common: Common) -> ModelConfig:
    hf = _fields(
        hf,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    )
    windows = hf.equal_windows(4096) if hf.flag("use_sliding_window", False) else ()
    return read_like_llama(hf, common, qk_norm="head", sliding_windows=windows, experts=_read_experts(hf))


def _read_qwen2(hf: Fields, common: Common) -> ModelConfig:
    hf = _fields(
        hf,
        num_key_value_heads=16,
        max_position_embeddings=32768,
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
    )
    shared = hf.size("shared_expert_intermediate_size", 5632)
    windows: tuple[int | None, ...] = ()
    if hf.flag("use_sliding_window", False):
        most = hf.integer("max_window_layers", 28)
        windows = hf.windows([i % 2 == 0 and i < most for i in range(hf.size("num_hidden_layers"))], 4096)
    return read_like_llama(
        hf,
        common,
        attention_bias=hf.flag("qkv_bias", True),
        attention_out_bias=False,
        sliding_windows=windows,
        experts=replace(_read_experts(hf), shared_intermediate_size=shared, shared_gate=True),
    )


def _read_olmoe(hf: Fields, common: Common) -> ModelConfig:
    hf.only("clip_qkv", None)
    hf = _fields(hf, max_position_embeddings=4096, rms_norm_eps=1e-5, num_experts=64, num_experts_per_tok=8)
    size, normalized = hf.size("intermediate_size", 2048), hf.flag("norm_topk_prob", False)
    experts = read_experts(hf, intermediate_size=size, normalized=normalized)
    return read_like_llama(hf, common, qk_norm="full", experts=experts)


def _read_experts(hf: Fields) -> ExpertsConfig:
    """Return the experts of a Qwen."""
    dense, step = frozenset(hf.ids("mlp_only_layers")), hf.size("decoder_sparse_step", 1)
    return read_experts(
        hf,
        intermediate_size=hf.size("moe_intermediate_size"),
        normalized=hf.flag("norm_topk_prob", False),
        dense_layers=[i for i in range(hf.size("num_hidden_layers")) if i in dense or (i + 1) % step],
    )


MIXTRAL = Family(
    "mixtral", ("MixtralForCausalLM", "MixtralForSequenceClassification"), ("mixtral",), _read_mixtral, _MIXTRAL_TABLE
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
