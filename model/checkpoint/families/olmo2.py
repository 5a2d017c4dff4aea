"""Reads OLMo 2 and 3: norms of each sublayer's output, and of q and k over all heads at once. OLMo 3 also has windows
in three layers of four. Walsh et al. 2025, arXiv:2501.00656; Ettinger et al. 2025, arXiv:2512.13961.
"""

from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import EMBED_ROWS, END_ROWS, MLP_ROWS, OLD_BUFFERS, read_like_llama
from model.checkpoint.families.rotary import read_local_and_global_rope
from model.checkpoint.families.sizes import grouped_heads
from model.checkpoint.families.weight_table import WeightMap, linear, norm, out_bias, qkv_bias, separate_qkv
from model.config import ModelConfig

_THETA = 500_000.0
"""The base of OLMo 3's rotary embedding if its file has none."""
_ATTENTION = "model.layers.{i}.self_attn"
NORMED_ATTENTION_ROWS = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias=qkv_bias),
    *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_norm", "q"),
    *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_norm", "kv"),
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


def _read(hf: Fields, common: Common, **options: Any) -> ModelConfig:
    """Read the fields of both. options: the fields of ModelConfig that differ."""
    hf = hf.with_defaults(max_position_embeddings=2048, rms_norm_eps=1e-5)
    return read_like_llama(hf, common, norm_placement="output", qk_norm="full", **options)


def _read_olmo3(hf: Fields, common: Common) -> ModelConfig:
    # With another base, transformers 4 and 5 rotate the layers with a window differently; nested ones are clear.
    hf.only("rope_theta", _THETA)
    thetas, length = {"full_attention": _THETA, "sliding_attention": _THETA}, hf.size("max_position_embeddings", 2048)
    rope, local_rope = read_local_and_global_rope(hf, grouped_heads(hf)["head_dim"], length, thetas, scale_both=False)
    windows = hf.windows([(i + 1) % 4 > 0 for i in range(hf.size("num_hidden_layers"))], 4096)
    return _read(hf, common, rope=rope, local_rope=local_rope, sliding_windows=windows)


OLMO2 = Family("olmo2", ("Olmo2ForCausalLM", "Olmo2ForSequenceClassification"), ("olmo2",), _read, _TABLE)
OLMO3 = Family("olmo3", ("Olmo3ForCausalLM", "Olmo3ForSequenceClassification"), ("olmo3",), _read_olmo3, _TABLE)
