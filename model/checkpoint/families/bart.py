"""Reads BART and Marian: encoder-decoders with a norm after each residual sum. Lewis et al. 2019, arXiv:1910.13461;
Junczys-Dowmunt et al. 2018, arXiv:1804.00344.
"""

import re
from dataclasses import replace
from operator import attrgetter
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.sizes import equal_heads, read_sizes
from model.checkpoint.families.weight_table import WeightMap, WeightRow, linear, norm, separate_qkv, untied
from model.config import ModelConfig

_has_position_table = attrgetter("learned_positions")
_BETWEEN = "model.decoder.layers.{i}.encoder_attn"
_CROSS = (
    *linear("layers.{i}.cross_q", f"{_BETWEEN}.q_proj", "q d", bias=True),
    *linear(
        "layers.{i}.cross_kv", (f"{_BETWEEN}.k_proj", f"{_BETWEEN}.v_proj"), ("kv encoder", "kv encoder"), bias=True
    ),
    *linear("layers.{i}.cross_out", f"{_BETWEEN}.out_proj", "d q", bias=True),
    *norm("layers.{i}.cross_norm", f"{_BETWEEN}_layer_norm", bias=True),
)


def _stack(side: str) -> tuple[WeightRow, ...]:
    top, block = f"model.{side}", f"model.{side}.layers.{{i}}"
    return (
        *linear("pos_embed", f"{top}.embed_positions", "positions d", when=_has_position_table),
        *norm("embed_norm", f"{top}.layernorm_embedding", bias=True, when=attrgetter("embedding_norm")),
        *separate_qkv(f"{block}.self_attn.*_proj", bias=True),
        *linear("layers.{i}.attn_out", f"{block}.self_attn.out_proj", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{block}.self_attn_layer_norm", bias=True),
        *(_CROSS if side == "decoder" else ()),
        *linear("layers.{i}.up", f"{block}.fc1", "ff d", bias=True),
        *linear("layers.{i}.down", f"{block}.fc2", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{block}.final_layer_norm", bias=True),
    )


_TABLE = WeightMap(
    rows=(
        *linear("embed", "model.shared", "vocab d"),
        *_stack("decoder"),
        *linear("head", "lm_head", "vocab d", when=untied),
        WeightRow("head.bias", ("final_logits_bias",), ("1 vocab",), attrgetter("head_bias"), "flatten"),
    ),
    encoder_rows=_stack("encoder"),
    prefixes=("model.",),
    # Copies of the shared table, and Marian's fixed position tables, which Lightwell computes.
    ignored=re.compile(r"(encoder|decoder)\.(embed_tokens|embed_positions)\.weight|(encoder|decoder)\.version"),
)


def _read(hf: Fields, common: Common, **options: Any) -> ModelConfig:
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
    """Return the sizes of one stack. side: encoder or decoder."""
    hf = hf.with_spellings(
        hidden_size="d_model",
        num_attention_heads=f"{side}_attention_heads",
        num_hidden_layers=f"{side}_layers",
        intermediate_size=f"{side}_ffn_dim",
        hidden_act="activation_function",
    ).with_defaults(
        hidden_size=1024,
        num_attention_heads=16,
        num_hidden_layers=12,
        intermediate_size=4096,
        max_position_embeddings=1024,
        hidden_act="gelu",
        tie_word_embeddings=True,
    )
    return read_sizes(hf, equal_heads(hf))


def _read_bart(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(vocab_size=50265)
    return _read(hf, common, learned_positions=True, position_offset=2, embedding_norm=True)


def _read_marian(hf: Fields, common: Common) -> ModelConfig:
    hf.only("share_encoder_decoder_embeddings", True)
    hf = hf.with_defaults(vocab_size=58101)
    vocab_size = hf.size("vocab_size")
    if hf.size("decoder_vocab_size", vocab_size) != vocab_size:
        raise hf.refuse(
            "decoder_vocab_size", f"only vocab_size ({vocab_size}) is supported: the stacks share one table"
        )
    return _read(hf, common, sinusoidal_positions=True)


BART = Family("bart", ("BartForConditionalGeneration", "BartModel"), ("bart",), _read_bart, _TABLE)
MARIAN = Family("marian", ("MarianMTModel",), ("marian",), _read_marian, _TABLE)
