"""Reads Granite and networks with experts in place of mlps: Mixtral, Qwen3-MoE, Qwen2-MoE (with a shared expert), OLMoE
(with the attention of OLMo 2) and gpt-oss (windows in every other layer, a sink for each head, experts with biases and
a clamped gate, published in MXFP4).

Granite is Llama with factors of the embedding, the scores, each sublayer's output and the logits. In its mixtures, a
tensor holds all experts of a layer. Granite 4 has a shared expert also without others, and may have no positions.

Jiang et al. 2024, arXiv:2401.04088; Yang et al. 2025, arXiv:2505.09388; 2024, arXiv:2407.10671; Muennighoff et al.
2024, arXiv:2409.02060; OpenAI 2025, arXiv:2508.10925; IBM 2024, "Granite 3.0 language models".
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lightwell.model.checkpoint.families.family import Common, Family, decoders
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.llama import (
    ATTENTION_ROWS,
    MLP_ROWS,
    NORMED_ATTENTION_ROWS,
    TABLE,
    llama_table,
    read_like_llama,
)
from lightwell.model.checkpoint.families.sizes import read_experts
from lightwell.model.checkpoint.families.weight_table import (
    StackedTensor,
    WeightMap,
    WeightRow,
    gated_mlp,
    in_layers,
    linear,
)
from lightwell.model.config import ClampedGate, ExpertsConfig, ModelConfig

_LAYER, _EXPERTS = "model.layers.{i}", "layers.{i}.experts.{e}"
_MLP, _EXPERT = f"{_LAYER}.mlp", f"{_LAYER}.mlp.experts.{{e}}"
_SHARED = f"{_MLP}.shared_expert"
_MIXTRAL = f"{_LAYER}.block_sparse_moe"
_MIXTRAL_EXPERT = f"{_MIXTRAL}.experts.{{e}}"
_MIXTRAL_TABLE = llama_table(
    feedforward=(
        *linear("layers.{i}.router", f"{_MIXTRAL}.gate", "experts d"),
        *gated_mlp(_EXPERTS, (f"{_MIXTRAL_EXPERT}.w1", f"{_MIXTRAL_EXPERT}.w3"), f"{_MIXTRAL_EXPERT}.w2", "expert_ff"),
    )
)


_MIXTURE = (
    *linear("layers.{i}.router", f"{_MLP}.gate", "experts d"),
    *gated_mlp(_EXPERTS, (f"{_EXPERT}.gate_proj", f"{_EXPERT}.up_proj"), f"{_EXPERT}.down_proj", "expert_ff"),
)
_SHARED_EXPERT = (
    *linear("layers.{i}.shared.router", f"{_SHARED}_gate", "1 d"),
    *gated_mlp(
        "layers.{i}.shared", (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj"), f"{_SHARED}.down_proj", "shared_ff"
    ),
)


def _table(attention: Iterable[WeightRow], mixture: Iterable[WeightRow]) -> WeightMap:
    dense = in_layers(lambda config, layer: not config.has_experts(layer), *MLP_ROWS)
    return llama_table(attention, (*dense, *in_layers(ModelConfig.has_experts, *mixture)))


def _read_mixtral(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(num_experts="num_local_experts").with_values(attention_bias=False)
    hf = hf.with_defaults(
        num_key_value_heads=8, max_position_embeddings=4096 * 32, rms_norm_eps=1e-5, rope_theta=1e6, num_experts=8,
        num_experts_per_tok=2,
    )  # fmt: skip
    experts = read_experts(hf, intermediate_size=hf.size("intermediate_size", 14336), normalized=True)
    return read_like_llama(hf, common, sliding_windows=hf.equal_windows(), experts=experts)


def _fields(hf: Fields, num_experts: int, num_chosen: int, **defaults: Any) -> Fields:
    """Return the fields of a Qwen or an OLMoE with their defaults. transformers 5 writes `num_local_experts`."""
    hf = hf.with_spellings(num_experts=("num_experts", "num_local_experts"))
    return hf.with_defaults(num_experts=num_experts, num_experts_per_tok=num_chosen, **defaults)


def _read_qwen3(hf: Fields, common: Common) -> ModelConfig:
    hf = _fields(hf, 128, 8, num_key_value_heads=4, max_position_embeddings=32768, moe_intermediate_size=768)
    windows = hf.equal_windows(4096) if hf.flag("use_sliding_window", False) else ()
    return read_like_llama(hf, common, qk_norm="head", sliding_windows=windows, experts=_read_experts(hf))


def _read_qwen2(hf: Fields, common: Common) -> ModelConfig:
    hf = _fields(hf, 60, 4, num_key_value_heads=16, max_position_embeddings=32768, moe_intermediate_size=1408)
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
    hf = _fields(hf, 64, 8, max_position_embeddings=4096, rms_norm_eps=1e-5)
    size, normalized = hf.size("intermediate_size", 2048), hf.flag("norm_topk_prob", False)
    experts = read_experts(hf, intermediate_size=size, normalized=normalized)
    return read_like_llama(hf, common, qk_norm="full", experts=experts)


def _read_experts(hf: Fields) -> ExpertsConfig:
    dense, step = frozenset(hf.ids("mlp_only_layers")), hf.size("decoder_sparse_step", 1)
    return read_experts(
        hf,
        intermediate_size=hf.size("moe_intermediate_size"),
        normalized=hf.flag("norm_topk_prob", False),
        dense_layers=[i for i in range(hf.size("num_hidden_layers")) if i in dense or (i + 1) % step],
    )


MIXTRAL = Family("mixtral", decoders("Mixtral"), _read_mixtral, _MIXTRAL_TABLE)
QWEN2_MOE = Family("qwen2_moe", decoders("Qwen2Moe"), _read_qwen2, _table(ATTENTION_ROWS, (*_MIXTURE, *_SHARED_EXPERT)))
QWEN3_MOE = Family("qwen3_moe", decoders("Qwen3Moe"), _read_qwen3, _table(ATTENTION_ROWS, _MIXTURE))
OLMOE = Family("olmoe", ("OlmoeForCausalLM",), _read_olmoe, _table(NORMED_ATTENTION_ROWS, _MIXTURE))


_GPT_OSS_EXPERT = f"{_LAYER}.mlp.experts.{{e}}"
_PARTS = {"": "weight", "_bias": "bias", "_blocks": "weight_blocks", "_scales": "weight_scales"}
"""Endings of the names of tensors that hold all experts, and the names of one expert's parts."""
_GPT_OSS_TABLE = llama_table(
    attention=(*ATTENTION_ROWS, WeightRow("layers.{i}.sinks.weight", (f"{_LAYER}.self_attn.sinks",), ("heads",))),
    feedforward=(
        *linear("layers.{i}.router", f"{_LAYER}.mlp.router", "experts d", bias=True),
        *linear(
            "layers.{i}.experts.{e}.gate_up",
            f"{_GPT_OSS_EXPERT}.gate_up",
            "2expert_ff d",
            bias=True,
            arrange="every other",
        ),
        *linear("layers.{i}.experts.{e}.down", f"{_GPT_OSS_EXPERT}.down", "d expert_ff", bias=True),
    ),
    stacked=tuple(
        StackedTensor(f"mlp.experts.{name}_proj{part}", f"mlp.experts.{{e}}.{name}.{one}", is_transposed=not part)
        for name in ("gate_up", "down")
        for part, one in _PARTS.items()
    ),
)
_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""The rotary embedding of files without one."""


def _read_gpt_oss(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(num_experts="num_local_experts").with_defaults(
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, rms_norm_eps=1e-5, attention_bias=True,
        rope_theta=150000.0, rope_scaling=_ROPE, num_experts=128, num_experts_per_tok=4,
    )  # fmt: skip
    return read_like_llama(
        hf,
        common,
        activation="silu",  # of the clamped gate
        clamped_gate=ClampedGate(hf.number("swiglu_limit", 7.0), hf.number("swiglu_alpha", 1.702)),
        attention_sinks=True,
        sliding_windows=hf.windows([i % 2 == 0 for i in range(hf.size("num_hidden_layers"))], 128),
        experts=read_experts(hf, intermediate_size=hf.size("intermediate_size", 2880), normalized=True),
    )


GPT_OSS = Family("gpt_oss", decoders("GptOss"), _read_gpt_oss, _GPT_OSS_TABLE)


_GRANITE_MIXTURE, _GRANITE_SHARED = f"{_LAYER}.block_sparse_moe", f"{_LAYER}.shared_mlp"
_GRANITE_EXPERT = f"{_GRANITE_MIXTURE}.experts.{{e}}"


_MIXED_TABLE = llama_table(
    feedforward=(
        *gated_mlp(
            "layers.{i}", f"{_GRANITE_SHARED}.input_linear", f"{_GRANITE_SHARED}.output_linear", when="not experts"
        ),
        *linear("layers.{i}.router", f"{_GRANITE_MIXTURE}.router.layer", "experts d", when="experts"),
        *gated_mlp(_EXPERTS, f"{_GRANITE_EXPERT}.gate_up", f"{_GRANITE_EXPERT}.down", "expert_ff", when="experts"),
        *gated_mlp(
            "layers.{i}.shared",
            f"{_GRANITE_SHARED}.input_linear",
            f"{_GRANITE_SHARED}.output_linear",
            "shared_ff",
            when="experts.shared_intermediate_size",
        ),
    ),
    stacked=(
        StackedTensor("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.{e}.gate_up.weight"),
        StackedTensor("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.{e}.down.weight"),
    ),
)


def _read_granite(hf: Fields, common: Common, **options: Any) -> ModelConfig:
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


def _granite_experts(hf: Fields, shared: int | None = None) -> ExpertsConfig:
    """Return the experts. shared: the neurons of the shared one, or None without it."""
    hf = hf.with_spellings(num_experts="num_local_experts").with_defaults(num_experts=8, num_experts_per_tok=2)
    experts = read_experts(hf, intermediate_size=hf.size("intermediate_size", 11008), normalized=True)
    return replace(experts, shared_intermediate_size=shared)


def _read_moe(hf: Fields, common: Common) -> ModelConfig:
    return _read_granite(hf, common, experts=_granite_experts(hf))


def _read_shared(hf: Fields, common: Common) -> ModelConfig:
    shared = hf.size("shared_intermediate_size") if hf.values.get("shared_intermediate_size") else None
    return _read_granite(hf, common, experts=_granite_experts(hf, shared))


def _read_hybrid(hf: Fields, common: Common) -> ModelConfig:
    is_old = not hf.values.get("layer_types") and hf.values.get("layers_block_type")
    spelled = "layers_block_type" if is_old else "layer_types"
    kinds = hf.values.get(spelled) or ["mamba"]
    if not isinstance(kinds, list) or any(kind not in ("attention", "full_attention") for kind in kinds):
        raise hf.refuse(spelled, "only attention layers are supported, not mamba")
    positions = hf.values.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise hf.refuse("position_embedding_type", "rope, nope and null are supported")
    options = {} if positions == "rope" else {"rope": None}
    shared = hf.size("shared_intermediate_size", 1024)
    if hf.values.get("num_local_experts") == 0:
        return _read_granite(hf, common, intermediate_size=shared, **options)
    return _read_granite(hf, common, experts=_granite_experts(hf, shared), **options)


GRANITE = Family("granite", ("GraniteForCausalLM",), _read_granite, TABLE)
GRANITE4 = Family("granite4", ("GraniteMoeHybridForCausalLM",), _read_hybrid, _MIXED_TABLE, types=("granitemoehybrid",))
GRANITE_MOE = Family("granite_moe", ("GraniteMoeForCausalLM",), _read_moe, _MIXED_TABLE, types=("granitemoe",))
GRANITE_SHARED = Family(
    "granite_moe_shared", ("GraniteMoeSharedForCausalLM",), _read_shared, _MIXED_TABLE, types=("granitemoeshared",)
)
