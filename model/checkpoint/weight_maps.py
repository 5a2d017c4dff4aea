"""Lists the weights of a network: names, shapes and source tensors.

Lightwell's names: `embed` (`embed_in` and `embed_out` if the token table is narrower than the network), `pos_embed`,
`token_type_embed`, `embed_norm`, `position_bias`. Of each block `layers.{i}.`:

- attention: attn_norm, qkv (rows of all query heads, of all gates, of all key heads, of all value heads), q_norm,
  k_norm, sinks, attn_out, attn_post_norm; cross_norm, cross_q, cross_kv, cross_out;
- a short convolution: conv_in (rows of B, of C, of x), conv [channel, 1, position], conv_out;
- a delta net: delta_in (rows of q, k and v, of z, of the strengths, of the steps), conv, delta_decay, delta_step,
  delta_norm, delta_out;
- mlp: mlp_norm, gate_up (rows of the gate, then of the gated value) or up, down, mlp_post_norm;
- experts: router, and for each expert `experts.{e}.` gate_up, down; of a shared one `shared.` router (its gate),
  gate_up, down; next to an mlp router_norm, expert_scales, dense_post_norm, experts_norm, experts_post_norm;
- per-layer token embeddings: per_layer_gate, per_layer_out, per_layer_post_norm, and of all layers together
  `per_layer_embed`, `per_layer_project` and `per_layer_norm`; stream_scale, a number;
- several residual streams: altup_norm, altup_router, altup_predict, altup_correct, altup_scale, laurel_left,
  laurel_right, laurel_norm, and of all layers together `altup_in` and `altup_out`.

Then `final_norm`; `head_transform` and `head_norm` of an encoder's head; `head`, absent if it is tied to `embed`;
`classifier_dense`, `classifier_norm` and `classifier`. The encoder of an encoder-decoder has the same names after
"encoder.", and shares `embed`. Every matrix is [out, in], every table [entries, width].
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightwell.model.checkpoint.families.weight_table import Arrange, WeightMap, WeightRow, holds
from lightwell.model.checkpoint.registry import family_of
from lightwell.model.config import DeltaNetConfig, ModelConfig


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of the file, under the first of `names` that the file has."""

    names: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MappedWeight:
    """A weight of Lightwell: its sources, each rearranged by `arrange` and stacked along the first axis."""

    name: str
    sources: tuple[Source, ...]
    arrange: Arrange = "as it is"
    num_heads: int = 0
    gated_rows: int = 0
    """The number of rows of queries and gates, if each query is followed by its gate."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape after rearranging and stacking."""
        shapes = [_arranged(source.shape, self.arrange) for source in self.sources]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _arranged(shape: tuple[int, ...], arrange: Arrange) -> tuple[int, ...]:
    if arrange == "transpose":
        return shape[::-1]
    return shape[1:] if arrange == "flatten" else shape


def table_of(config: ModelConfig) -> WeightMap:
    """Return the weight table of the network's family."""
    return family_of(config).weights


def weights_of(config: ModelConfig) -> Iterator[MappedWeight]:
    """Yield every weight of a network, in the order of the forward pass, the encoder's first."""
    table = table_of(config)
    if config.encoder is not None:
        yield from _stack(config.encoder, table.encoder_rows, "encoder.")
    yield from _stack(config, table.rows, "")


def _stack(config: ModelConfig, rows: Sequence[WeightRow], prefix: str) -> Iterator[MappedWeight]:
    def fill(row: WeightRow, lengths: Mapping[str, int], layer: int = 0, expert: int = 0) -> MappedWeight:
        def named(name: str) -> str:
            return name.replace("{i}", str(layer)).replace("{e}", str(expert))

        sources = (
            Source(tuple(map(named, names.split("|"))), tuple(lengths[length] for length in shape.split()))
            for names, shape in zip(row.sources, row.shapes, strict=True)
        )
        name, gated_rows = prefix + named(row.name), lengths["2q"] if row.arrange == "gates last" else 0
        return MappedWeight(name, tuple(sources), row.arrange, config.num_heads, gated_rows)

    rows = [row for row in rows if holds(row.when, config)]
    layered = ["{i}" in row.name for row in rows]
    first, last = layered.index(True), len(rows) - layered[::-1].index(True)
    whole = _lengths(config)
    yield from (fill(row, whole) for row in rows[:first])
    for layer in range(config.num_layers):
        lengths = whole if config.layers_are_alike else _lengths(config.at(layer))
        for row in rows[first:last]:
            if row.in_layer(config, layer):
                experts = range(config.experts.num_experts) if config.experts and "{e}" in row.name else (0,)
                yield from (fill(row, lengths, layer, expert) for expert in experts)
    yield from (fill(row, whole) for row in rows[last:])


def _lengths(config: ModelConfig) -> dict[str, int]:
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    net = config.recurrence if isinstance(config.recurrence, DeltaNetConfig) else None
    experts, altup = config.experts, config.altup
    shared = (experts.shared_intermediate_size if experts else None) or 0
    return {
        "1": 1,
        "vocab": config.vocab_size,
        "d": config.hidden_size,
        "embedding": config.embedding_size or config.hidden_size,
        "encoder": config.encoder.hidden_size if config.encoder else 0,
        "q": q,
        "kv": kv,
        "qkv": q + 2 * kv,
        "head": config.head_dim,
        "ff": config.intermediate_size,
        "2ff": 2 * config.intermediate_size,
        "2q": 2 * q,
        "3d": 3 * config.hidden_size,
        "kernel": config.recurrence.kernel_size if config.recurrence else 0,
        "convolved": net.convolved_width if net else 0,
        "values": net.values_width if net else 0,
        "value_heads": net.num_value_heads if net else 0,
        "value": net.value_dim if net else 0,
        "positions": config.max_model_len + config.position_offset,
        "types": config.num_token_types,
        "labels": config.classifier.num_labels if config.classifier else 0,
        "buckets": config.position_bias.num_buckets if config.position_bias else 0,
        "heads": config.num_heads,
        "experts": experts.num_experts if experts else 0,
        "2expert_ff": 2 * experts.intermediate_size if experts else 0,
        "shared_ff": shared,
        "2shared_ff": 2 * shared,
        "streams": altup.num_streams if altup else 0,
        "streams^2": altup.num_streams**2 if altup else 0,
        "laurel": altup.laurel_rank if altup else 0,
        "per_layer": config.per_layer_size or 0,
        "all_per_layer": config.num_layers * (config.per_layer_size or 0),
        "per_layer_vocab": config.per_layer_vocab_size,
        "expert_ff": experts.intermediate_size if experts else 0,
    }
