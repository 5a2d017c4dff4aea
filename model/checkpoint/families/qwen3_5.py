"""Reads the text model of Qwen3.5: gated delta nets in three layers of four, and attention with gates in the fourth.
Files that also read pictures are read without that part.

Yang et al. 2024, arXiv:2412.06464; Qwen Team 2026, "Qwen3.5".
"""

import re
from dataclasses import replace

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import llama_table, read_like_llama
from model.checkpoint.families.rotary import read_rope
from model.checkpoint.families.weight_table import WeightRow, has, linear, out_bias, qkv_bias, separate_qkv
from model.config import DeltaNetConfig, ModelConfig

_LAYER = "model.layers.{i}"
_ATTENTION, _DELTA = f"{_LAYER}.self_attn", f"{_LAYER}.linear_attn"
_has_deltas = has("recurrence")
_KINDS = ("linear_attention", "full_attention")


_ATTENTION_ROWS: tuple[WeightRow, ...] = (
    *separate_qkv(f"{_ATTENTION}.*_proj", bias=qkv_bias, has_gates=True),
    WeightRow("layers.{i}.q_norm.weight", (f"{_ATTENTION}.q_norm.weight",), ("head",)),
    WeightRow("layers.{i}.k_norm.weight", (f"{_ATTENTION}.k_norm.weight",), ("head",)),
    *linear("layers.{i}.attn_out", f"{_ATTENTION}.o_proj", "d q", bias=out_bias),
)
_DELTA_ROWS: tuple[WeightRow, ...] = (
    *linear(
        "layers.{i}.delta_in",
        tuple(f"{_DELTA}.in_proj_{part}" for part in ("qkv", "z", "b", "a")),
        ("convolved d", "values d", "value_heads d", "value_heads d"),
        when=_has_deltas,
    ),
    *linear("layers.{i}.conv", f"{_DELTA}.conv1d", "convolved 1 kernel", when=_has_deltas),
    WeightRow("layers.{i}.delta_decay.weight", (f"{_DELTA}.A_log",), ("value_heads",), _has_deltas),
    WeightRow("layers.{i}.delta_step.bias", (f"{_DELTA}.dt_bias",), ("value_heads",), _has_deltas),
    WeightRow("layers.{i}.delta_norm.weight", (f"{_DELTA}.norm.weight",), ("value",), _has_deltas),
    *linear("layers.{i}.delta_out", f"{_DELTA}.out_proj", "d values", when=_has_deltas),
)
_TABLE = llama_table(
    attention=(
        *(replace(row, in_layer=ModelConfig.has_attention) for row in _ATTENTION_ROWS),
        *(replace(row, in_layer=lambda config, layer: not config.has_attention(layer)) for row in _DELTA_ROWS),
    ),
    prefixes=("model.language_model.", "model."),
    ignored=re.compile(r"(visual|mtp)\..+"),  # what reads pictures, and what guesses the token after the next
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    if text := hf.nested("text_config").values:  # the larger model has the head, and says whether it is tied
        is_tied = hf.values.get("tie_word_embeddings", False)
        whole, hf = hf, Fields({**text, "tie_word_embeddings": is_tied}, hf.file)
        says_dtype = "dtype" in whole.values or "torch_dtype" in whole.values
        ids = common["eos_token_ids"] or hf.ids("eos_token_id")
        common = {**common, "eos_token_ids": ids, "dtype": common["dtype"] if says_dtype else hf.dtype()}
    heads = grouped_heads(hf, num_kv_heads=4, head_dim=256)
    context, layers = hf.size("max_position_embeddings", 32768), _delta_layers(hf)
    return read_like_llama(
        hf,
        common,
        heads,
        context,
        norm_weight_offset=1.0,
        qk_norm="head",
        attention_gate=True,
        rope=read_rope(hf, heads.head_dim, context, partial=0.25),
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
    """Return the layers that have a delta net: by `layer_types`, or else all but one in `full_attention_interval`."""
    num_layers, kinds = hf.size("num_hidden_layers"), hf.values.get("layer_types")
    if kinds is None:
        interval = hf.size("full_attention_interval", 4)
        kinds = [_KINDS[(layer + 1) % interval == 0] for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in _KINDS for kind in kinds):
        raise hf.refuse("layer_types", f"a list of {num_layers}, each one of {', '.join(_KINDS)}, is expected")
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == "linear_attention")
    if len(layers) == num_layers:
        raise hf.refuse("layer_types", "at least one layer with full_attention is expected")
    return layers


QWEN3_5 = Family(
    "qwen3_5",
    ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5TextForSequenceClassification"),
    ("qwen3_5_text", "qwen3_5"),
    _read,
    _TABLE,
)
