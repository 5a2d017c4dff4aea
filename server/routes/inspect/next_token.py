"""POST /v1/next: the whole distribution over the next token, or over a masked one, at several temperatures, before and
after the filters.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from model.hooks.point_names import stacks
from model.sampling.distribution import Distribution, distribution
from server.engine.request import TraceTask
from server.http.errors import BadRequest
from server.http.sse import unless_disconnected
from server.http.tensor_formats import NumpyArray
from server.http.trace_body import DescribedArray
from server.routes.context import AppContext
from server.routes.inspect.inspection import Inspection, NamedToken, begin, capture, described
from server.routes.inspect.selectors import resolve
from server.routes.inspect.token_reasons import explained_token, read_versus
from server.routes.parts.reasons import explain
from server.routes.responses import tensor_route
from server.schemas.inspect.predictions import NextAnswer, NextRequest

_NAMED_BYTES = 130
"""Bytes of a token with its id, logit and probabilities in JSON, approximately."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    @tensor_route(router.post, "/v1/next", "Next-token distribution at several temperatures", NextAnswer)
    async def next_token(request: Request, body: NextRequest) -> Response:
        """Return the likeliest next tokens of each input, with logits and probabilities; with `full` the whole
        vocabulary. An encoder that fills in masked words tells which tokens may stand at the position itself.

        The filters are those of the sampler, in its order: temperature, top_k, min_p, top_p.
        """
        inspection = await begin(context, request, body, "/v1/next", 3 if body.full else 1)
        positions = [_position(context, body, prompt.ids) for prompt in inspection.inputs]
        versus = None
        if body.explain is not None:
            versus = read_versus(context, body.explain, len(inspection.inputs), body.interventions)
        num_inputs, num_temperatures = len(inspection.inputs), len(body.temperatures)
        inspection.check_size(
            num_inputs * (1 + 2 * num_temperatures) * context.config.vocab_size * body.full,
            "fewer inputs or temperatures, a smaller num_tokens, or without full",
            named_bytes=num_inputs * num_temperatures * min(body.num_tokens, context.config.vocab_size) * _NAMED_BYTES,
        )
        points = [capture(context, stacks(context.config)[-1], "logits", positions=position) for position in positions]
        asked = [(TraceTask(points=(point,)), 4 * context.config.vocab_size) for point in points]
        found = await inspection.run(asked)
        logits = [tensors[point.name][0] for tensors, point in zip(found, points, strict=True)]
        for index, row in enumerate(logits):
            if not np.isfinite(row.max()):  # of NaN too; minus infinity alone is a token that cannot come
                raise inspection.not_finite(f"the logits of input {index} at position {positions[index][0]}")
        reported = await inspection.compute(lambda: [_next_tokens(context, body, row) for row in logits])
        reasons = await unless_disconnected(request, _reasons(inspection, body, versus, positions, logits))
        entries = []
        for index, (temperatures, arrays) in enumerate(reported):
            fields = {"position": positions[index][0], "temperatures": temperatures, **reasons[index]}
            entries.append(inspection.entry(index, "next", fields, arrays))
        return inspection.answer(entries)


def _position(context: AppContext, body: NextRequest, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the position that a request asks about, as the only one. Raises BadRequest for one that is not there."""
    if body.position is not None or context.config.kind != "encoder":
        return resolve(-1 if body.position is None else body.position, len(ids), "position", "position")
    mask = context.tokenizer.mask_token_id
    if mask not in ids:
        token = "the mask token" if mask is None else repr(context.tokenizer.token(mask))
        raise BadRequest(
            f"position: null asks for the first masked place, and the input does not hold {token}; with it null is "
            f"accepted, without it 0 to {len(ids) - 1}.",
            param="position",
        )
    return (ids.index(mask),)


async def _reasons(
    inspection: Inspection,
    body: NextRequest,
    versus: NamedToken | None,
    positions: Sequence[tuple[int, ...]],
    logits: Sequence[NumpyArray],
) -> list[dict[str, Any]]:
    """Return what each entry has beside itself: the reasons of its likeliest token, or nothing if they are not asked
    for.
    """
    options, context = body.explain, inspection.context
    if options is None:
        return [{} for _ in logits]
    asked = [
        explained_token(context, prompt, position, row, options, versus)
        for prompt, (position,), row in zip(inspection.inputs, positions, logits, strict=True)
    ]
    return [{"reasons": each} for each in await explain(context, asked, options, inspection.arrival)]


def _next_tokens(
    context: AppContext, body: NextRequest, logits: NumpyArray
) -> tuple[list[dict[str, Any]], dict[str, DescribedArray]]:
    """Return what is reported of one row of logits: at each temperature, and its arrays."""
    top_k = max(0, body.top_k)
    found = [
        distribution(logits, temperature, top_k=top_k, top_p=body.top_p, min_p=body.min_p)
        for temperature in body.temperatures
    ]
    # One order for all temperatures: they do not change which token is likelier. The lower id comes first among equals.
    order = np.argsort(-logits, kind="stable")[: body.num_tokens]
    names = context.tokenizer.token_strings(order.tolist())
    temperatures = [
        {
            "temperature": temperature,
            "entropy": one.entropy,
            "kept_entropy": one.kept_entropy,
            "num_kept": one.num_kept,
            "num_passed": one.num_passed,
            "tokens": orjson.Fragment(orjson.dumps(_tokens(order, names, logits, one))),
        }
        for temperature, one in zip(body.temperatures, found, strict=True)
    ]
    arrays = {}
    if body.full:
        arrays = {
            "logits": described(logits, "token"),
            "probabilities": described(np.stack([one.probabilities for one in found]), "temperature", "token"),
            "kept": described(np.stack([one.kept for one in found]), "temperature", "token"),
        }
    return temperatures, arrays


def _tokens(order: NumpyArray, names: list[str], logits: NumpyArray, one: Distribution) -> list[dict[str, Any]]:
    return [
        {
            "token_id": token_id,
            "token": name,
            "logit": float(logits[token_id]),
            "probability": float(one.probabilities[token_id]),
            "kept_probability": float(one.kept[token_id]),
        }
        for token_id, name in zip(order.tolist(), names, strict=True)
    ]
