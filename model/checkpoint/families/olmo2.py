"""Reads OLMo 2: norms of each sublayer's output, and of q and k over all heads at once.

Walsh et al. 2025, arXiv:2501.00656.
"""

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import EMBED_ROWS, END_ROWS, MLP_ROWS, OLD_BUFFERS, read_like_llama
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, out_bias, qkv_bias, separate_qkv
from model.config import ModelConfig

_ATTENTION = "model.layers.{i}.self_attn"
_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *separate_qkv(f"{_ATTENTION}.*_proj", bias=qkv_bias),
        WeightRow("layers.{i}.q_norm.weight", (f"{_ATTENTION}.q_norm.weight",), ("q",)),
        WeightRow("layers.{i}.k_norm.weight", (f"{_ATTENTION}.k_norm.weight",), ("kv",)),
        *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias=out_bias),
        *norm("layers.{i}.attn_post_norm", "model.layers.{i}.post_attention_layernorm"),
        *MLP_ROWS,
        *norm("layers.{i}.mlp_post_norm", "model.layers.{i}.post_feedforward_layernorm"),
        *END_ROWS,
    ),
    prefixes=("model.",),
    ignored=OLD_BUFFERS,
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads = grouped_heads(hf)
    max_model_len = hf.size("max_position_embeddings", 2048)
    return read_like_llama(
        hf,
        common,
        heads,
        max_model_len,
        norm_eps=hf.number("rms_norm_eps", 1e-5),
        norm_placement="output",
        qk_norm="full",
        rope=read_rope(hf, heads.head_dim, max_model_len),
    )


OLMO2 = Family("olmo2", ("Olmo2ForCausalLM",), ("olmo2",), _read, _TABLE)
