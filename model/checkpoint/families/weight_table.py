"""Rows of a family's weight table: the weights of Lightwell, and the tensors of a checkpoint that they are made of.

model/checkpoint/weight_maps.py lists the names of Lightwell's weights, and the lengths in shapes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lightwell.model.config import ModelConfig

Arrange = Literal["as it is", "transpose", "flatten", "heads first", "gates last", "every other"]
"""The operation on each source tensor:

- "as it is": none;
- "transpose": [in, out] becomes [out, in];
- "flatten": [1, n] becomes [n];
- "heads first": rows stored head by head, q, k and v of each, become q of all heads, then k, then v;
- "gates last": the same for rows stored as q and gate of each head, in a source that has both;
- "every other": rows 0, 2, 4, ... come before rows 1, 3, 5, ...
"""
InLayer = Callable[[ModelConfig, int], bool]
"""A predicate: whether a layer of a network has a weight."""


UNTIED = "has_head and not tie_word_embeddings"


def holds(condition: str, config: ModelConfig) -> bool:
    """Return whether all fields of a condition hold, such as "experts and not classifier.bias"; "" is always true."""
    for term in condition.split(" and ") if condition else ():
        value: Any = config
        for field in term.removeprefix("not ").split("."):
            value = None if value is None else getattr(value, field)
        if bool(value) == term.startswith("not "):
            return False
    return True


def has_no_attention(config: ModelConfig, layer: int) -> bool:
    return not config.has_attention(layer)


@dataclass(frozen=True, slots=True)
class WeightRow:
    """A row of a table: a weight of Lightwell, and the tensors of a checkpoint that are stacked to make it.

    In names, `{i}` stands for the layer and `{e}` for the expert; "|" separates spellings, the usual one first. Each
    shape is that of a source in the file: "q d" is [q, d], with lengths of `weight_maps._lengths`.
    """

    name: str
    sources: tuple[str, ...]
    shapes: tuple[str, ...]
    when: str = ""
    """The condition of networks with this weight (`holds`)."""
    arrange: Arrange = "as it is"
    in_layer: InLayer = lambda config, layer: True


@dataclass(frozen=True, slots=True)
class StackedTensor:
    """A tensor of the files that holds all experts of a layer, along its first axis."""

    ending: str
    one: str
    """The end of the name of one expert's tensor, in place of `ending`; `{e}` stands for the expert."""
    is_transposed: bool = False
    """True if an expert's matrix is [in, out]; it becomes [out, in]."""


@dataclass(frozen=True, slots=True)
class WeightMap:
    """The weight table of a family."""

    rows: tuple[WeightRow, ...]
    """Rows of the only stack, or of the decoder of an encoder-decoder."""
    encoder_rows: tuple[WeightRow, ...] = ()
    """Rows of the encoder of an encoder-decoder. Lightwell's names of these weights begin with "encoder."."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names that checkpoints may have or leave out, longest first."""
    ignored: re.Pattern[str] = re.compile("(?!)")
    """Names, without the prefix, of tensors that are accepted and not read."""
    respelled: tuple[tuple[str, str], ...] = ()
    """Pairs (old, new) of endings of names in old files."""
    stacked: tuple[StackedTensor, ...] = ()
    """Tensors that hold all experts of a layer. `rows` name the tensors of single experts."""
    tied_heads: tuple[str, ...] = ("lm_head.weight",)
    """Names, without the prefix, of copies of the token table in files of a tied head."""

    def short(self, name: str) -> str:
        """Return a tensor's name without its prefix, and with the new ending."""
        prefix = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        name = name.removeprefix(prefix)
        for old, new in self.respelled:
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name


def norm(ours: str, theirs: str, *, bias: bool | str = False, when: str = "") -> tuple[WeightRow, ...]:
    """Return the rows of a norm: its weight, and the bias of a LayerNorm. bias: the same as in `linear`."""
    return linear(ours, theirs, "d", bias=bias, when=when)


def linear(
    ours: str,
    theirs: str | tuple[str, ...],
    shape: str | tuple[str, ...],
    *,
    bias: bool | str = False,
    when: str = "",
    arrange: Arrange = "as it is",
) -> tuple[WeightRow, ...]:
    """Return the rows of a matrix and its bias, each stacked from several tensors if several are named.

    bias: whether there is one, or the condition of networks with one. when: the condition of networks with the matrix.
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
    theirs: str, parts: Sequence[str] = "qkv", *, bias: bool | str = False, has_gates: bool = False
) -> tuple[WeightRow, ...]:
    """Return the rows of queries, keys and values that are three matrices in the files.

    theirs: their name, with * in place of the part. has_gates: whether a gate follows each query.
    """
    names = tuple(theirs.replace("*", part) for part in parts)
    shapes = ("2q d" if has_gates else "q d", "kv d", "kv d")
    return linear("layers.{i}.qkv", names, shapes, bias=bias, arrange="gates last" if has_gates else "as it is")


def gated_mlp(
    ours: str,
    gate_up: str | tuple[str, str],
    down: str,
    neurons: str = "ff",
    *,
    bias: bool | str = False,
    when: str = "",
) -> tuple[WeightRow, ...]:
    """Return the rows of a gated mlp. gate_up: the matrices of the gate and of the gated value, or one with both."""
    shape = f"2{neurons} d" if isinstance(gate_up, str) else (f"{neurons} d",) * 2
    up = linear(f"{ours}.gate_up", gate_up, shape, bias=bias, when=when)
    return (*up, *linear(f"{ours}.down", down, f"d {neurons}", bias=bias, when=when))


def in_layers(in_layer: InLayer, *rows: WeightRow) -> tuple[WeightRow, ...]:
    """Return rows for weights of only some layers."""
    return tuple(replace(row, in_layer=in_layer) for row in rows)
