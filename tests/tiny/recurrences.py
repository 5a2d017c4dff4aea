"""The families with some layers that keep a state in place of keys and values, as transformers builds them."""

from tests.tiny.families import GROUPED, PARTIAL, Family, decoder

RECURRENCES: dict[str, Family] = {
    "qwen3_5": decoder(
        "Qwen3_5",
        {
            **{**GROUPED, **PARTIAL, "num_hidden_layers": 5},
            "layer_types": [*["linear_attention", "full_attention"] * 2, "linear_attention"],
            "rms_norm_eps": 1e-3,  # a head's output may be near 0: divided by less, float32 shows in it
            **{"linear_conv_kernel_dim": 3, "linear_key_head_dim": 12, "linear_value_head_dim": 10},
            **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
        },
        norm_centre=0.0,
        gain=1.2,
    ),
    "lfm2": decoder(
        "Lfm2",
        {
            **{**GROUPED, "num_hidden_layers": 5, "conv_bias": True, "block_multiple_of": 8},
            "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
        },
    ),
}
