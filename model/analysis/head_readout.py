"""Small matrices of the weights from which contributions and logit attributions of heads are computed. The formulas
with M and u_t are in model/analysis/contributions.py.

Axes: D numbers of a head, T targets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lightwell.model.analysis.weight_reader import WeightReader
from lightwell.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Readout:
    """How the residual stream becomes the logits of T tokens, with the final norm's scale held."""

    direction: torch.Tensor
    """[d_model, T]: u_t."""
    bias: torch.Tensor
    """[T], the constant part of the logits."""


@dataclass(frozen=True, slots=True)
class SumReadouts:
    """The readouts of the S sums of each block (attention, cross attention if any, mlp) with a norm after each sum."""

    directions: torch.Tensor
    """[layer, S, d_model, T]: the direction in which both terms of the sum are read."""
    norm_biases: torch.Tensor
    """[layer, S, T]: the contribution of the bias of the norm after the sum."""


def read_targets(reader: WeightReader, config: ModelConfig, targets: Sequence[int]) -> Readout:
    """Return u_t = gamma_final * W_U[:, t] (centred for a LayerNorm), with logit_scale, and the constant part.

    For a head narrower than the residual stream, u_t includes the projection to it. Without a final norm u_t is
    W_U[:, t].
    """
    head = "embed.weight" if config.tie_word_embeddings else "head.weight"
    rows = reader.need(head)[list(targets)].to(torch.float64) * config.logit_scale  # [T, narrow]
    out = reader.get("embed_out.weight")
    if out is not None:
        rows = rows @ out.to(torch.float64)
    added = reader.get("head.bias")
    bias = torch.zeros(len(targets)) if added is None else added[list(targets)]
    return before_final_norm(reader, config, Readout(rows.T, bias.to(torch.float64)))


def before_final_norm(reader: WeightReader, config: ModelConfig, readout: Readout) -> Readout:
    """Return the readout of the residual stream from the readout of the state after the final norm, if there is one."""
    direction, bias = readout.direction, readout.bias
    if config.final_norm:
        beta = reader.get("final_norm.bias")
        if beta is not None:
            bias = bias + beta.to(torch.float64) @ direction
        direction = direction * _gain(reader, "final_norm")[:, None]
        if config.norm == "layernorm":
            direction = direction - direction.mean(0)
    return Readout(direction, bias)


def through_sums(reader: WeightReader, config: ModelConfig, readout: Readout) -> SumReadouts:
    """Return the readouts of all sums, computed from the last to the first: gamma C(x) / s + beta, read in direction u,
    is x read in direction C(gamma u), over s, and beta . u. The caller divides by s, which depends on the text.
    """
    names = ("attn_norm", "cross_norm", "mlp_norm") if config.cross_attention else ("attn_norm", "mlp_norm")
    u = readout.direction
    directions, biases = [], []
    for layer in reversed(range(config.num_layers)):
        for name in reversed(names):
            beta = reader.get(f"layers.{layer}.{name}.bias")
            biases.append(torch.zeros(u.shape[1], dtype=u.dtype) if beta is None else beta.to(torch.float64) @ u)
            u = u * _gain(reader, f"layers.{layer}.{name}")[:, None]
            if config.norm == "layernorm":
                u = u - u.mean(0)
            directions.append(u)
    return SumReadouts(
        torch.stack(directions[::-1]).reshape(config.num_layers, len(names), *u.shape),
        torch.stack(biases[::-1]).reshape(config.num_layers, len(names), u.shape[1]),
    )


def through_scales(reader: WeightReader, config: ModelConfig, readout: Readout) -> SumReadouts:
    """Return the readouts of a stream that is multiplied by a number after each block, without norms after the sums:
    the final direction times the numbers of this and all later blocks.
    """
    scale, directions = torch.ones((), dtype=torch.float64), []
    for layer in reversed(range(config.num_layers)):
        scale = scale * reader.need(f"layers.{layer}.stream_scale.weight").to(torch.float64)[0]
        directions.append((readout.direction * scale).expand(2, *readout.direction.shape))
    biases = torch.zeros(config.num_layers, 2, readout.direction.shape[1], dtype=torch.float64)
    return SumReadouts(torch.stack(directions[::-1]), biases)


def head_readout(
    reader: WeightReader, config: ModelConfig, part: str, pairs: Sequence[tuple[int, int]], targets: Sequence[int] = ()
) -> dict[str, torch.Tensor]:
    """Return gram, readout, direction, bias, attn_bias and cross_bias, as contributions.py describes them, float32.

    Args:
        reader: of the stack that `part` is in.
        config: of that stack.
        part: decoder | encoder | cross.
        pairs: (layer, head).
        targets: token ids, of a stack with a head; () for only the Gram matrices.
    """
    found = {"gram": torch.stack([moved @ moved.T for _, moved in _moved(reader, config, part, pairs)])}
    if targets:
        found |= stack_readout(reader, config, part, pairs, read_targets(reader, config, targets))
    return {name: tensor.to(torch.float32) for name, tensor in found.items()}


def stack_readout(
    reader: WeightReader, config: ModelConfig, part: str, pairs: Sequence[tuple[int, int]], readout: Readout
) -> dict[str, torch.Tensor]:
    """Return the same without gram, float64, for any readout of the residual stream after the last block."""
    sums = None
    if config.norm_placement == "post":
        sums = through_sums(reader, config, readout)
    elif config.stream_scales:
        sums = through_scales(reader, config, readout)

    def directions(name: str) -> list[torch.Tensor]:
        if sums is None:
            return [readout.direction] * config.num_layers
        return list(sums.directions[:, 1 if name == "cross_out" else 0])

    read = directions(_output_name(part))
    readouts = [moved @ read[layer] for layer, moved in _moved(reader, config, part, pairs)]
    found = {"readout": torch.stack(readouts), "direction": readout.direction, "bias": readout.bias}
    for name in ("attn", "cross") if config.cross_attention else ("attn",):
        found[f"{name}_bias"] = _biases(reader, config, f"{name}_out", directions(f"{name}_out"))
    if sums is not None:
        found |= {"sum_directions": sums.directions, "norm_biases": sums.norm_biases}
    return found


def _moved(
    reader: WeightReader, config: ModelConfig, part: str, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the layer and M of each pair: [largest D, d_model], padded with zeros."""
    name, written = _output_name(part), dict[int, torch.Tensor]()
    for layer, head in pairs:
        if layer not in written:
            heads = reader.heads_of_output(f"layers.{layer}.{name}.weight", config.at(layer).head_dim)
            # Pairs come layer by layer; one is kept.
            written = {layer: _as_added(reader, config, name, layer, heads.to(torch.float64))}
        moved = written[layer][head]
        yield layer, torch.nn.functional.pad(moved, (0, 0, 0, config.largest_head_dim - len(moved)))


def added_outputs(
    reader: WeightReader, config: ModelConfig, part: str, pairs: Sequence[tuple[int, int]]
) -> dict[str, torch.Tensor]:
    """Return m [pair, D, d_model], padded with zeros for smaller heads, and, if there is a b_O, bias [layer, d_model],
    as contributions.py describes them, float32.
    """
    found = {"m": torch.stack([moved.to(torch.float32) for _, moved in _moved(reader, config, part, pairs)])}
    layers = dict.fromkeys(layer for layer, _ in pairs)
    every = [_added_bias(reader, config, _output_name(part), layer) for layer in layers]
    biases = [bias for bias in every if bias is not None]
    return {**found, "bias": torch.stack(biases).to(torch.float32)} if biases else found


def head_output(reader: WeightReader, config: ModelConfig, part: str, layer: int, head: int) -> dict[str, torch.Tensor]:
    """Return w_o [D, d_model] of one head, before any norm, and, if they exist, b_o [d_model], the bias by distance of
    its scores as position_bias [2 reach - 1], with column key - query + reach - 1, and sink [1].
    """
    name = _output_name(part)
    found = {"w_o": reader.heads_of_output(f"layers.{layer}.{name}.weight", config.at(layer).head_dim)[head]}
    bias = reader.get(f"layers.{layer}.{name}.bias")
    if bias is not None:
        found["b_o"] = bias
    by_distance = None if part == "cross" else reader.get("position_bias.by_distance")
    if by_distance is not None:
        found["position_bias"] = by_distance[head]
    sinks = None if part == "cross" else reader.get(f"layers.{layer}.sinks.by_head")
    if sinks is not None:
        found["sink"] = sinks[head : head + 1]
    return {key: tensor.to(torch.float32) for key, tensor in found.items()}


def _output_name(part: str) -> str:
    return "cross_out" if part == "cross" else "attn_out"


def _as_added(reader: WeightReader, config: ModelConfig, name: str, layer: int, vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors [..., d_model] of an attention's output as the stream receives them: after the gain of the
    output's norm, if there is one, without its scale, and times `residual_scale`.
    """
    vectors = vectors * config.residual_scale
    if name == "cross_out" or config.norm_placement not in ("sandwich", "output"):
        return vectors
    if config.norm == "layernorm":
        vectors = vectors - vectors.mean(-1, keepdim=True)
    return vectors * _gain(reader, f"layers.{layer}.attn_post_norm")


def _gain(reader: WeightReader, name: str) -> torch.Tensor:
    return reader.need(f"{name}.gain").to(torch.float64)


def _biases(reader: WeightReader, config: ModelConfig, name: str, directions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return b_O . u_t of each layer: [layer, T]."""
    rows = []
    for layer, direction in enumerate(directions):
        bias = _added_bias(reader, config, name, layer)
        rows.append(torch.zeros(direction.shape[1], dtype=torch.float64) if bias is None else bias @ direction)
    return torch.stack(rows)


def _added_bias(reader: WeightReader, config: ModelConfig, name: str, layer: int) -> torch.Tensor | None:
    """Return b_O of a layer as it is added to the stream, [d_model], or None if there is none."""
    bias = reader.get(f"layers.{layer}.{name}.bias")
    return None if bias is None else _as_added(reader, config, name, layer, bias.to(torch.float64))
