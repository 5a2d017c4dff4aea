"""Reads LFM2: gated short convolutions in most layers, and attention with norms of q and k in the others.

Liquid AI 2025, arXiv:2511.23404.
"""

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import EMBED_ROWS, read_like_llama
from model.checkpoint.families.weight_table import (
    WeightMap,
    WeightRow,
    has_no_attention,
    in_layers,
    linear,
    norm,
    separate_qkv,
    untied,
)
from model.config import ModelConfig, ShortConvConfig

_LAYER = "model.layers.{i}"
_ATTENTION, _CONV, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.conv", f"{_LAYER}.feed_forward"


def _has_conv_bias(config: ModelConfig) -> bool:
    return isinstance(config.recurrence, ShortConvConfig) and config.recurrence.bias


_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj"),
    *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_layernorm", "head"),
    *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_layernorm", "head"),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.out_proj", "d q"),
)
_CONV_ROWS: tuple[WeightRow, ...] = (
    *linear("layers.{i}.conv_in", f"{_CONV}.in_proj", "3d d", bias=_has_conv_bias),
    *linear("layers.{i}.conv", f"{_CONV}.conv", "d 1 kernel", bias=_has_conv_bias),
    *linear("layers.{i}.conv_out", f"{_CONV}.out_proj", "d d", bias=_has_conv_bias),
)
_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("layers.{i}.attn_norm", f"{_LAYER}.operator_norm"),
        *in_layers(ModelConfig.has_attention, *_ATTENTION_ROWS),
        *in_layers(has_no_attention, *_CONV_ROWS),
        *norm("layers.{i}.mlp_norm", f"{_LAYER}.ffn_norm"),
        *linear("layers.{i}.gate_up", (f"{_MLP}.w1", f"{_MLP}.w3"), ("ff d", "ff d")),
        *linear("layers.{i}.down", f"{_MLP}.w2", "d ff"),
        *norm("final_norm", "model.embedding_norm"),
        *linear("head", "lm_head", "vocab d", when=untied),
    ),
    prefixes=("model.",),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(
        rms_norm_eps="norm_eps", tie_word_embeddings=("tie_embedding", "tie_word_embeddings")
    ).with_defaults(
        vocab_size=65536,
        num_hidden_layers=32,
        num_key_value_heads=8,
        max_position_embeddings=128_000,
        rms_norm_eps=1e-5,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
    )
    layers, kernel_size, bias = _convolved_layers(hf), hf.size("conv_L_cache", 3), hf.flag("conv_bias", False)
    return read_like_llama(
        hf.with_values(intermediate_size=_intermediate_size(hf)),
        common,
        activation="silu",
        attention_bias=False,
        attention_out_bias=False,
        qk_norm="head",
        recurrence=ShortConvConfig(layers=layers, kernel_size=kernel_size, bias=bias) if layers else None,
    )


def _intermediate_size(hf: Fields) -> int:
    """Return the neurons of an mlp: by default two thirds of the size in the file, rounded up to a multiple."""
    size = hf.size("block_ff_dim" if "block_ff_dim" in hf.values else "intermediate_size", 12288)
    if not hf.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(hf.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = hf.size("block_multiple_of", 256)
    return multiple * -(-size // multiple)


def _convolved_layers(hf: Fields) -> tuple[int, ...]:
    """Return the layers with a convolution: by `layer_types`, else the ones that `full_attn_idxs` omits."""
    layers = range(hf.size("num_hidden_layers"))
    attending = hf.ids("full_attn_idxs") if hf.values.get("full_attn_idxs") is not None else layers
    usual = ["full_attention" if layer in attending else "conv" for layer in layers]
    return hf.layers_without_attention(("full_attention", "conv"), usual, "'full_attention' or 'conv'")


LFM2 = Family("lfm2", ("Lfm2ForCausalLM",), ("lfm2",), _read, _TABLE)
