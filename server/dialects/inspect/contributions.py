"""POST /v1/contributions: contributions of each token, through each head, to another token's vector and to a logit.

`model.analysis.contributions` has the formulas; `server.dialects.parts.logit_parts` the parts of a logit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from lightwell.model.analysis.arrays import Float64, Floats
from lightwell.model.analysis.contributions import opened, value_attributions, value_norms, value_vectors
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.dialects.inspect.inspection import (
    Asked,
    Inspection,
    NamedToken,
    Tensors,
    asked_of_weights,
    begin,
    capture,
    described,
    inspection_route,
    keys_of,
    read_token,
    rows_of,
    stack_of,
)
from lightwell.server.dialects.parts.logit_parts import LogitParts, check_attributable, output_norm
from lightwell.server.dialects.parts.stream_parts import ATTENTION, Added, Changes, StreamParts
from lightwell.server.engine.messages.request import Intervention, Part, PointCapture, TraceTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve, resolve_attending
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import Selector, wrong
from lightwell.server.schemas.inspect.inputs import HEADS, LAYERS, PART, InspectionEntry, InspectionRequest, Target

Pairs = tuple[tuple[int, int], ...]
AXES = ("layer", "head", "query", "key")
MAX_GATED_WORK = 200_000_000_000
"""Most multiplications where heads have gates: some ten seconds of one core."""


class ContributionsRequest(InspectionRequest):
    """Body of POST /v1/contributions."""

    layers: Selector = LAYERS
    heads: Selector = HEADS
    query_positions: Selector = Field(-1, description='Whom is added to: "all", a position, or a list.')
    key_positions: Selector = Field("all", description='By whom: "all", a position, or a list.')
    part: Part | None = PART
    target: Target | None = Field(
        None, description="A text that is one token, or a token id: also its logit's parts (direct logit attribution)."
    )
    versus: Target | None = Field(None, description="Another token; its logit is subtracted from the target's.")
    vectors: bool = Field(
        False,
        description="Also the vectors themselves, pattern * v W_O, and all else that is added to the residual stream.",
    )
    sum_over: list[Literal["layer", "head", "key"]] = Field(
        [], max_length=3, description="Axes over which the vectors are summed, which makes the answer smaller."
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> "ContributionsRequest":
        if self.sum_over and not self.vectors:
            raise wrong("sum_over", "sum_over needs vectors; set vectors too")
        if self.versus is not None and self.target is None:
            raise wrong("versus", "versus needs target; set target too")
        return self


class ContributionsEntry(InspectionEntry):
    """Contributions of each key to each query of one input.

    Arrays: norms [layer, head, query, key], the length of each key's contribution through each head (Kobayashi et al.
    2020); with a target attributions [layer, head, query, key], its part of the target's logit, and components [query,
    component], the parts of the logit, which sum to `logits` (before a final soft cap).

    With vectors: vectors [layer, head, query, key, d_model] without the axes of sum_over, the contribution of a key
    through a head, after the norm of the attention's output if there is one; additions [addition, query, d_model], all
    other additions to the residual stream; and states [state, query, d_model], the residual stream: state 0 is the
    input of the first block, state i the output of block i. All vectors and additions of a query sum to its last state.
    """

    part: Part = Field(description="Which attention.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads of the second axis.")
    query_positions: list[int] = Field(description="Positions of the third axis.")
    key_positions: list[int] = Field(description="Positions of the fourth axis.")
    target: dict[str, Any] | None = Field(None, description='{"token_id", "token"} of the target.')
    versus: dict[str, Any] | None = Field(None, description='{"token_id", "token"} of the other token.')
    component_names: list[str] | None = Field(
        None, description="Parts of the stream, by the points that hold them, and the bias of norm and head."
    )
    logits: list[float] | None = Field(None, description="Of each query: the sum of its components.")
    final_softcap: float | None = Field(None, description="The soft cap of the model's logits, applied after this sum.")
    difference: float | None = Field(
        None, description="Largest distance of that sum, capped if the model caps, from the model's own logit."
    )
    addition_names: list[str] | None = Field(
        None,
        description="Of the additions, in the order in which they are added: points; attn.b_O, and attn.rest if not "
        "all heads and keys were requested; ln1.change and similar names, the change by a norm of the stream "
        "(post-norm models); attn.change, hook_resid_mid.change and similar names, values set by an intervention "
        "that are no multiple of an addition; rounding, the loss when the network rounds its sums.",
    )
    stream_difference: float | None = Field(
        None,
        description="Largest length of the rounding part: distance of the sum of all other parts from the last state.",
    )


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.post, "/v1/contributions", "Contributions of keys to queries and logits", ContributionsEntry
    )
    async def contributions(request: Request, body: ContributionsRequest) -> Response:
        """Return the length of pattern * (v W_O) for every query, key and head; with a target also its product with
        the direction of the target's logit, and every part of that logit, which is their sum; with `vectors` all that
        is added to each query's residual stream, which is the sum of it.
        """
        model = await accept(context, body, "/v1/contributions")
        part = check_part(model, body.part)
        targets = [read_token(model, getattr(body, name), name) for name in ("target", "versus")]
        named = [target for target in targets if target is not None]
        if named:
            check_attributable(model.config, part)
        num_arrays = (3 if named else 1) + (3 if body.vectors else 0)
        inspection = await begin(model, request, body, num_arrays)
        plans = [_plan(model, body, part, prompt, bool(named)) async for prompt in in_turns(inspection.inputs, 8)]
        _check_gates(plans)
        maps = 2 if named else 1
        inspection.check_size(
            sum(maps * plan.num_values + plan.num_vector_values for plan in plans),
            "fewer layers, heads, query_positions or key_positions" + (", or sum_over" if body.vectors else ""),
        )
        changes = await inspection.read_changes()
        plans = [plan.changed_by(own) for plan, own in zip(plans, changes, strict=True)]
        questions = _questions(plans[0], tuple(token.token_id for token in named))
        asked = [(TraceTask(points=plan.points(model)), 4 * plan.num_captured) async for plan in in_turns(plans, 64)]
        found = await inspection.run(asked, list(questions.values()))
        weights = dict(zip(questions, found[len(plans) :], strict=True))  # of each part, and with vectors "added"

        entries = (_entry(inspection, i, plan, found[i], weights, named) for i, plan in enumerate(plans))
        return await inspection.answer_with(entries)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The contents of one input's answer."""

    config: ModelConfig
    """The configuration of the stack."""
    part: Part
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    logit: LogitParts | None
    stream: StreamParts | None
    """The parts of the stream, with `vectors`."""
    sum_over: frozenset[str]
    num_positions: int
    """The number of the input's key positions."""
    changes: Changes = field(default_factory=Changes)

    def changed_by(self, interventions: tuple[Intervention, ...]) -> "_Plan":
        changes = Changes(interventions, stack_of(self.part))
        logit = self.logit and replace(self.logit, changes=changes)
        return replace(self, changes=changes, logit=logit, stream=self.stream and replace(self.stream, changes=changes))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.layers), len(self.heads), len(self.queries), len(self.keys)

    @property
    def num_values(self) -> int:
        """Return the number of values in one map."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Return whether all heads and keys are chosen, so that the vectors sum to the attention's output."""
        return len(self.heads) == self.config.num_heads and len(self.keys) == self.num_positions  # each is there once

    @property
    def vector_shape(self) -> tuple[int, ...]:
        sizes = zip(AXES, self.shape, strict=True)
        return (*(1 if axis in self.sum_over else size for axis, size in sizes), self.config.hidden_size)

    @property
    def num_vector_values(self) -> int:
        if self.stream is None:
            return 0
        return math.prod(self.vector_shape) + self.stream.num_values(len(self.queries))

    def kv_heads(self, layer: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.kv_head(layer, head) for head in self.heads))

    @property
    def asked_pairs(self) -> Pairs:
        """Return the heads with needed weights: the chosen heads, or for a logit every head."""
        return tuple(product(self.layers, self.heads)) if self.logit is None else self.logit.pairs

    def kv_head(self, layer: int, head: int) -> int:
        return head // (self.config.num_heads // self.config.at(layer).num_kv_heads)

    @property
    def is_gated(self) -> bool:
        return self.config.attention_gate and self.part != "cross"

    @property
    def num_captured(self) -> int:
        values = len(self.keys) * sum(
            len(self.kv_heads(layer)) * self.config.at(layer).head_dim for layer in self.layers
        )
        logit = 0 if self.logit is None else self.logit.num_captured()
        gates = len(self.layers) * len(self.queries) * len(self.heads) * self.config.head_dim if self.is_gated else 0
        stream = 0 if self.stream is None else self.stream.num_values(len(self.queries))
        return self.num_values + values + gates + len(self.layers) * len(self.queries) + logit + stream

    def point(self, model: ServedModel, name: str, layer: int) -> PointCapture:
        """Return the capture of hook_pattern, hook_v, hook_gate, or the scale of the norm of the attention's output."""
        stack, (module, _) = stack_of(self.part), ATTENTION[self.part]
        options: dict[str, Any] = {"heads": self.heads, "positions": self.queries}
        if name == "hook_pattern":
            options["keys"] = self.keys
        elif name == "hook_v":
            options = {"heads": self.kv_heads(layer), "positions": self.keys}
        elif name != "hook_gate":
            return capture(model, stack, f"{name}.hook_scale", layer, positions=self.queries)
        return capture(model, stack, f"{module}.{name}", layer, **options)

    def points(self, model: ServedModel) -> tuple[PointCapture, ...]:
        norm = output_norm(self.config, self.part)
        names = ["hook_pattern", "hook_v", *(["hook_gate"] if self.is_gated else []), *([] if norm is None else [norm])]
        points = [self.point(model, name, layer) for layer in self.layers for name in names]
        if self.logit is not None:  # with the model's own logits of the last query, to compare with
            points += [*self.logit.captures(), self.logit.capture("logits", None, self.logit.queries[-1:])]
        points += [] if self.stream is None else self.stream.captures(self.queries)
        return tuple({point.name: point for point in points}.values())


def _plan(model: ServedModel, body: ContributionsRequest, part: Part, prompt: Prompt, has_target: bool) -> _Plan:
    own = stack_config(model.config, stack_of(part))
    num_positions = len(keys_of(prompt, part).ids)
    queries = resolve(body.query_positions, len(rows_of(prompt, part).ids), "query_positions", "position")
    return _Plan(
        own,
        part,
        resolve_attending(body.layers, own, "layers"),
        resolve(body.heads, own.num_heads, "heads", "head"),
        queries,
        resolve(body.key_positions, num_positions, "key_positions", "position"),
        LogitParts(model.config, queries=queries) if has_target else None,
        StreamParts(model.config, part) if body.vectors else None,
        frozenset(body.sum_over),
        num_positions,
    )


def _check_gates(plans: Sequence[_Plan]) -> None:
    """Raise BadRequest if gates, which differ for each query, make it too much work."""
    work = sum(plan.num_values * plan.config.head_dim**2 for plan in plans if plan.is_gated)
    if work > MAX_GATED_WORK:
        raise BadRequest(
            "query_positions: heads of this model have gates, so the lengths are computed for each query: this is "
            f"{work / MAX_GATED_WORK:.1f} times the accepted work; send fewer query_positions, layers or heads.",
            param="query_positions",
            code="too_much_work",
        )


def _questions(plan: _Plan, targets: tuple[int, ...]) -> dict[str, Asked]:
    """Return the questions about the weights of each part, and with vectors the question "added"."""
    size = plan.config.largest_head_dim
    count = len(plan.asked_pairs) * size * (size + len(targets)) + plan.config.hidden_size * len(targets)
    parts = (plan.part,) if plan.logit is None else plan.logit.parts
    asked: dict[str, Asked] = {
        part: asked_of_weights("head_readout", count, part=part, pairs=plan.asked_pairs, targets=targets)
        for part in parts
    }
    if plan.stream is not None:
        pairs = tuple(product(plan.layers, plan.heads))
        count = (len(pairs) * size + len(plan.layers)) * plan.config.hidden_size
        asked["added"] = asked_of_weights("added_outputs", count, part=plan.part, pairs=pairs)
    return asked


def _entry(
    inspection: Inspection,
    index: int,
    plan: _Plan,
    tensors: Tensors,
    weights: dict[str, Tensors],
    named: list[NamedToken],
) -> DescribedEntry:
    """Return the entry of one input; `weights` are the answers to `_questions`."""
    grams = dict(zip(plan.asked_pairs, weights[plan.part]["gram"], strict=True))
    signs = np.array([1.0, -1.0])[: len(named)]
    norms = np.empty(plan.shape)
    attributions = np.empty(plan.shape)
    moves = None if plan.stream is None else _Moves(plan, weights["added"])
    for i, layer in enumerate(plan.layers):
        patterns = tensors[plan.point(inspection.model, "hook_pattern", layer).name]
        values = tensors[plan.point(inspection.model, "hook_v", layer).name]
        norm = output_norm(plan.config, plan.part)
        scale = None if norm is None else tensors[plan.point(inspection.model, norm, layer).name][:, 0]
        gates = tensors[plan.point(inspection.model, "hook_gate", layer).name] if plan.is_gated else None
        for j, head in enumerate(plan.heads):
            inspection.check()
            share = None if gates is None else opened(gates[:, j])
            v = values[:, plan.kv_heads(layer).index(plan.kv_head(layer, head))]
            size = v.shape[-1]
            pattern = patterns[j] * plan.changes.of_head(plan.part, layer, head, plan.queries)[:, None]
            norms[i, j] = value_norms(np.abs(pattern), v, grams[layer, head][:size, :size], scale, share)
            if plan.logit is not None:
                readout = weights[plan.part]["readout"][plan.logit.pairs.index((layer, head)), :size]
                divisor = plan.logit.divisor(tensors, plan.part, layer)
                attributions[i, j] = value_attributions(pattern, v, readout @ signs, divisor, share)
            if moves is not None:
                moves.add((i, j), pattern, v, scale, share)
        if moves is not None:
            moves.end_layer(i, tensors, scale)
    arrays = {"norms": described(norms, *AXES)}
    fields: dict[str, Any] = {
        "part": plan.part,
        "layers": plan.layers,
        "heads": plan.heads,
        "query_positions": plan.queries,
        "key_positions": plan.keys,
    }
    if plan.logit is not None:
        names, components = plan.logit.components(tensors, weights)  # T Q C
        arrays["attributions"] = described(attributions, *AXES)
        arrays["components"] = described(np.tensordot(signs, components, 1), "query", "component")
        sums = components.sum(-1)
        fields |= {
            **{name: token.as_json() for name, token in zip(("target", "versus"), named, strict=False)},
            "component_names": names,
            "logits": (signs @ sums).tolist(),
            "final_softcap": plan.config.final_logit_softcap,
            "difference": plan.logit.difference(sums[:, -1], tensors, [token.token_id for token in named]),
        }
    if moves is not None:
        assert plan.stream is not None
        additions, difference = plan.stream.additions(tensors, moves.attention)
        kept = [axis for axis in AXES if axis not in plan.sum_over]
        shape = [size for axis, size in zip(AXES, plan.shape, strict=True) if axis in kept]
        arrays["vectors"] = described(moves.vectors.reshape(*shape, plan.config.hidden_size), *kept, "d_model")
        arrays["additions"] = described(np.stack(list(additions.values())), "addition", "query", "d_model")
        arrays["states"] = described(plan.stream.states(tensors), "state", "query", "d_model")
        fields |= {"addition_names": list(additions), "stream_difference": difference}
    return inspection.entry(index, "contributions", fields, arrays)


class _Moves:
    """The vectors of one input, collected head by head."""

    def __init__(self, plan: _Plan, weights: Tensors) -> None:
        self._plan, self._weights = plan, weights
        self.vectors = np.zeros(plan.vector_shape, np.float32)
        """[layer, head, query, key, d_model]; length 1 for summed axes."""
        self.attention: dict[int, Added] = {}
        """The argument of `StreamParts.additions`."""
        self._sum: Float64 = np.zeros(0)

    def add(
        self, place: tuple[int, int], pattern: Floats, values: Floats, scale: Floats | None, share: Floats | None
    ) -> None:
        i, j = place
        m = self._weights["m"][i * len(self._plan.heads) + j, : values.shape[-1]]
        summed = self._plan.sum_over
        whole = value_vectors(pattern, values, m, scale, share, sum_keys=True)
        self._sum = whole if j == 0 else self._sum + whole
        vectors = whole[:, None] if "key" in summed else value_vectors(pattern, values, m, scale, share)
        self.vectors[0 if "layer" in summed else i, 0 if "head" in summed else j] += vectors

    def end_layer(self, i: int, tensors: Tensors, scale: Floats | None) -> None:
        """Complete a layer with the vectors of its bias, of changes of its points, and of the other heads and keys."""
        plan, layer = self._plan, self._plan.layers[i]
        assert plan.stream is not None
        parts: Added = {"vectors": self._sum}
        if "bias" in self._weights:
            left = plan.changes.of_output(plan.part, layer, plan.queries)[:, None]
            bias = left * self._weights["bias"][i].astype(np.float64)
            parts[plan.stream.attention_name("b_O", layer)] = bias if scale is None else bias / scale[:, None]
        if not plan.is_whole or plan.changes.adds(plan.part, layer):
            name = "change" if plan.is_whole else "rest"
            parts[plan.stream.attention_name(name, layer)] = plan.stream.attention_output(tensors, layer) - sum(
                parts.values()
            )
        self.attention[layer] = parts
