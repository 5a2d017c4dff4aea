"""Reads LFM2: gated short convolutions in most layers, and attention with norms of q and k in the others.

Liquid AI 2025, arXiv:2511.23404.
"""

from dataclasses import replace

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import EMBED_ROWS
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import WeightMap, WeightRow, has, linear, norm, separate_qkv, untied
from model.config import ModelConfig, ShortConvConfig

_LAYER = "model.layers.{i}"
_ATTENTION, _CONV, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.conv", f"{_LAYER}.feed_forward"


def _has_conv_bias(config: ModelConfig) -> bool:
    return isinstance(config.recurrence, ShortConvConfig) and config.recurrence.bias


_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj"),
    WeightRow("layers.{i}.q_norm.weight", (f"{_ATTENTION}.q_layernorm.weight",), ("head",)),
    WeightRow("layers.{i}.k_norm.weight", (f"{_ATTENTION}.k_layernorm.weight",), ("head",)),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.out_proj", "d q"),
)
_CONV_ROWS: tuple[WeightRow, ...] = (
    *linear("layers.{i}.conv_in", f"{_CONV}.in_proj", "3d d", bias=_has_conv_bias, when=has("recurrence")),
    *linear("layers.{i}.conv", f"{_CONV}.conv", "d 1 kernel", bias=_has_conv_bias, when=has("recurrence")),
    *linear("layers.{i}.conv_out", f"{_CONV}.out_proj", "d d", bias=_has_conv_bias, when=has("recurrence")),
)
_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("layers.{i}.attn_norm", f"{_LAYER}.operator_norm"),
        *(replace(row, in_layer=ModelConfig.has_attention) for row in _ATTENTION_ROWS),
        *(replace(row, in_layer=lambda config, layer: not config.has_attention(layer)) for row in _CONV_ROWS),
        *norm("layers.{i}.mlp_norm", f"{_LAYER}.ffn_norm"),
        *linear("layers.{i}.gate_up", (f"{_MLP}.w1", f"{_MLP}.w3"), ("ff d", "ff d")),
        *linear("layers.{i}.down", f"{_MLP}.w2", "d ff"),
        *norm("final_norm", "model.embedding_norm"),
        WeightRow("head.weight", ("lm_head.weight",), ("vocab d",), untied),
    ),
    prefixes=("model.",),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    heads, context = grouped_heads(hf, num_kv_heads=8), hf.size("max_position_embeddings", 128_000)
    tied = "tie_embedding" if "tie_embedding" in hf.values else "tie_word_embeddings"  # the spelling of transformers
    convolved = _convolved_layers(hf)
    return ModelConfig(
        **common,
        **heads.fields(),
        vocab_size=hf.size("vocab_size", 65536),
        num_layers=hf.size("num_hidden_layers", 32),
        intermediate_size=_intermediate_size(hf),
        max_model_len=context,
        norm="rmsnorm",
        norm_eps=hf.number("norm_eps", 1e-5),
        qk_norm="head",
        activation="silu",
        gated_mlp=True,
        rope=read_rope(hf, heads.head_dim, context, theta=1_000_000.0),
        tie_word_embeddings=hf.flag(tied, True),
        recurrence=ShortConvConfig(
            layers=convolved, kernel_size=hf.size("conv_L_cache", 3), bias=hf.flag("conv_bias", False)
        )
        if convolved
        else None,
    )


def _intermediate_size(hf: Fields) -> int:
    """Return the neurons of an mlp: by default two thirds of what the file says, made a multiple of some number."""
    size = hf.size("block_ff_dim" if "block_ff_dim" in hf.values else "intermediate_size", 12288)
    if not hf.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(hf.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = hf.size("block_multiple_of", 256)
    return multiple * -(-size // multiple)


def _convolved_layers(hf: Fields) -> tuple[int, ...]:
    """Return the layers that have a convolution: by `layer_types`, or else those that `full_attn_idxs` leaves out."""
    num_layers, kinds = hf.size("num_hidden_layers", 32), hf.values.get("layer_types")
    if kinds is None:
        attending = hf.ids("full_attn_idxs") if hf.values.get("full_attn_idxs") is not None else range(num_layers)
        kinds = ["full_attention" if layer in attending else "conv" for layer in range(num_layers)]
    is_list = isinstance(kinds, list) and len(kinds) == num_layers
    if not is_list or not all(kind in ("full_attention", "conv") for kind in kinds):
        raise hf.refuse("layer_types", f"a list of {num_layers}, each 'full_attention' or 'conv', is expected")
    convolved = tuple(layer for layer, kind in enumerate(kinds) if kind == "conv")
    if len(convolved) == num_layers:
        raise hf.refuse("layer_types", "at least one layer with full_attention is expected")
    return convolved


LFM2 = Family("lfm2", ("Lfm2ForCausalLM",), ("lfm2",), _read, _TABLE)
