"""Reads Granite: Llama with factors of the embedding, the scores, each sublayer's output and the logits.

IBM 2024, "Granite 3.0 language models". A tensor holds all experts of a layer. Granite 4 has a shared expert also
without others, and may have no positions.
"""

from dataclasses import replace
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import TABLE, llama_table, read_like_llama
from model.checkpoint.families.sizes import read_experts
from model.checkpoint.families.weight_table import StackedTensor, has, linear
from model.config import ExpertsConfig, ModelConfig

_BLOCK = "model.layers.{i}"
_has_experts = has("experts")
_MIXTURE, _SHARED = f"{_BLOCK}.block_sparse_moe", f"{_BLOCK}.shared_mlp"


def _is_dense(config: ModelConfig) -> bool:
    return config.experts is None


def _has_shared(config: ModelConfig) -> bool:
    return config.experts is not None and config.experts.shared_intermediate_size is not None


_MIXED_TABLE = llama_table(
    feedforward=(
        *linear("layers.{i}.gate_up", f"{_SHARED}.input_linear", "2ff d", when=_is_dense),
        *linear("layers.{i}.down", f"{_SHARED}.output_linear", "d ff", when=_is_dense),
        *linear("layers.{i}.router", f"{_MIXTURE}.router.layer", "experts d", when=_has_experts),
        *linear(
            "layers.{i}.experts.{e}.gate_up", f"{_MIXTURE}.experts.{{e}}.gate_up", "2expert_ff d", when=_has_experts
        ),
        *linear("layers.{i}.experts.{e}.down", f"{_MIXTURE}.experts.{{e}}.down", "d expert_ff", when=_has_experts),
        *linear("layers.{i}.shared.gate_up", f"{_SHARED}.input_linear", "2shared_ff d", when=_has_shared),
        *linear("layers.{i}.shared.down", f"{_SHARED}.output_linear", "d shared_ff", when=_has_shared),
    ),
    stacked=(
        StackedTensor("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.{e}.gate_up.weight"),
        StackedTensor("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.{e}.down.weight"),
    ),
)


def _read(hf: Fields, common: Common, **options: Any) -> ModelConfig:
    return read_like_llama(
        hf.with_defaults(max_position_embeddings=2048),
        common,
        mlp_bias=hf.flag("mlp_bias", False),
        embedding_scale=hf.number("embedding_multiplier", 1.0),
        attention_scale=hf.number("attention_multiplier", 1.0),
        residual_scale=hf.number("residual_multiplier", 1.0),
        logit_scale=1 / hf.number("logits_scaling", 1.0),
        **options,
    )


def _experts(hf: Fields, shared: int | None = None) -> ExpertsConfig:
    """Return the experts. shared: the neurons of the shared one, or None without it."""
    hf = hf.with_spellings(num_experts="num_local_experts").with_defaults(num_experts=8, num_experts_per_tok=2)
    experts = read_experts(hf, intermediate_size=hf.size("intermediate_size", 11008), normalized=True)
    return replace(experts, shared_intermediate_size=shared)


def _read_moe(hf: Fields, common: Common) -> ModelConfig:
    return _read(hf, common, experts=_experts(hf))


def _read_shared(hf: Fields, common: Common) -> ModelConfig:
    shared = hf.size("shared_intermediate_size") if hf.values.get("shared_intermediate_size") else None
    return _read(hf, common, experts=_experts(hf, shared))


def _read_hybrid(hf: Fields, common: Common) -> ModelConfig:
    is_old = not hf.values.get("layer_types") and hf.values.get("layers_block_type")
    spelled = "layers_block_type" if is_old else "layer_types"
    kinds = hf.values.get(spelled) or ["mamba"]
    if not isinstance(kinds, list) or any(kind not in ("attention", "full_attention") for kind in kinds):
        raise hf.refuse(spelled, "only attention in every layer is supported, and no mamba")
    positions = hf.values.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise hf.refuse("position_embedding_type", "rope, nope and null are supported")
    options = {} if positions == "rope" else {"rope": None}
    shared = hf.size("shared_intermediate_size", 1024)
    if hf.values.get("num_local_experts") == 0:
        return _read(hf, common, intermediate_size=shared, **options)
    return _read(hf, common, experts=_experts(hf, shared), **options)


GRANITE = Family("granite", ("GraniteForCausalLM",), ("granite",), _read, TABLE)
GRANITE4 = Family("granite4", ("GraniteMoeHybridForCausalLM",), ("granitemoehybrid",), _read_hybrid, _MIXED_TABLE)
GRANITE_MOE = Family("granite_moe", ("GraniteMoeForCausalLM",), ("granitemoe",), _read_moe, _MIXED_TABLE)
GRANITE_SHARED = Family(
    "granite_moe_shared", ("GraniteMoeSharedForCausalLM",), ("granitemoeshared",), _read_shared, _MIXED_TABLE
)
