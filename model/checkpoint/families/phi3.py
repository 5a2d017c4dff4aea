"""Reads Phi-3 and Phi-4-mini: Llama with fused projections, and rotary embeddings that may rotate only a part of each
head and be stretched by factors of their own. Abdin et al. 2024, arXiv:2404.14219.
"""

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import OLD_BUFFERS, llama_table, read_common
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import linear
from model.config import ModelConfig

_TABLE = llama_table(
    attention=(
        *linear("layers.{i}.qkv", "model.layers.{i}.self_attn.qkv_proj", "qkv d"),
        *linear("layers.{i}.attn_out", "model.layers.{i}.self_attn.o_proj", "d q"),
    ),
    feedforward=(
        *linear("layers.{i}.gate_up", "model.layers.{i}.mlp.gate_up_proj", "2ff d"),
        *linear("layers.{i}.down", "model.layers.{i}.mlp.down_proj", "d ff"),
    ),
    ignored=OLD_BUFFERS,
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads = grouped_heads(hf)
    max_model_len = hf.size("max_position_embeddings", 4096)
    window = hf.nullable_size("sliding_window", None)
    shared = read_common(hf, heads)
    return ModelConfig(
        **common,
        **{**shared, "norm_eps": hf.number("rms_norm_eps", 1e-5)},
        max_model_len=max_model_len,
        activation=hf.activation("hidden_act", "silu"),
        # The length before stretching is next to the parameters, and wins over what they say.
        rope=read_rope(
            hf,
            heads.head_dim,
            max_model_len,
            original=hf.size("original_max_position_embeddings", 4096),
            partial=1.0,
            renamed={"yarn": "longrope"},  # what early files called it
        ),
        sliding_windows=() if window is None else (window,) * hf.size("num_hidden_layers"),
    )


PHI3 = Family("phi3", ("Phi3ForCausalLM", "Phi3ForSequenceClassification"), ("phi3",), _read, _TABLE)
