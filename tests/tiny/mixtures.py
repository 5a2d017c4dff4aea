"""The families with mixtures of experts, and families with optional ones, as transformers builds them."""

from tests.tiny.families import ALTERNATING, FAMILIES, GROUPED, ROPE_VARIANTS, WINDOW, Family, decoder

_GRANITE = FAMILIES["granite"].options
_TWO_OF_FIVE = {**GROUPED, "num_experts": 5, "num_experts_per_tok": 2}
_NO_MAMBA = {
    "layer_types": ["attention"] * 2, "position_embedding_type": "rope", "shared_intermediate_size": 100,
    "mamba_n_heads": 4,
}  # fmt: skip
"""Options of a Granite 4 with attention in all layers; transformers checks the last option all the same."""

MIXTURES: dict[str, Family] = {
    "qwen2_moe": decoder(
        "Qwen2Moe",
        {
            **{**_TWO_OF_FIVE, "moe_intermediate_size": 36, "shared_expert_intermediate_size": 44},
            **{"num_hidden_layers": 3, "decoder_sparse_step": 2},
        },
    ),
    "qwen3_moe": decoder(
        "Qwen3Moe", {**_TWO_OF_FIVE, "moe_intermediate_size": 36, "norm_topk_prob": True, "mlp_only_layers": [0]}
    ),
    "olmoe": decoder("Olmoe", {**_TWO_OF_FIVE, "intermediate_size": 36, "head_dim": 12}),
    "mixtral": decoder(
        "Mixtral", {**GROUPED, "num_local_experts": 5, "intermediate_size": 36, "sliding_window": WINDOW}
    ),
    "gpt_oss": decoder(
        "GptOss",
        {
            **{**GROUPED, **ALTERNATING, "intermediate_size": 36, "num_local_experts": 5, "num_experts_per_tok": 2},
            "swiglu_limit": 1.5,
            "rope_parameters": {**ROPE_VARIANTS["yarn"]["rope_parameters"], "truncate": False},
        },
    ),
    "granite4": decoder(
        "GraniteMoeHybrid", {**_GRANITE, **_NO_MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0}
    ),
    "granite_moe": decoder("GraniteMoe", {**_GRANITE, "num_local_experts": 5}),
    "granite_moe_shared": decoder(
        "GraniteMoeShared", {**_GRANITE, "num_local_experts": 5, "shared_intermediate_size": 28}
    ),
}
