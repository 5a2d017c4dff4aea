"""Defines the terms in which a family's table of weights is written. It knows names and shapes, but no tensors.

For our names, and the shapes that they have here, see model/checkpoint/weight_maps.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from model.config import ModelConfig

Arrange = Literal["as it is", "transpose", "flatten", "heads first", "gates last", "every other"]
"""The operation on each source: none; [in, out] becomes [out, in]; [1, n] becomes [n]; rows stored head by head (q, k
and v of each) become all heads' q, then all heads' k, then all heads' v; likewise q and gate of each, in a source that
has both; every other row, from the first, comes before the rows between them.
"""
When = Callable[[ModelConfig], bool]


def always(config: ModelConfig) -> bool:
    return True


def untied(config: ModelConfig) -> bool:
    """Return whether the head is a matrix of its own."""
    return config.has_head and not config.tie_word_embeddings


def has(field: str) -> When:
    """Return a function that says whether a field of the configuration is set."""
    return lambda config: getattr(config, field) is not None


qkv_bias = attrgetter("attention_bias")
out_bias = attrgetter("attention_out_bias")
mlp_bias = attrgetter("mlp_bias")
gated = attrgetter("gated_mlp")


def not_gated(config: ModelConfig) -> bool:
    return not config.gated_mlp


@dataclass(frozen=True, slots=True)
class WeightRow:
    """A row of a table: one of our weights, and the tensors that are stacked to make it.

    `{i}` is replaced by the layer, `{e}` by each of its experts. Names that files spell in more than one way are joined
    by "|", the usual one first. `shapes` are the file's, one for each source: "q d" is [q, d], in the lengths that
    weight_maps knows.
    """

    name: str
    sources: tuple[str, ...]
    shapes: tuple[str, ...]
    when: When = always
    arrange: Arrange = "as it is"
    first_layer: int = 0
    """The first layer that has such a weight."""
    in_layer: Callable[[ModelConfig, int], bool] = lambda config, layer: True
    """Whether a layer from there on has it."""


@dataclass(frozen=True, slots=True)
class StackedTensor:
    """A tensor that holds one of each expert along its first axis."""

    ending: str
    """The ending of its name."""
    one: str
    """The ending, in its place, of the name of one expert's tensor; {e} is replaced by the expert."""
    is_transposed: bool = False
    """Whether an expert's matrix is [in, out], which becomes [out, in]."""


@dataclass(frozen=True, slots=True)
class WeightMap:
    """How one family names its tensors."""

    rows: tuple[WeightRow, ...]
    """Rows of the only stack, or of the decoder of an encoder-decoder."""
    encoder_rows: tuple[WeightRow, ...] = ()
    """Rows of the encoder of an encoder-decoder; our names get "encoder." in front."""
    prefixes: tuple[str, ...] = ()
    """Prefixes that some checkpoints of the family put before names and others leave out: both are accepted, longest
    first.
    """
    ignored: re.Pattern[str] = re.compile("(?!)")
    """Tensors that files may hold and the network does not need, by name without the prefix."""
    respelled: tuple[tuple[str, str], ...] = ()
    """Pairs (old, new) of endings of names that old files spell differently."""
    stacked: tuple[StackedTensor, ...] = ()
    """Tensors that are read as one for each expert: `rows` have the names of these."""
    tied_heads: tuple[str, ...] = ("lm_head.weight",)
    """Copies of the token table that files may hold although they are tied to it, by name without the prefix."""

    def short(self, name: str) -> str:
        """Return a tensor's name without its prefix, in today's spelling."""
        prefix = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        name = name.removeprefix(prefix)
        for old, new in self.respelled:
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name


def norm(
    ours: str, theirs: str, *, bias: bool | When = False, when: When = always, first_layer: int = 0
) -> tuple[WeightRow, ...]:
    """Return the rows of a norm: its weight, and the bias of a LayerNorm; `bias` says whether, or when, there is
    one.
    """
    weight = WeightRow(f"{ours}.weight", (f"{theirs}.weight",), ("d",), when, first_layer=first_layer)
    if bias is False:
        return (weight,)
    has_bias = when if bias is True else bias
    return weight, WeightRow(f"{ours}.bias", (f"{theirs}.bias",), ("d",), has_bias, first_layer=first_layer)


def linear(
    ours: str,
    theirs: str | tuple[str, ...],
    shape: str | tuple[str, ...],
    *,
    bias: bool | When = False,
    when: When = always,
    arrange: Arrange = "as it is",
) -> tuple[WeightRow, ...]:
    """Return the rows of a matrix and its bias, each stacked from several tensors if several are named; `bias` says
    whether, or when, there is one.
    """
    names = (theirs,) if isinstance(theirs, str) else theirs
    shapes = (shape,) if isinstance(shape, str) else shape
    matrix = WeightRow(f"{ours}.weight", tuple(f"{name}.weight" for name in names), shapes, when, arrange)
    if bias is False:
        return (matrix,)
    # The bias has the length of the outputs; a vector has nothing to transpose.
    transposed = arrange == "transpose"
    lengths = tuple(one.split()[-1 if transposed else 0] for one in shapes)
    has_bias = when if bias is True else bias
    of_bias: Arrange = "as it is" if transposed else arrange
    return matrix, WeightRow(f"{ours}.bias", tuple(f"{name}.bias" for name in names), lengths, has_bias, of_bias)


def separate_qkv(
    theirs: str, parts: Sequence[str] = "qkv", *, bias: bool | When = False, has_gates: bool = False
) -> tuple[WeightRow, ...]:
    """Return the rows of queries, keys and values that are three matrices in the files: `theirs` names each, with *
    in place of the part; `has_gates`: whether a gate follows each query.
    """
    names = tuple(theirs.replace("*", part) for part in parts)
    if has_gates:
        return linear("layers.{i}.qkv", names, ("2q d", "kv d", "kv d"), bias=bias, arrange="gates last")
    return linear("layers.{i}.qkv", names, ("q d", "kv d", "kv d"), bias=bias)
