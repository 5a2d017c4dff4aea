"""Weight matrices of a network by TransformerLens's names and axes, and their rows in our weights.

Our weights are [out, in], with q, k and v fused; TransformerLens's are separate, [in, out], with an axis for heads: W_Q
[head, d_model, d_head], W_K and W_V [kv_head, d_model, d_head], W_O [head, d_head, d_model]. This module needs names
and shapes only.
"""

import difflib
import re
from dataclasses import dataclass

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config, stacks
from lightwell.model.hooks.points import Stack


class UnknownMatrix(ValueError):
    """No such matrix is in this model; the message lists the existing ones."""


@dataclass(frozen=True, slots=True)
class NamedWeight:
    """A weight by TransformerLens's name: rows `first` to `last` of one of our weights."""

    name: str
    """The full name: "blocks.0.attn.W_Q", "encoder.blocks.0.ln1.w", "embed.W_E"."""
    weight: str
    """Our weight, as `model.analysis.live_weights` names it: "layers.0.qkv.weight"."""
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    first: int = 0
    last: int | None = None
    """The row after its last one; None for all rows."""
    is_turned: bool = False
    """True if the matrix, or each head's part of it, is the transpose of our weight."""
    tied_to: str | None = None
    """The name of the weight that shares its storage."""

    @property
    def num_heads(self) -> int | None:
        """Return the length of the axis of heads, or None if there is none."""
        return self.shape[0] if self.axes[0] in ("head", "kv_head") else None

    @property
    def row_axes(self) -> tuple[int, ...]:
        """Return the axes of rows and columns, counted from the end; a vector, also one per head, has only rows."""
        return (-1,) if len(self.shape) - (self.num_heads is not None) == 1 else (-2, -1)

    @property
    def matrix_axes(self) -> tuple[str, ...]:
        """Return the two axes of a matrix with its heads side by side."""
        if self.num_heads is None:
            return self.axes
        return ("d_model", "head d_head") if self.axes[2] == "d_head" else ("head d_head", "d_model")

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """Return the shape of a matrix with its heads side by side."""
        if self.num_heads is None:
            return self.shape
        heads, rows, columns = self.shape
        return (rows, heads * columns) if self.axes[2] == "d_head" else (heads * rows, columns)


def names_of(config: ModelConfig) -> tuple[str, ...]:
    """Return every matrix of the model, with {layer} in place of the layer."""
    return tuple(
        _prefix(config, stack, name) + ("blocks.{layer}." if "." in name and _is_in_block(name) else "") + name
        for stack in stacks(config)
        for name in _short_names(config, stack)
    )


def find_matrix(config: ModelConfig, name: str, layer: int | None = None) -> NamedWeight:
    """Return the matrix of a full name ("encoder.blocks.0.attn.W_Q"), or of a short one ("W_Q", "mlp.W_in") and
    `layer`.

    Without a prefix a block's matrix of an encoder-decoder means the decoder's. Raises UnknownMatrix.
    """
    stack, layer, rest = split_name(config, name, layer)
    known = [*_short_names(config, stack), "embed.W_E"]  # attention's own W_Q comes before cross attention's
    short = next((each for each in known if rest in (each, each.rpartition(".")[2])), None)
    if short is None:
        every = [each for has in stacks(config) for each in _short_names(config, has)]
        near = difflib.get_close_matches(rest, every, 4, cutoff=0.0)
        raise UnknownMatrix(
            f"this model has no matrix {name[:80]!r}; similar names are {', '.join(near)}; it has "
            f"{', '.join(names_of(config))}"
        )
    if not _is_in_block(short):
        if layer is not None:
            raise UnknownMatrix(f"{short!r} is outside the blocks; leave out layer")
        return _outside(config, stack, short)
    own = stack_config(config, stack)
    if layer is None:
        raise UnknownMatrix(f"{short!r} exists in every block; set layer to a number from 0 to {own.num_layers - 1}")
    if not 0 <= layer < own.num_layers:
        raise UnknownMatrix(f"there is no layer {layer}; accepted are 0 to {own.num_layers - 1}")
    if short.startswith("attn.") and not own.has_attention(layer):
        has = ", ".join(map(str, own.attention_layers))
        raise UnknownMatrix(f"layer {layer} has a {own.mixer_name(layer)} and no {short!r}; layers {has} have it")
    if short.startswith("mlp.") and not own.has_mlp(layer):
        raise UnknownMatrix(f"layer {layer} has experts and no {short!r}; layers {own.dense_layers} have it")
    kv_layer = own.kv_layer(layer)
    if short in ("attn.W_K", "attn.W_V") and kv_layer != layer:
        raise UnknownMatrix(f"layer {layer} reads the keys and values of layer {kv_layer} and has no {short!r}")
    return _inside(config, own.at(layer), stack, short, layer)


def _is_in_block(short: str) -> bool:
    return short.partition(".")[0] in ("attn", "cross_attn", "mlp")


def _prefix(config: ModelConfig, stack: Stack, short: str) -> str:
    """Return the prefix of a name; the token table of an encoder-decoder belongs to both stacks."""
    if config.kind != "encoder-decoder" or short in ("embed.W_E", "unembed.W_U"):
        return ""
    return f"{stack}."


def _short_names(config: ModelConfig, stack: Stack) -> list[str]:
    own = stack_config(config, stack)
    has_table = stack == "encoder" or config.encoder is None  # listed once
    attentions = ["attn", "cross_attn"] if own.cross_attention else ["attn"]
    there = {
        "embed.W_E": has_table,
        "pos_embed.W_pos": own.learned_positions,
        **{f"{attention}.W_{letter}": True for attention in attentions for letter in "QKVO"},
        "mlp.W_gate": own.gated_mlp and bool(own.dense_layers),
        "mlp.W_in": bool(own.dense_layers),
        "mlp.W_out": bool(own.dense_layers),
        "unembed.W_U": own.has_head and stack == stacks(config)[-1],
    }
    return [name for name, is_there in there.items() if is_there]


def split_name(config: ModelConfig, name: str, layer: int | None) -> tuple[Stack, int | None, str]:
    """Return the stack of a name, its layer, or `layer` if the name has none, and the rest of the name. Raises
    UnknownMatrix if the two layers differ.
    """
    stack = next((each for each in stacks(config) if name.startswith(f"{each}.")), stacks(config)[-1])
    rest = name.removeprefix(f"{stack}.") if config.kind == "encoder-decoder" else name
    match = re.fullmatch(r"blocks\.(\d{1,9})\.(.+)", rest)
    if match is None:
        return stack, layer, rest
    if layer not in (None, int(match[1])):
        raise UnknownMatrix(f"{name[:80]!r} names layer {int(match[1])} but layer is {layer}; set the layer once")
    return stack, int(match[1]), match[2]


def _outside(config: ModelConfig, stack: Stack, short: str) -> NamedWeight:
    own = stack_config(config, stack)
    full = _prefix(config, stack, short) + short
    ours = "encoder." if stack == "encoder" and config.encoder is not None else ""
    if short == "pos_embed.W_pos":
        count, shape = own.max_model_len, (own.max_model_len, own.hidden_size)
        return NamedWeight(full, f"{ours}pos_embed.weight", ("position", "d_model"), shape, 0, count)
    count, narrow = config.vocab_size, config.embedding_size or config.hidden_size
    if short == "embed.W_E":
        return NamedWeight(full, "embed.weight", ("d_vocab", "d_model"), (count, narrow), 0, count)
    weight = "embed.weight" if config.tie_word_embeddings else "head.weight"
    return NamedWeight(full, weight, ("d_model", "d_vocab"), (narrow, count), 0, count, is_turned=True)


def _inside(config: ModelConfig, own: ModelConfig, stack: Stack, short: str, layer: int) -> NamedWeight:
    ours = f"{'encoder.' if stack == 'encoder' and config.encoder is not None else ''}layers.{layer}."
    module, _, matrix = short.rpartition(".")
    d, ff, size = own.hidden_size, own.intermediate_size, own.head_dim
    q, kv = own.num_heads * size, own.num_kv_heads * size
    is_cross = module == "cross_attn"
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    first = 0
    if matrix == "W_out":
        weight, axes, shape, last = "down", ("d_mlp", "d_model"), (ff, d), d
    elif module == "mlp":
        weight, axes, shape, last = "gate" if matrix == "W_gate" else "up", ("d_model", "d_mlp"), (d, ff), ff
    elif matrix == "W_O":
        weight, axes, last = "cross_out" if is_cross else "attn_out", ("head", "d_head", "d_model"), d
        shape = (own.num_heads, size, d)
    elif matrix == "W_Q":
        weight, axes, last = "cross_q" if is_cross else "qkv", ("head", "d_model", "d_head"), q
        shape = (own.num_heads, d, size)
    else:
        width = config.encoder.hidden_size if is_cross and config.encoder is not None else d
        queries = 2 * q if own.attention_gate else q  # with their gates
        first = (0 if is_cross else queries) + (kv if matrix == "W_V" else 0)
        weight, axes, last = "cross_kv" if is_cross else "qkv", ("kv_head", "d_model", "d_head"), first + kv
        shape = (own.num_kv_heads, width, size)
    name = f"{_prefix(config, stack, short)}blocks.{layer}.{short}"
    return NamedWeight(name, f"{ours}{weight}.weight", axes, shape, first, last, is_turned=True)
