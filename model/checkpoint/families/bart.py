"""Reads BART and Marian: encoder-decoders with a norm after each residual sum. Lewis et al. 2019, arXiv:1910.13461;
Junczys-Dowmunt et al. 2018, arXiv:1804.00344.
"""

import re
from dataclasses import replace
from operator import attrgetter
from typing import Any

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import equal_heads
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
        WeightRow("pos_embed.weight", (f"{top}.embed_positions.weight",), ("positions d",), _has_position_table),
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
        WeightRow("embed.weight", ("model.shared.weight",), ("vocab d",)),
        *_stack("decoder"),
        WeightRow("head.weight", ("lm_head.weight",), ("vocab d",), untied),
        WeightRow("head.bias", ("final_logits_bias",), ("1 vocab",), attrgetter("head_bias"), "flatten"),
    ),
    encoder_rows=_stack("encoder"),
    prefixes=("model.",),
    # Copies of the shared table; Marian's fixed position tables, which are computed here; labels of classifiers.
    ignored=re.compile(r"(encoder|decoder)\.(embed_tokens|embed_positions)\.weight|(encoder|decoder)\.version"),
)


def _read(hf: Fields, common: Common, defaults: dict[str, Any], **options: Any) -> ModelConfig:
    """Read the fields that both share; `options` are ModelConfig's fields in which they differ."""
    for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits"):
        hf.only(name, False)
    # Files of before transformers 4 say these, and mean no more than the family.
    sides = []
    for side in ("encoder", "decoder"):
        heads = equal_heads(hf, "d_model", f"{side}_attention_heads", defaults=(1024, 16)).fields()
        sizes = {"num_layers": hf.size(f"{side}_layers", 12), "intermediate_size": hf.size(f"{side}_ffn_dim", 4096)}
        sides.append(heads | sizes)
    width = hf.size("d_model", 1024)
    encoder = ModelConfig(
        **common,
        **sides[0],
        kind="encoder",
        vocab_size=hf.size("vocab_size", defaults["vocab_size"]),
        max_model_len=hf.size("max_position_embeddings", 1024),
        norm="layernorm",
        norm_eps=1e-5,
        norm_placement="post",
        final_norm=False,
        activation=hf.activation("activation_function", "gelu"),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        embedding_scale=width**0.5 if hf.flag("scale_embedding", False) else 1.0,
        tie_word_embeddings=True,
        has_head=False,
        causal=False,
        **options,
    )
    return replace(
        encoder,
        **sides[1],
        kind="encoder-decoder",
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        head_bias=common["architecture"] != "BartModel",  # a bare one has no bias, and a tied head
        has_head=True,
        causal=True,
        cross_attention=True,
        encoder=encoder,
    )


def _read_bart(hf: Fields, common: Common) -> ModelConfig:
    return _read(hf, common, {"vocab_size": 50265}, learned_positions=True, position_offset=2, embedding_norm=True)


def _read_marian(hf: Fields, common: Common) -> ModelConfig:
    hf.only("share_encoder_decoder_embeddings", True)
    vocab_size = hf.size("vocab_size", 58101)
    if hf.size("decoder_vocab_size", vocab_size) != vocab_size:
        raise hf.refuse(
            "decoder_vocab_size", f"only vocab_size ({vocab_size}) is supported: the stacks share one table"
        )
    return _read(hf, common, {"vocab_size": vocab_size}, sinusoidal_positions=True)


BART = Family("bart", ("BartForConditionalGeneration", "BartModel"), ("bart",), _read_bart, _TABLE)
MARIAN = Family("marian", ("MarianMTModel",), ("marian",), _read_marian, _TABLE)
