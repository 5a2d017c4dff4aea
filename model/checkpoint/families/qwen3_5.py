"""Reads the text network of Qwen3.5: gated delta nets in three layers of four, and attention with gates in the fourth.
The network for images is not read.

Yang et al. 2024, arXiv:2412.06464; Qwen Team 2026, "Qwen3.5".
"""

import re

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import llama_table, read_like_llama
from model.checkpoint.families.weight_table import (
    WeightRow,
    has_no_attention,
    in_layers,
    linear,
    out_bias,
    qkv_bias,
    separate_qkv,
)
from model.config import DeltaNetConfig, ModelConfig

_LAYER = "model.layers.{i}"
_ATTENTION, _DELTA = f"{_LAYER}.self_attn", f"{_LAYER}.linear_attn"
_KINDS = ("linear_attention", "full_attention")


_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias=qkv_bias, has_gates=True),
    *linear("layers.{i}.q_norm", f"{_ATTENTION}.q_norm", "head"),
    *linear("layers.{i}.k_norm", f"{_ATTENTION}.k_norm", "head"),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias=out_bias),
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
_TABLE = llama_table(
    attention=(
        *in_layers(ModelConfig.has_attention, *_ATTENTION_ROWS),
        *in_layers(has_no_attention, *_DELTA_ROWS),
    ),
    prefixes=("model.language_model.", "model."),
    ignored=re.compile(r"(visual|mtp)\..+"),  # the network for images, and the prediction of the token after the next
)


def _read(hf: Fields, common: Common) -> ModelConfig:
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
    ("qwen3_5_text", "qwen3_5"),
    _read,
    _TABLE,
)
