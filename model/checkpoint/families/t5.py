"""Reads T5, T5 v1.1 and Flan-T5. Raffel et al. 2019, arXiv:1910.10683: RMSNorm, no biases, scores that are not scaled,
and a position bias by distance, one table a stack.
"""

import re
from dataclasses import replace

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import ACTIVATIONS, Fields
from model.checkpoint.families.weight_table import (
    WeightMap,
    WeightRow,
    gated,
    linear,
    norm,
    not_gated,
    separate_qkv,
    untied,
)
from model.config import Activation, ModelConfig, PositionBiasConfig


def _stack(side: str, mlp: int) -> tuple[WeightRow, ...]:
    """Return the rows of a stack. mlp: the number of the mlp's sublayer."""
    attention, dense = f"{side}.block.{{i}}.layer.0", f"{side}.block.{{i}}.layer.{mlp}"
    return (
        *linear("position_bias", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias", "buckets heads"),
        *norm("layers.{i}.attn_norm", f"{attention}.layer_norm"),
        *separate_qkv(f"{attention}.SelfAttention.*"),
        *linear("layers.{i}.attn_out", f"{attention}.SelfAttention.o", "d q"),
        *(_CROSS if side == "decoder" else ()),
        *norm("layers.{i}.mlp_norm", f"{dense}.layer_norm"),
        *linear(
            "layers.{i}.gate_up",
            (f"{dense}.DenseReluDense.wi_0", f"{dense}.DenseReluDense.wi_1"),
            ("ff d", "ff d"),
            when=gated,
        ),
        *linear("layers.{i}.up", f"{dense}.DenseReluDense.wi", "ff d", when=not_gated),
        *linear("layers.{i}.down", f"{dense}.DenseReluDense.wo", "d ff"),
        *norm("final_norm", f"{side}.final_layer_norm"),
    )


_BETWEEN = "decoder.block.{i}.layer.1"
_CROSS = (
    *norm("layers.{i}.cross_norm", f"{_BETWEEN}.layer_norm"),
    *linear("layers.{i}.cross_q", f"{_BETWEEN}.EncDecAttention.q", "q d"),
    *linear(
        "layers.{i}.cross_kv",
        (f"{_BETWEEN}.EncDecAttention.k", f"{_BETWEEN}.EncDecAttention.v"),
        ("kv encoder", "kv encoder"),
    ),
    *linear("layers.{i}.cross_out", f"{_BETWEEN}.EncDecAttention.o", "d q"),
)
_TABLE = WeightMap(
    rows=(
        *linear("embed", "shared", "vocab d"),
        *_stack("decoder", 2),
        *linear("head", "lm_head", "vocab d", when=untied),
    ),
    encoder_rows=_stack("encoder", 1),
    # Copies of the shared table, and an unused table of cross attention in the first files.
    ignored=re.compile(
        r"(encoder|decoder)\.embed_tokens\.weight|decoder\..*EncDecAttention\.relative_attention_bias\.weight"
    ),
)


def _read(hf: Fields, common: Common) -> ModelConfig:
    activation, gated_mlp = _mlp(hf)
    # The first T5 ties its head to the token table and scales the head's input. transformers 5 always writes that the
    # head is tied, and scale_decoder_outputs distinguishes the two: an unscaled head is tied if the files have none.
    scaled = hf.flag("scale_decoder_outputs", hf.flag("tie_word_embeddings", True))
    width, num_heads = hf.size("d_model", 512), hf.size("num_heads", 8)
    num_layers = hf.size("num_layers", 6)
    bias = PositionBiasConfig(
        num_buckets=hf.size("relative_attention_num_buckets", 32),
        max_distance=hf.size("relative_attention_max_distance", 128),
        bidirectional=True,
    )
    encoder = ModelConfig(
        **common,
        kind="encoder",
        vocab_size=hf.size("vocab_size", 32128),
        hidden_size=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hf.size("d_kv", 64),
        intermediate_size=hf.size("d_ff", 2048),
        max_model_len=hf.size("n_positions", 512),  # the trained length, which is no limit of the network
        norm="rmsnorm",
        norm_eps=hf.number("layer_norm_epsilon", 1e-6),
        activation=activation,
        gated_mlp=gated_mlp,
        position_bias=bias,
        tie_word_embeddings=True,
        has_head=False,
        attention_scale=1.0,
        causal=False,
    )
    return replace(
        encoder,
        kind="encoder-decoder",
        num_layers=hf.size("num_decoder_layers", num_layers),
        position_bias=replace(bias, bidirectional=False),
        tie_word_embeddings=scaled,
        logit_scale=width**-0.5 if scaled else 1.0,
        has_head=True,
        causal=True,
        cross_attention=True,
        encoder=encoder,
    )


def _mlp(hf: Fields) -> tuple[Activation, bool]:
    """Return the activation in `feed_forward_proj`, and whether the mlp is gated: its name begins with "gated-"."""
    written = hf.text("feed_forward_proj", "relu")
    name = "gelu_new" if written == "gated-gelu" else written.removeprefix("gated-")
    if name not in ACTIVATIONS:
        raise hf.refuse("feed_forward_proj", f"supported are {', '.join(ACTIVATIONS)}, each also as gated-...")
    return ACTIVATIONS[name], written.startswith("gated-")


T5 = Family("t5", ("T5ForConditionalGeneration",), ("t5",), _read, _TABLE, own_head="lm_head.weight")
