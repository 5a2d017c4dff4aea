"""The variants of the families that the tests cover."""

from typing import Any

from tests.tiny.families import PHI_LONG, ROPE_VARIANTS, WINDOW

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-gqa": ("llama", {"num_key_value_heads": 2}),
    "llama-mqa-untied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2, "head_dim": 20}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh", "head_dim": None}),
    **{f"llama-{name}": ("llama", options) for name, options in ROPE_VARIANTS.items()},
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, "tie_word_embeddings": False},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {"tie_word_embeddings": False}),
    "qwen2_moe": ("qwen2_moe", {}),
    "olmoe": ("olmoe", {}),
    "mixtral": ("mixtral", {}),
    "qwen3_5": ("qwen3_5", {"tie_word_embeddings": False}),
    "gpt_oss": ("gpt_oss", {"tie_word_embeddings": False}),
    "smollm3": ("smollm3", {}),
    "granite": ("granite", {"attention_bias": True}),
    "granite4": ("granite4", {}),
    "granite4-experts": (
        "granite4",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "position_embedding_type": None, "intermediate_size": 36},
    ),
    "lfm2": ("lfm2", {}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3", {}),
    "gemma4": ("gemma4", {}),
    "gemma4-e2b": (
        "gemma4",
        {
            **{"num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
            **{"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "attention_k_eq_v": False},
            "hidden_size_per_layer_input": 12,
            "rms_norm_eps": 0.3,  # all gates of a layer may be nearly closed: divided by less, float32 shows
        },
    ),
    "gemma4-experts": (
        "gemma4",
        {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 36},
    ),
    "gemma3n": ("gemma3n", {"intermediate_size": [100, 100, 84, 100]}),
    "embedding_gemma": ("embedding_gemma", {}),
    "phi3": ("phi3", {"tie_word_embeddings": False}),
    "phi3-long": (
        "phi3",
        {"sliding_window": WINDOW, "hidden_size": 64, "original_max_position_embeddings": 32, **PHI_LONG},
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"layer_types": ["sliding_attention", "full_attention"]}),
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2-relu-unscaled": ("gpt2", {"activation_function": "relu", "scale_attn_weights": False, "n_inner": None}),
    "gpt_neox": ("gpt_neox", {"tie_word_embeddings": False}),
    "gpt_neox-sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "opt": ("opt", {}),
    "opt-post": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 20}),
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {}),
    "mpnet": ("mpnet", {}),
    "modernbert": ("modernbert", {}),
    "modernbert-biases": (
        "modernbert",
        {
            **{"attention_bias": True, "mlp_bias": True, "norm_bias": True, "num_attention_heads": 2},
            **{"classifier_bias": True, "classifier_activation": "relu", "decoder_bias": False},
            "tie_word_embeddings": False,
        },
    ),
    "nomic_bert": ("nomic_bert", {}),
    "jina_bert": ("jina_bert", {}),
    "jina_embeddings_v3": ("jina_embeddings_v3", {}),
    "t5": ("t5", {}),
    "t5-gated-untied": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("bart", {}),
    "marian": ("marian", {}),
}
"""Family and options of every kind of checkpoint the tests should cover."""
