"""Reads encoder-decoders.

T5, T5 v1.1 and Flan-T5 (Raffel et al. 2019, arXiv:1910.10683): RMSNorm, no biases, unscaled scores, and a position bias
by distance, one table a stack. BART and Marian (Lewis et al. 2019, arXiv:1910.13461; Junczys-Dowmunt et al. 2018,
arXiv:1804.00344): a norm after each residual sum.
"""

import re
from dataclasses import replace
from typing import Any

from lightwell.model.checkpoint.families.family import Common, Family
from lightwell.model.checkpoint.families.fields import ACTIVATIONS, Fields
from lightwell.model.checkpoint.families.sizes import equal_heads, read_sizes
from lightwell.model.checkpoint.families.weight_table import UNTIED, WeightMap, WeightRow, linear, norm, separate_qkv
from lightwell.model.config import Activation, ModelConfig, PositionBiasConfig


def _cross_attention(q: str, k: str, v: str, out: str, *, bias: bool = False) -> tuple[WeightRow, ...]:
    return (
        *linear("layers.{i}.cross_q", q, "q d", bias=bias),
        *linear("layers.{i}.cross_kv", (k, v), ("kv encoder", "kv encoder"), bias=bias),
        *linear("layers.{i}.cross_out", out, "d q", bias=bias),
    )


def _stack_t5(side: str, mlp: int) -> tuple[WeightRow, ...]:
    """Return the rows of a stack. mlp: the number of the mlp's sublayer."""
    attention, dense = f"{side}.block.{{i}}.layer.0", f"{side}.block.{{i}}.layer.{mlp}.DenseReluDense"
    return (
        *linear("position_bias", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias", "buckets heads"),
        *norm("layers.{i}.attn_norm", f"{attention}.layer_norm"),
        *separate_qkv(f"{attention}.SelfAttention.*"),
        *linear("layers.{i}.attn_out", f"{attention}.SelfAttention.o", "d q"),
        *(_T5_CROSS if side == "decoder" else ()),
        *norm("layers.{i}.mlp_norm", f"{side}.block.{{i}}.layer.{mlp}.layer_norm"),
        *linear("layers.{i}.gate_up", (f"{dense}.wi_0", f"{dense}.wi_1"), ("ff d", "ff d"), when="gated_mlp"),
        *linear("layers.{i}.up", f"{dense}.wi", "ff d", when="not gated_mlp"),
        *linear("layers.{i}.down", f"{dense}.wo", "d ff"),
        *norm("final_norm", f"{side}.final_layer_norm"),
    )


_T5_BETWEEN = "decoder.block.{i}.layer.1"
_T5_CROSS = (
    *norm("layers.{i}.cross_norm", f"{_T5_BETWEEN}.layer_norm"),
    *_cross_attention(*(f"{_T5_BETWEEN}.EncDecAttention.{part}" for part in "qkvo")),
)
_T5_TABLE = WeightMap(
    rows=(
        *linear("embed", "shared", "vocab d"),
        *_stack_t5("decoder", 2),
        *linear("head", "lm_head", "vocab d", when=UNTIED),
    ),
    encoder_rows=_stack_t5("encoder", 1),
    # Copies of the shared table, and an unused table of cross attention in the first files.
    ignored=re.compile(
        r"(encoder|decoder)\.embed_tokens\.weight|decoder\..*EncDecAttention\.relative_attention_bias\.weight"
    ),
)


def _read_t5(hf: Fields, common: Common) -> ModelConfig:
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


T5 = Family("t5", ("T5ForConditionalGeneration",), _read_t5, _T5_TABLE, own_head="lm_head.weight")


_BART_BETWEEN = "model.decoder.layers.{i}.encoder_attn"
_BART_CROSS = (
    *_cross_attention(*(f"{_BART_BETWEEN}.{part}_proj" for part in ("q", "k", "v", "out")), bias=True),
    *norm("layers.{i}.cross_norm", f"{_BART_BETWEEN}_layer_norm", bias=True),
)


def _stack_bart(side: str) -> tuple[WeightRow, ...]:
    top, block = f"model.{side}", f"model.{side}.layers.{{i}}"
    return (
        *linear("pos_embed", f"{top}.embed_positions", "positions d", when="learned_positions"),
        *norm("embed_norm", f"{top}.layernorm_embedding", bias=True, when="embedding_norm"),
        *separate_qkv(f"{block}.self_attn.*_proj", bias=True),
        *linear("layers.{i}.attn_out", f"{block}.self_attn.out_proj", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{block}.self_attn_layer_norm", bias=True),
        *(_BART_CROSS if side == "decoder" else ()),
        *linear("layers.{i}.up", f"{block}.fc1", "ff d", bias=True),
        *linear("layers.{i}.down", f"{block}.fc2", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{block}.final_layer_norm", bias=True),
    )


_BART_TABLE = WeightMap(
    rows=(
        *linear("embed", "model.shared", "vocab d"),
        *_stack_bart("decoder"),
        *linear("head", "lm_head", "vocab d", when=UNTIED),
        WeightRow("head.bias", ("final_logits_bias",), ("1 vocab",), "head_bias", "flatten"),
    ),
    encoder_rows=_stack_bart("encoder"),
    prefixes=("model.",),
    # Copies of the shared table, and Marian's fixed position tables, which Lightwell computes.
    ignored=re.compile(r"(encoder|decoder)\.(embed_tokens|embed_positions)\.weight|(encoder|decoder)\.version"),
)


def _read_stacks(hf: Fields, common: Common, **options: Any) -> ModelConfig:
    """Read the fields of both. options: the fields of ModelConfig that differ."""
    # Files of transformers before 4 contain these options with the family's values.
    for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits"):
        hf.only(name, False)
    encoder_sizes, decoder_sizes = (_read_stack(hf, side) for side in ("encoder", "decoder"))
    encoder = ModelConfig(
        **common,
        **{**encoder_sizes, "tie_word_embeddings": True},
        kind="encoder",
        norm="layernorm",
        norm_eps=1e-5,
        norm_placement="post",
        final_norm=False,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        embedding_scale=encoder_sizes["hidden_size"] ** 0.5 if hf.flag("scale_embedding", False) else 1.0,
        has_head=False,
        causal=False,
        **options,
    )
    return replace(
        encoder,
        **decoder_sizes,
        kind="encoder-decoder",
        head_bias=common["architecture"] != "BartModel",  # a bare one has no bias, and a tied head
        has_head=True,
        causal=True,
        cross_attention=True,
        encoder=encoder,
    )


def _read_stack(hf: Fields, side: str) -> dict[str, Any]:
    hf = hf.with_spellings(
        hidden_size="d_model", num_attention_heads=f"{side}_attention_heads", num_hidden_layers=f"{side}_layers",
        intermediate_size=f"{side}_ffn_dim", hidden_act="activation_function",
    ).with_defaults(
        hidden_size=1024, num_attention_heads=16, num_hidden_layers=12, intermediate_size=4096,
        max_position_embeddings=1024, hidden_act="gelu", tie_word_embeddings=True,
    )  # fmt: skip
    return read_sizes(hf, equal_heads(hf))


def _read_bart(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(vocab_size=50265)
    return _read_stacks(hf, common, learned_positions=True, position_offset=2, embedding_norm=True)


def _read_marian(hf: Fields, common: Common) -> ModelConfig:
    hf.only("share_encoder_decoder_embeddings", True)
    hf = hf.with_defaults(vocab_size=58101)
    vocab_size = hf.size("vocab_size")
    if hf.size("decoder_vocab_size", vocab_size) != vocab_size:
        raise hf.refuse(
            "decoder_vocab_size", f"only vocab_size ({vocab_size}) is supported: the stacks share one table"
        )
    return _read_stacks(hf, common, sinusoidal_positions=True)


BART = Family("bart", ("BartForConditionalGeneration", "BartModel"), _read_bart, _BART_TABLE)
MARIAN = Family("marian", ("MarianMTModel",), _read_marian, _BART_TABLE)
