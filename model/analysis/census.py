"""Census: counts the parameters of a network from the shapes in its configuration, without weights or torch.

Only the parameters that this server loads are counted; a checkpoint's other heads and poolers are not. There are two
totals. `total` counts storage that two weights share once. `matrices_untied` counts the matrices as textbooks do: also
a tied unembedding, and no biases, norms, positions and token types. For GPT-3's shape (Brown et al. 2020,
arXiv:2005.14165, table 2.1) it is 175,181,291,520.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from lightwell.model.checkpoint.weight_maps import weights_of
from lightwell.model.config import ModelConfig

MATRICES = (
    "embedding", "embedding projection", "per-layer embedding", "per-layer projection", "stream projection",
    "query", "key", "value", "attention gate", "output", "cross query", "cross key", "cross value", "cross output",
    "recurrence in", "recurrence out", "router", "gate", "up", "down", "head transform", "classifier",
    "unembedding",
)  # fmt: skip
VECTORS = (
    "convolution", "decays", "positions", "token types", "position bias", "sinks", "norms", "scales", "biases",
)  # fmt: skip
COMPONENTS = (*MATRICES, *VECTORS)
"""The components, in the order in which answers list them."""

_NAMES = {
    "embedding": "embed",
    "embedding projection": "embed_in embed_out",
    "per-layer embedding": "per_layer_embed",
    "per-layer projection": "per_layer_project per_layer_gate per_layer_out",
    "stream projection": "altup_in altup_out altup_router altup_predict altup_correct laurel_left laurel_right",
    "output": "attn_out",
    "cross output": "cross_out",
    "recurrence in": "conv_in delta_in",
    "recurrence out": "conv_out delta_out",
    "router": "router",
    "up": "up",
    "down": "down",
    "head transform": "head_transform",
    "classifier": "classifier_dense classifier",
    "unembedding": "head",
    "convolution": "conv",
    "decays": "delta_decay",
    "positions": "pos_embed",
    "token types": "token_type_embed",
    "position bias": "position_bias",
    "sinks": "sinks",
    "scales": "altup_scale stream_scale expert_scales",
}
_WHOLE = {name: component for component, names in _NAMES.items() for name in names.split()}
"""The component of each weight that is one component as a whole, by its name without stack and layer."""


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Matrices or vectors of one kind and one shape."""

    stack: str
    """The stack: decoder, encoder, or shared (the one token table of an encoder-decoder)."""
    component: str
    weight: str
    """Our name of the weight, without layer and expert: "qkv.weight" holds queries, keys and values."""
    shape: tuple[int, ...]
    """The shape of one of them: matrices [out, in], tables [entries, width]."""
    count: int
    """How many there are: one a layer; of queries, keys and values one a head, of experts one each."""
    tied_to: str | None = None
    """The weight that holds the same numbers, or None; for values that are also the keys, its own name. A tied weight
    is not in the total.
    """

    @property
    def parameters(self) -> int:
        return self.count * prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        return self.component in MATRICES


@dataclass(frozen=True, slots=True)
class Census:
    rows: tuple[WeightGroup, ...]
    tied: bool
    """Whether the unembedding shares the token table's storage."""

    @property
    def total(self) -> int:
        """Return the number of all parameters; shared storage counts once."""
        return sum(row.parameters for row in self.rows if row.tied_to is None)

    @property
    def matrices_untied(self) -> int:
        """Return the number of parameters in matrices, including a tied unembedding."""
        return sum(row.parameters for row in self.rows if row.is_matrix)

    @property
    def num_matrices(self) -> int:
        """Return the number of matrices that make up `matrices_untied`."""
        return sum(row.count for row in self.rows if row.is_matrix)

    def component(self, name: str) -> tuple[WeightGroup, ...]:
        """Return the groups of one component; () if the network has none."""
        return tuple(row for row in self.rows if row.component == name)


def take_census(config: ModelConfig) -> Census:
    """Count a network's parameters."""
    found: dict[tuple[str, str, str, tuple[int, ...], str | None], int] = {}
    for weight in weights_of(config):
        stack, name = _locate(config, weight.name)
        own = config.encoder if stack == "encoder" and config.encoder is not None else config
        in_layer = re.match(r"(?:encoder\.)?layers\.(\d+)\.", weight.name)
        are_keys = len({source.names for source in weight.sources}) < len(weight.sources)
        for component, shape, count in _parts(own.at(int(in_layer[1])) if in_layer else own, name, weight.shape):
            key = (stack, component, name, shape, name if are_keys and component == "value" else None)
            found[key] = found.get(key, 0) + count
    rows = [WeightGroup(*key[:4], count, key[4]) for key, count in found.items()]
    is_tied = config.has_head and config.tie_word_embeddings
    if is_tied:
        shape = (config.vocab_size, config.embedding_size or config.hidden_size)
        rows.append(WeightGroup(config.kind.rpartition("-")[2], "unembedding", "head.weight", shape, 1, "embed.weight"))
    return Census(tuple(sorted(rows, key=lambda row: COMPONENTS.index(row.component))), is_tied)


def _locate(config: ModelConfig, name: str) -> tuple[str, str]:
    """Return the stack of a weight, and its name without stack, layer and expert."""
    short = re.sub(r"^layers\.\d+\.(experts\.)?(\d+\.)?", r"\1", name.removeprefix("encoder."))
    if config.encoder is None:
        return config.kind, short
    if short == "embed.weight":
        return "shared", short
    return ("encoder" if name.startswith("encoder.") else "decoder"), short


def _parts(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield component, shape and number of the parts of one weight."""
    base, _, kind = name.removeprefix("experts.").removeprefix("shared.").rpartition(".")
    width = shape[-1]
    if base.endswith("norm"):
        yield "norms", shape, 1
    elif kind == "bias":
        yield "biases", shape, 1
    elif base in ("qkv", "cross_q", "cross_kv"):
        head = (config.head_dim, width)
        cross = "" if base == "qkv" else "cross "
        if base != "cross_kv":
            yield f"{cross}query", head, config.num_heads
            if config.attention_gate:
                yield "attention gate", head, config.num_heads
        if base != "cross_q" and shape[0] != config.num_heads * config.head_dim:  # else they are another layer's
            yield f"{cross}key", head, config.num_kv_heads
            yield f"{cross}value", head, config.num_kv_heads
    elif base == "gate_up":
        yield "gate", (shape[0] // 2, width), 1
        yield "up", (shape[0] // 2, width), 1
    else:
        yield _WHOLE[base], shape, 1
