"""POST /v1/explain: one query of one head, with the numbers of every step from q and the keys to the output."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from lightwell.model.analysis.explanation import Observed, Steps, differences
from lightwell.model.analysis.explanation import explain as take_steps
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.dialects.inspect.inspection import (
    Inspection,
    asked_of_weights,
    begin,
    capture,
    described,
    inspection_route,
    keys_of,
    stack_of,
)
from lightwell.server.engine.messages.request import Part, PointCapture, TraceTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve, resolve_attending
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedArray, DescribedEntry
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import AnswerModel, Index
from lightwell.server.schemas.inspect.inputs import PART, InspectionEntry, InspectionRequest

_OF_QUERY = ("hook_q", "hook_rot_q", "hook_attn_scores", "hook_pattern", "hook_z", "hook_result")
_OF_KEYS = ("hook_k", "hook_rot_k", "hook_v")


class ExplainRequest(InspectionRequest):
    """Body of POST /v1/explain."""

    layer: Index = Field(description="The layer; negative counts from the end.")
    head: Index = Field(description="The query head; negative counts from the end.")
    query_position: Index = Field(-1, description="The position that looks; negative counts from the end.")
    part: Part | None = PART


class Softmax(AnswerModel):
    """The numbers that turn scores into weights. Those of scores are null if a score overflowed."""

    largest_score: float | None = Field(description="Taken from every score first, so that no exponential overflows.")
    sink: float | None = Field(
        None, description="The head's sink: a score of no key, which takes its part of the weight; null without one."
    )
    sink_exponential: float | None = Field(0.0, description="That of the sink; 0 without one.")
    sum_of_exponentials: float | None = Field(description="Divisor of every exponential, including the sink's.")
    sum_of_weights: float | None = Field(description="1, except for rounding and the weight of the sink.")


class ExplainEntry(InspectionEntry):
    """One query of one head of one input.

    Arrays, in the order in which they are made: q_projected and k_projected (before norm and rotation), q and k
    (after), products [key, d_head] (their sum is the dot), dots, scaled, capped (only with a cap), position_bias (only
    with one), scores (null where masked, and where temperature 0 left the key nothing), exponentials, weights, v,
    weighted_v [key, d_head], z [d_head], output [d_model] (z W_O), and where there are such gate [d_head] (the input
    of W_O is z times its sigmoid) and output_bias [d_model] (b_O, of all heads together).
    """

    part: Part = Field(description="Which attention.")
    layer: int = Field(description="The layer.")
    head: int = Field(description="The query head.")
    kv_head: int = Field(description="The key and value head that it shares with its group.")
    query_position: int = Field(description="The position that looks.")
    key_positions: list[int] = Field(description="Positions of the keys, including masked ones.")
    scale: float = Field(description="The dots are multiplied by it: 1/sqrt(d_head) unless the model says otherwise.")
    softcap: float | None = Field(description="cap tanh(x / cap) of the scaled dots; null without one.")
    window: int | None = Field(description="Keys nearer than this are seen; null sees all.")
    causal: bool = Field(description="Whether keys after the query are masked.")
    softmax: Softmax = Field(description="How scores become weights.")
    differences: dict[str, float | None] = Field(
        description="Each step computed again in float64 from the network's input to it: largest distance from the "
        "network's scores, pattern, z and result. An intervention on one of these changes it; null if the "
        "distance is not finite (for scores after temperature 0, for any after an overflow)."
    )


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(router.post, "/v1/explain", "Every step of one head for one query", ExplainEntry)
    async def explain(request: Request, body: ExplainRequest) -> Response:
        """Return each step of an attention weight: q, each k, their products and the dot, scale, cap, position bias,
        mask, scores, softmax, v, weighted v, their sum z and the output through W_O. The numbers are the network's
        own, or computed from these.
        """
        model = await accept(context, body, "/v1/explain")
        part = check_part(model, body.part)
        own = stack_config(model.config, stack_of(part))
        (layer,) = resolve_attending(body.layer, own, "layer")
        own = own.at(layer)
        (head,) = resolve(body.head, own.num_heads, "head", "head")
        inspection = await begin(model, request, body, 14)
        queries = await inspection.positions(body.query_position, "query_position", part)
        heads = [_Head(own, part, layer, head, *query) for query in queries]
        num_keys = [len(keys_of(prompt, part).ids) for prompt in inspection.inputs]
        # The keys' k (twice), v, products and weighted v; some numbers of each key; q, z, and rows of the stream.
        numbers = [n * (5 * own.head_dim + 8) + 3 * own.head_dim + 2 * own.hidden_size for n in num_keys]
        inspection.check_size(sum(numbers), "fewer or shorter inputs")
        asked = [
            (TraceTask(points=tuple(one.points(model).values())), 4 * count)
            async for one, count in in_turns(zip(heads, numbers, strict=True), 64)
        ]
        count = (own.head_dim + 1) * own.hidden_size + 2 * max(model.context_limit, own.max_model_len)
        question = asked_of_weights("head_output", count, part=part, layer=layer, head=head)
        *found, weights = await inspection.run(asked, [question])
        entries = (_entry(inspection, i, one, found[i], weights) for i, one in enumerate(heads))
        return await inspection.answer_with(entries)


@dataclass(frozen=True, slots=True)
class _Head:
    """One head and one of its queries."""

    config: ModelConfig
    """The configuration of its stack."""
    part: Part
    layer: int
    head: int
    query: int

    @property
    def kv_head(self) -> int:
        return self.head // (self.config.num_heads // self.config.num_kv_heads)

    @property
    def window(self) -> int | None:
        return None if self.part == "cross" else self.config.window_of(self.layer)

    @property
    def is_gated(self) -> bool:
        return self.config.attention_gate and self.part != "cross"

    @property
    def causal(self) -> bool:
        return self.part == "decoder"

    def visible(self, num_keys: int) -> NumpyArray:
        """Return a mask [K] of the keys that are visible to the query."""
        distance = np.arange(num_keys) - self.query
        seen = distance <= 0 if self.causal else np.ones(num_keys, bool)
        return seen if self.window is None else seen & (np.abs(distance) < self.window)

    def points(self, model: ServedModel) -> dict[str, PointCapture]:
        """Return the captures of the trace, by the last part of their names."""
        module, stack = "cross_attn" if self.part == "cross" else "attn", stack_of(self.part)
        of_query = {
            name: capture(model, stack, f"{module}.{name}", self.layer, heads=(self.head,), positions=(self.query,))
            for name in (*_OF_QUERY, *(("hook_gate",) if self.is_gated else ()))
        }
        of_keys = {
            name: capture(model, stack, f"{module}.{name}", self.layer, heads=(self.kv_head,)) for name in _OF_KEYS
        }
        return of_query | of_keys


def _entry(
    inspection: Inspection, index: int, head: _Head, tensors: dict[str, NumpyArray], weights: dict[str, NumpyArray]
) -> DescribedEntry:
    points = {name: tensors[point.name] for name, point in head.points(inspection.model).items()}
    one = {name: points[name][0, 0] for name in _OF_QUERY}
    keys = {name: points[name][:, 0] for name in _OF_KEYS}
    observed = Observed(
        q=one["hook_rot_q"],
        keys=keys["hook_rot_k"],
        values=keys["hook_v"],
        scores=one["hook_attn_scores"],
        pattern=one["hook_pattern"],
        z=one["hook_z"],
        result=one["hook_result"],
        gate=points["hook_gate"][0, 0] if head.is_gated else None,
    )
    config = head.config
    cap = config.attn_logit_softcap
    bias = weights.get("position_bias")  # by distance, 0 in the middle
    if bias is not None:
        first = len(bias) // 2 - head.query
        bias = bias[first : first + len(observed.keys)]
    visible = head.visible(len(observed.keys))
    sink = float(weights["sink"][0]) if "sink" in weights else None
    steps = take_steps(observed, visible, weights["w_o"], config.attention_scale, cap, bias, sink)
    fields: dict[str, Any] = {
        "part": head.part,
        "layer": head.layer,
        "head": head.head,
        "kv_head": head.kv_head,
        "query_position": head.query,
        "key_positions": list(range(len(observed.keys))),
        "scale": config.attention_scale,
        "softcap": cap,
        "window": head.window,
        "causal": head.causal,
        "softmax": {
            "largest_score": steps.largest_score,
            "sink": sink,
            "sink_exponential": steps.sink_exponential,
            "sum_of_exponentials": steps.sum_of_exponentials,
            "sum_of_weights": float(steps.weights.sum()),
        },
        "differences": differences(steps, observed),
    }
    arrays = {
        "q_projected": described(one["hook_q"], "d_head"),
        "k_projected": described(keys["hook_k"], "key", "d_head"),
        "q": described(observed.q, "d_head"),
        "k": described(observed.keys, "key", "d_head"),
        **_step_arrays(steps, observed.scores, cap is not None, bias is not None),
        "v": described(observed.values, "key", "d_head"),
        "weighted_v": described(steps.weighted_values, "key", "d_head"),
        "z": described(steps.z, "d_head"),
        "output": described(steps.output, "d_model"),
    }
    if observed.gate is not None:
        arrays["gate"] = described(observed.gate, "d_head")
    if "b_o" in weights:
        arrays["output_bias"] = described(weights["b_o"], "d_model")
    return inspection.entry(index, "explanation", fields, arrays)


def _step_arrays(steps: Steps, scores: NumpyArray, has_cap: bool, has_bias: bool) -> dict[str, DescribedArray]:
    """Return the arrays from the products to the weights; `scores` are the input of the softmax."""
    names = ["dots", "scaled", *(["capped"] if has_cap else []), *(["position_bias"] if has_bias else [])]
    return {
        "products": described(steps.products, "key", "d_head"),
        **{name: described(getattr(steps, name), "key") for name in names},
        "scores": described(scores, "key"),
        **{name: described(getattr(steps, name), "key") for name in ("exponentials", "weights")},
    }
