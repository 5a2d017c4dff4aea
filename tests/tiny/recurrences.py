"""The families with some layers that keep a state in place of keys and values, as transformers builds them."""

import transformers as hf

from tests.tiny.families import FAMILIES, PARTIAL, Family

_GROUPED = FAMILIES["qwen2"].options

RECURRENCES: dict[str, Family] = {
    "qwen3_5": Family(
        "decoder",
        hf.Qwen3_5TextConfig,
        hf.Qwen3_5ForCausalLM,
        {
            **_GROUPED,
            "num_hidden_layers": 5,
            "layer_types": [*["linear_attention", "full_attention"] * 2, "linear_attention"],
            "rms_norm_eps": 1e-3,  # a head's output may be near 0: divided by less, float32 shows in it
            "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 10,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            **PARTIAL,
        },
        norm_centre=0.0,
        gain=1.2,
    ),
    "lfm2": Family(
        "decoder",
        hf.Lfm2Config,
        hf.Lfm2ForCausalLM,
        {
            **_GROUPED,
            "num_hidden_layers": 5,
            "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
            "conv_bias": True,
            "block_multiple_of": 8,
        },
    ),
}
