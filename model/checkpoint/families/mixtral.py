"""Reads Mixtral: Mistral with a mixture of experts in place of each mlp. Jiang et al. 2024, arXiv:2401.04088."""

from model.checkpoint.families.experts import read_experts
from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import llama_table, read_like_llama
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import linear
from model.config import ModelConfig

_MIXTURE = "model.layers.{i}.block_sparse_moe"
_EXPERT = f"{_MIXTURE}.experts.{{e}}"
_TABLE = llama_table(
    feedforward=(
        *linear("layers.{i}.router", f"{_MIXTURE}.gate", "experts d"),
        *linear("layers.{i}.experts.{e}.gate_up", (f"{_EXPERT}.w1", f"{_EXPERT}.w3"), ("expert_ff d", "expert_ff d")),
        *linear("layers.{i}.experts.{e}.down", f"{_EXPERT}.w2", "d expert_ff"),
    ),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads, context = grouped_heads(hf, num_kv_heads=8), hf.size("max_position_embeddings", 4096 * 32)
    window = hf.nullable_size("sliding_window", None)
    size = hf.size("intermediate_size", 14336)
    return read_like_llama(
        hf,
        common,
        heads,
        context,
        norm_eps=hf.number("rms_norm_eps", 1e-5),
        attention_bias=False,
        attention_out_bias=False,
        rope=read_rope(hf, heads.head_dim, context, theta=1e6),
        sliding_windows=() if window is None else (window,) * hf.size("num_hidden_layers"),
        experts=read_experts(hf, "num_local_experts", 8, num_chosen=2, intermediate_size=size, normalized=True),
    )


MIXTRAL = Family("mixtral", ("MixtralForCausalLM", "MixtralForSequenceClassification"), ("mixtral",), _read, _TABLE)
