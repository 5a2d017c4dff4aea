"""The families with mixtures of experts, and families with optional ones, as transformers builds them."""

import transformers as hf

from tests.tiny.families import FAMILIES, ROPE_VARIANTS, WINDOW, Family

_GROUPED, _GRANITE = FAMILIES["qwen2"].options, FAMILIES["granite"].options
_ALTERNATING = {
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_NO_MAMBA = {
    "layer_types": ["attention"] * 2,
    "position_embedding_type": "rope",
    "shared_intermediate_size": 100,
    "mamba_n_heads": 4,
}
"""Options of a Granite 4 with attention in all layers; transformers checks the last option all the same."""

MIXTURES: dict[str, Family] = {
    "qwen2_moe": Family(
        "decoder",
        hf.Qwen2MoeConfig,
        hf.Qwen2MoeForCausalLM,
        {
            **_GROUPED,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 36,
            "shared_expert_intermediate_size": 44,
            "num_hidden_layers": 3,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3_moe": Family(
        "decoder",
        hf.Qwen3MoeConfig,
        hf.Qwen3MoeForCausalLM,
        {
            **_GROUPED,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 36,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
    ),
    "olmoe": Family(
        "decoder",
        hf.OlmoeConfig,
        hf.OlmoeForCausalLM,
        {**_GROUPED, "num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 36, "head_dim": 12},
    ),
    "mixtral": Family(
        "decoder",
        hf.MixtralConfig,
        hf.MixtralForCausalLM,
        {**_GROUPED, "num_local_experts": 5, "intermediate_size": 36, "sliding_window": WINDOW},
    ),
    "gpt_oss": Family(
        "decoder",
        hf.GptOssConfig,
        hf.GptOssForCausalLM,
        {
            **_GROUPED,
            **_ALTERNATING,
            "intermediate_size": 36,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "swiglu_limit": 1.5,
            "rope_parameters": {**ROPE_VARIANTS["yarn"]["rope_parameters"], "truncate": False},
        },
    ),
    "granite4": Family(
        "decoder",
        hf.GraniteMoeHybridConfig,
        hf.GraniteMoeHybridForCausalLM,
        {**_GRANITE, **_NO_MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "granite_moe": Family(
        "decoder", hf.GraniteMoeConfig, hf.GraniteMoeForCausalLM, {**_GRANITE, "num_local_experts": 5}
    ),
    "granite_moe_shared": Family(
        "decoder",
        hf.GraniteMoeSharedConfig,
        hf.GraniteMoeSharedForCausalLM,
        {**_GRANITE, "num_local_experts": 5, "shared_intermediate_size": 28},
    ),
}
