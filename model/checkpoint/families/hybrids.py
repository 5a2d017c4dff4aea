"""Reads networks with recurrent layers next to attention: LFM2 (gated short convolutions in most layers; Liquid AI
2025, arXiv:2511.23404), and the text network of Qwen3.5 (gated delta nets in three layers of four, attention with gates
in the fourth; Yang et al. 2024, arXiv:2412.06464; Qwen Team 2026, "Qwen3.5").
"""

import re

from lightwell.model.checkpoint.families.family import Common, Family
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.llama import EMBED_ROWS, llama_table, read_like_llama
from lightwell.model.checkpoint.families.weight_table import (
    UNTIED,
    WeightMap,
    WeightRow,
    gated_mlp,
    has_no_attention,
    in_layers,
    linear,
    norm,
    separate_qkv,
)
from lightwell.model.config import DeltaNetConfig, ModelConfig, ShortConvConfig

_LAYER = "model.layers.{i}"
_LFM2_ATTENTION, _CONV, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.conv", f"{_LAYER}.feed_forward"


_LFM2_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_LFM2_ATTENTION}.*_proj"),
    *linear("layers.{i}.q_norm", f"{_LFM2_ATTENTION}.q_layernorm", "head"),
    *linear("layers.{i}.k_norm", f"{_LFM2_ATTENTION}.k_layernorm", "head"),
    *linear("layers.{i}.attn_out", f"{_LFM2_ATTENTION}.out_proj", "d q"),
)
_CONV_ROWS: tuple[WeightRow, ...] = (
    *linear("layers.{i}.conv_in", f"{_CONV}.in_proj", "3d d", bias="recurrence.bias"),
    *linear("layers.{i}.conv", f"{_CONV}.conv", "d 1 kernel", bias="recurrence.bias"),
    *linear("layers.{i}.conv_out", f"{_CONV}.out_proj", "d d", bias="recurrence.bias"),
)
_LFM2_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("layers.{i}.attn_norm", f"{_LAYER}.operator_norm"),
        *in_layers(ModelConfig.has_attention, *_LFM2_ATTENTION_ROWS),
        *in_layers(has_no_attention, *_CONV_ROWS),
        *norm("layers.{i}.mlp_norm", f"{_LAYER}.ffn_norm"),
        *gated_mlp("layers.{i}", (f"{_MLP}.w1", f"{_MLP}.w3"), f"{_MLP}.w2"),
        *norm("final_norm", "model.embedding_norm"),
        *linear("head", "lm_head", "vocab d", when=UNTIED),
    ),
    prefixes=("model.",),
)


def _read_lfm2(hf: Fields, common: Common) -> ModelConfig:
    tied = ("tie_embedding", "tie_word_embeddings")
    hf = hf.with_spellings(rms_norm_eps="norm_eps", tie_word_embeddings=tied).with_defaults(
        vocab_size=65536, num_hidden_layers=32, num_key_value_heads=8, max_position_embeddings=128_000,
        rms_norm_eps=1e-5, rope_theta=1_000_000.0, tie_word_embeddings=True,
    )  # fmt: skip
    layers, kernel_size, bias = _convolved_layers(hf), hf.size("conv_L_cache", 3), hf.flag("conv_bias", False)
    recurrence = ShortConvConfig(layers=layers, kernel_size=kernel_size, bias=bias) if layers else None
    hf = hf.with_values(intermediate_size=_intermediate_size(hf), attention_bias=False, hidden_act="silu")
    return read_like_llama(hf, common, qk_norm="head", recurrence=recurrence)


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


LFM2 = Family("lfm2", ("Lfm2ForCausalLM",), _read_lfm2, _LFM2_TABLE)


_QWEN_ATTENTION, _DELTA = f"{_LAYER}.self_attn", f"{_LAYER}.linear_attn"
_KINDS = ("linear_attention", "full_attention")


_QWEN_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_QWEN_ATTENTION}.*_proj", bias="attention_bias", has_gates=True),
    *linear("layers.{i}.q_norm", f"{_QWEN_ATTENTION}.q_norm", "head"),
    *linear("layers.{i}.k_norm", f"{_QWEN_ATTENTION}.k_norm", "head"),
    *linear("layers.{i}.attn_out", f"{_QWEN_ATTENTION}.o_proj", "d q", bias="attention_out_bias"),
)
_DELTA_ROWS: tuple[WeightRow, ...] = (
    *linear(
        "layers.{i}.delta_in",
        tuple(f"{_DELTA}.in_proj_{part}" for part in ("qkv", "z", "b", "a")),
        ("convolved d", "values d", "value_heads d", "value_heads d"),
    ),
    *linear("layers.{i}.conv", f"{_DELTA}.conv1d", "convolved 1 kernel"),
    WeightRow("layers.{i}.delta_decay.weight", (f"{_DELTA}.A_log",), ("value_heads",)),
    WeightRow("layers.{i}.delta_step.bias", (f"{_DELTA}.dt_bias",), ("value_heads",)),
    *linear("layers.{i}.delta_norm", f"{_DELTA}.norm", "value"),
    *linear("layers.{i}.delta_out", f"{_DELTA}.out_proj", "d values"),
)
_QWEN_TABLE = llama_table(
    attention=(
        *in_layers(ModelConfig.has_attention, *_QWEN_ATTENTION_ROWS),
        *in_layers(has_no_attention, *_DELTA_ROWS),
    ),
    prefixes=("model.language_model.", "model."),
    ignored=re.compile(r"(visual|mtp)\..+"),  # the network for images, and the prediction of the token after the next
)


def _read_qwen(hf: Fields, common: Common) -> ModelConfig:
    if hf.nested("text_config").values:  # the outer object sets whether the head is tied
        outer, is_tied = hf, hf.values.get("tie_word_embeddings", False)
        hf = hf.text_network().with_values(tie_word_embeddings=is_tied)
        ids = common["eos_token_ids"] or hf.ids("eos_token_id")
        has_dtype = "dtype" in outer.values or "torch_dtype" in outer.values
        common = {**common, "eos_token_ids": ids, "dtype": common["dtype"] if has_dtype else hf.dtype()}
    layers = _delta_layers(hf)
    return read_like_llama(
        hf.with_defaults(
            num_key_value_heads=4, head_dim=256, max_position_embeddings=32768, partial_rotary_factor=0.25
        ),
        common,
        norm_weight_offset=1.0,
        qk_norm="head",
        attention_gate=True,
        recurrence=_read_net(hf, layers) if layers else None,
    )


def _read_net(hf: Fields, layers: tuple[int, ...]) -> DeltaNetConfig:
    keys, values = hf.size("linear_num_key_heads", 16), hf.size("linear_num_value_heads", 32)
    if values % keys:
        raise hf.refuse("linear_num_key_heads", f"a divisor of linear_num_value_heads ({values}) is expected")
    hf.only("hidden_act", "silu")  # the activation of the convolution too
    return DeltaNetConfig(
        layers=layers,
        kernel_size=hf.size("linear_conv_kernel_dim", 4),
        num_key_heads=keys,
        num_value_heads=values,
        key_dim=hf.size("linear_key_head_dim", 128),
        value_dim=hf.size("linear_value_head_dim", 128),
    )


def _delta_layers(hf: Fields) -> tuple[int, ...]:
    """Return the layers with a delta net: by `layer_types`, else all but one in `full_attention_interval`."""
    interval = hf.size("full_attention_interval", 4)
    usual = [_KINDS[(layer + 1) % interval == 0] for layer in range(hf.size("num_hidden_layers"))]
    return hf.layers_without_attention(_KINDS, usual)


QWEN3_5 = Family(
    "qwen3_5",
    ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5TextForSequenceClassification"),
    _read_qwen,
    _QWEN_TABLE,
    types=("qwen3_5_text", "qwen3_5"),
)
