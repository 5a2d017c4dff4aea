"""Answers to questions about the weights, in the worker: a function for each question.

Each question is a name and options; each answer is tensors by name. Tensors of one number per head have the axis pair,
in the order of the option `pairs`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightwell.model.analysis import circuits, head_readout
from lightwell.model.analysis.held_head import hold_head
from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.matrices import find_matrix
from lightwell.model.analysis.weight_geometry import Check, geometry
from lightwell.model.analysis.weight_names import find_weight, list_weights
from lightwell.model.analysis.weight_reader import Lookup, WeightReader
from lightwell.model.config import ModelConfig

Options = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]
Answer = Callable[[ModelConfig, Lookup, Options, Check], Tensors]


def answer(config: ModelConfig, lookup: Lookup, question: str, options: Options, check: Check) -> Tensors:
    """Answer one question.

    geometry: matrix (full name), axis (rows | columns), head, max_pairs, seed, spectrum: see `geometry`.
    circuits: part, pairs, compose: ov.singular_values and qk.singular_values [pair, D], ov.eigenvalues [pair, D, 2]
        (real and imaginary), float64; with compose composition [pair, pair, 3] (earlier, later; Q, K, V), 0 where the
        first is not in an earlier layer than the second.
    weights: name (full), head, rows, columns (None: all): weights, float32.
    stored: no options: json, the bytes of {our weight: its stored format} of every named weight.
    held_readout: part, pairs, head (words | labels), states [n d], targets [n] or [2 n]: the tensors of `head_readout`
        for n targets, float64, without gram: of each of num_states states, the logit or the difference of two.
    mean_embedding: part: mean [d_model], float64, the mean of the token table's rows as in hook_embed.
    head_output: part, layer, head; head_readout: part, pairs, targets; added_outputs: part, pairs: see `head_readout`.

    `check` is called often and raises to stop. Raises ValueError for a question that does not fit the model.
    """
    if question not in _ANSWERS:
        raise ValueError(f"there is no question {question!r}; accepted are {', '.join(_ANSWERS)}")
    with torch.inference_mode():
        return _ANSWERS[question](config, lookup, options, check)


def _geometry(config: ModelConfig, lookup: Lookup, options: Options, check: Check) -> Tensors:
    place = find_matrix(config, options["matrix"])
    matrix = WeightReader(lookup).matrix(place, options.get("head"))
    return geometry(
        matrix if options["axis"] == "rows" else matrix.T,
        check,
        max_pairs=options.get("max_pairs"),
        seed=options.get("seed", 0),
        spectrum=bool(options.get("spectrum", 1)),
    )


def _weights(config: ModelConfig, lookup: Lookup, options: Options, check: Check) -> Tensors:
    weight, rows = find_weight(config, options["name"]), options.get("rows")
    if weight.name == "embed.W_E" and rows is not None and isinstance(lookup, LiveWeights):
        found, rows = lookup.token_rows(tuple(rows)), None
    else:
        found = WeightReader(lookup).named(weight, options.get("head"))
    for axis, chosen in zip(weight.row_axes, (rows, options.get("columns")), strict=False):
        if chosen is not None:
            found = found.index_select(axis, torch.tensor(chosen, device=found.device))
    return {"weights": found.to(torch.float32).contiguous()}


def _stored(config: ModelConfig, lookup: Lookup, options: Options, check: Check) -> Tensors:
    names = dict.fromkeys(each.weight for each in list_weights(config).weights)
    formats = json.dumps({name: lookup.stored_as(name) for name in names})
    return {"json": torch.frombuffer(bytearray(formats.encode()), dtype=torch.uint8)}


def _circuits(config: ModelConfig, lookup: Lookup, options: Options, check: Check) -> Tensors:
    own, reader = _stack(config, lookup, options["part"])
    pairs = options["pairs"]
    heads: list[circuits.Head] = []  # only for compose: the factors of a head are twice as large as its weights
    ov, qk, eigenvalues = [], [], []
    for layer, head in pairs:
        check()
        one = reader.head(own, layer, head, is_cross=options["part"] == "cross")
        heads += [one] if options.get("compose") else []
        check()
        ov.append(circuits.singular_values(one.r_v, one.r_o))
        check()
        qk.append(circuits.singular_values(one.r_q, one.r_k))
        if one.w_o.shape[1] == one.w_v.shape[0]:
            check()
            eigenvalues.append(torch.view_as_real(circuits.ov_eigenvalues(one)))
    found = {"ov.singular_values": torch.stack(ov), "qk.singular_values": torch.stack(qk)}
    if eigenvalues:
        found["ov.eigenvalues"] = torch.stack(eigenvalues)
    if options.get("compose"):
        scores = torch.zeros(len(heads), len(heads), 3, dtype=torch.float64)
        for i, earlier in enumerate(heads):
            for j, later in enumerate(heads):
                if pairs[i][0] < pairs[j][0]:
                    check()
                    scores[i, j] = circuits.composition(earlier, later)
        found["composition"] = scores
    return found


def _held_readout(config: ModelConfig, lookup: Lookup, options: Options, check: Check) -> Tensors:
    own, reader = _stack(config, lookup, options["part"])
    count = options["num_states"]
    states = torch.tensor(options["states"], dtype=torch.float64).reshape(count, -1)
    targets = torch.tensor(options["targets"]).reshape(count, -1)
    held = hold_head(reader, config, options["head"], states, targets)
    check()
    readout = head_readout.before_final_norm(reader, own, held)
    return head_readout.stack_readout(reader, own, options["part"], tuple(options["pairs"]), readout)


def _mean_embedding(reader: WeightReader, own: ModelConfig, part: str) -> Tensors:
    mean = reader.need("embed.weight").mean(0, dtype=torch.float64)
    into = reader.get("embed_in.weight")
    return {"mean": (mean if into is None else into.to(torch.float64) @ mean) * own.embedding_scale}


def _of_part(function: Callable[..., Tensors]) -> Answer:
    """Return the answer to a question about a part by a function of its stack, called with the options."""

    def answer(config: ModelConfig, lookup: Lookup, options: Options, check: Check) -> Tensors:
        own, reader = _stack(config, lookup, options["part"])
        return function(reader, own, **options)

    return answer


def _stack(config: ModelConfig, lookup: Lookup, part: str) -> tuple[ModelConfig, WeightReader]:
    """Return the configuration of a part's stack, and a reader of its weights."""
    if part == "encoder" and config.encoder is not None:
        return config.encoder, WeightReader(lookup, "encoder.")
    return config, WeightReader(lookup)


_ANSWERS: dict[str, Answer] = {
    "geometry": _geometry,
    "weights": _weights,
    "stored": _stored,
    "circuits": _circuits,
    "head_output": _of_part(head_readout.head_output),
    "head_readout": _of_part(head_readout.head_readout),
    "held_readout": _held_readout,
    "mean_embedding": _of_part(_mean_embedding),
    "added_outputs": _of_part(head_readout.added_outputs),
}
