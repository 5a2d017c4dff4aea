"""Reads OLMo 2 and 3: norms of each sublayer's output, and of q and k over all heads at once. OLMo 3 also has windows
in three layers of four. Walsh et al. 2025, arXiv:2501.00656; Ettinger et al. 2025, arXiv:2512.13961.
"""

from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import HeadCounts, grouped_heads
from model.checkpoint.families.llama import EMBED_ROWS, END_ROWS, MLP_ROWS, OLD_BUFFERS, read_like_llama
from model.checkpoint.families.rotary import read_local_and_global_rope, read_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, out_bias, qkv_bias, separate_qkv
from model.config import ModelConfig

_THETA = 500_000.0
"""The base of OLMo 3's rotary embedding if its file does not say."""
_ATTENTION = "model.layers.{i}.self_attn"
NORMED_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias=qkv_bias),
    WeightRow("layers.{i}.q_norm.weight", (f"{_ATTENTION}.q_norm.weight",), ("q",)),
    WeightRow("layers.{i}.k_norm.weight", (f"{_ATTENTION}.k_norm.weight",), ("kv",)),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias=out_bias),
)
_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *NORMED_ATTENTION_ROWS,
        *norm("layers.{i}.attn_post_norm", "model.layers.{i}.post_attention_layernorm"),
        *MLP_ROWS,
        *norm("layers.{i}.mlp_post_norm", "model.layers.{i}.post_feedforward_layernorm"),
        *END_ROWS,
    ),
    prefixes=("model.",),
    ignored=OLD_BUFFERS,
)


def _read(hf: Fields, common: Common, heads: HeadCounts, max_model_len: int, **options: Any) -> ModelConfig:
    """Read the fields that both share; `options` are the others."""
    shared = {"norm_eps": hf.number("rms_norm_eps", 1e-5), "norm_placement": "output", "qk_norm": "full"}
    return read_like_llama(hf, common, heads, max_model_len, **shared, **options)


def _read_olmo2(hf: Fields, common: Common) -> ModelConfig:
    heads, max_model_len = grouped_heads(hf), hf.size("max_position_embeddings", 2048)
    return _read(hf, common, heads, max_model_len, rope=read_rope(hf, heads.head_dim, max_model_len))


def _read_olmo3(hf: Fields, common: Common) -> ModelConfig:
    # With another base, transformers 4 and 5 rotate the layers with a window differently; nested ones are clear.
    hf.only("rope_theta", _THETA)
    heads, max_model_len = grouped_heads(hf), hf.size("max_position_embeddings", 2048)
    thetas = {"full_attention": _THETA, "sliding_attention": _THETA}
    rope, local_rope = read_local_and_global_rope(hf, heads.head_dim, max_model_len, thetas, scale_both=False)
    windows = hf.windows([(i + 1) % 4 > 0 for i in range(hf.size("num_hidden_layers"))], 4096)
    options = {"rope": rope, "local_rope": local_rope, "sliding_windows": windows}
    return _read(hf, common, heads, max_model_len, **options)


OLMO2 = Family("olmo2", ("Olmo2ForCausalLM", "Olmo2ForSequenceClassification"), ("olmo2",), _read_olmo2, _TABLE)
OLMO3 = Family("olmo3", ("Olmo3ForCausalLM", "Olmo3ForSequenceClassification"), ("olmo3",), _read_olmo3, _TABLE)
