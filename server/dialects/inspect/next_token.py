"""POST /v1/next: the whole distribution over the next token, or over a masked one, at several temperatures, before and
after the filters.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from lightwell.model.hooks.point_names import stacks
from lightwell.model.sampling.distribution import distribution
from lightwell.server.dialects.inspect.inspection import (
    Inspection,
    NamedToken,
    begin,
    capture,
    described,
    inspection_route,
)
from lightwell.server.dialects.inspect.token_reasons import explained_token, likeliest, read_versus
from lightwell.server.dialects.parts.reasons import explain
from lightwell.server.engine.messages.request import TraceTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedArray, DescribedEntry
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import AnswerModel, Index
from lightwell.server.schemas.inspect.inputs import InspectionEntry, InspectionRequest
from lightwell.server.schemas.judgements.reasons import EXPLAIN, ExplainField, Reasons

MAX_TEMPERATURES = 64
MAX_SHOWN_TOKENS = 1024
_NAMED_BYTES = 130
"""Bytes of a token with its id, logit and probabilities in JSON, approximately."""
MAX_PROBABILITIES = 1 << 29
"""Most inputs times temperatures times tokens of the vocabulary: some twenty seconds of one core."""


class NextRequest(InspectionRequest):
    """Body of POST /v1/next."""

    position: Index | None = Field(
        None,
        description="Position before the predicted token; for an encoder, its own. Negative values count from the "
        "end. Null is the last; for an encoder, the first with the mask token ([MASK], <mask>).",
    )
    temperatures: Annotated[
        list[Annotated[float, Field(ge=0.0, le=1e6)]], Field(min_length=1, max_length=MAX_TEMPERATURES)
    ] = Field(
        default_factory=lambda: [1.0], description="The logits are divided by each of them; 0 puts all on the largest."
    )
    top_k: int = Field(0, ge=-1, le=2**31 - 1, description="Keep the k most likely tokens; 0 or -1 keeps all.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Keep the most likely tokens of this probability mass.")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="Drop tokens below this fraction of the likeliest.")
    num_tokens: int = Field(10, ge=0, le=MAX_SHOWN_TOKENS, description="How many of the likeliest tokens to name.")
    full: bool = Field(False, description="Also the whole vocabulary: arrays logits, probabilities and kept.")
    explain: ExplainField = EXPLAIN


class NextToken(AnswerModel):
    """One token that may come next."""

    token_id: int = Field(description="Its id.")
    token: str = Field(description="The token decoded separately.")
    logit: float | None = Field(description="Before the temperature; null is minus infinity.")
    probability: float = Field(description="At this temperature, over the whole vocabulary.")
    kept_probability: float = Field(description="After top_k, min_p and top_p; 0 when it was dropped.")


class NextAtTemperature(AnswerModel):
    """The distribution at one temperature."""

    temperature: float = Field(description="The temperature.")
    entropy: float = Field(description="In nats, over the whole vocabulary.")
    kept_entropy: float = Field(description="In nats, of the distribution after the filters.")
    num_kept: int = Field(description="Tokens that are left after top_k, min_p and top_p.")
    num_passed: dict[str, int] = Field(
        description="Number of tokens that passed each filter and the earlier ones; tokens without remaining "
        "probability count. The likeliest pass, so a token's rank identifies the filter that removed it."
    )
    tokens: list[NextToken] = Field(description="The likeliest, in falling order.")


class NextEntry(InspectionEntry):
    """The next token of one input."""

    position: int = Field(description="The position that predicts.")
    temperatures: list[NextAtTemperature] = Field(description="One for each temperature, in the order asked for.")
    reasons: Reasons | None = Field(None, description="With explain: why the likeliest token is the likeliest.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(router.post, "/v1/next", "Next-token distribution at several temperatures", NextEntry)
    async def next_token(request: Request, body: NextRequest) -> Response:
        """Return the likeliest next tokens of each input, with logits and probabilities; with `full` the whole
        vocabulary. For an encoder with a masked-language-model head, return the likeliest tokens at the position.

        The filters are applied as in the sampler, in this order: temperature, top_k, min_p, top_p.
        """
        model = await accept(context, body, "/v1/next")
        inspection = await begin(model, request, body, 3 if body.full else 1)
        positions = [_position(model, body, prompt.ids) async for prompt in in_turns(inspection.inputs, 64)]
        versus = None
        if body.explain is not None:
            versus = read_versus(model, body.explain, len(inspection.inputs), body.interventions)
        num_inputs, num_temperatures = len(inspection.inputs), len(body.temperatures)
        if (work := num_inputs * num_temperatures * model.config.vocab_size) > MAX_PROBABILITIES:
            message = f"temperatures: inputs times temperatures times the vocabulary give {work} probabilities; "
            message += f"at most {MAX_PROBABILITIES} are accepted. Send fewer temperatures or inputs."
            raise BadRequest(message, param="temperatures", code="too_much_work")
        inspection.check_size(
            num_inputs * (1 + 2 * num_temperatures) * model.config.vocab_size * body.full,
            "fewer inputs or temperatures, a smaller num_tokens, or without full",
            named_bytes=num_inputs * num_temperatures * min(body.num_tokens, model.config.vocab_size) * _NAMED_BYTES,
        )
        points = [capture(model, stacks(model.config)[-1], "logits", positions=position) for position in positions]
        asked = [(TraceTask(points=(point,)), 4 * model.config.vocab_size) for point in points]
        found = await inspection.run(asked)
        logits = [tensors[point.name][0] for tensors, point in zip(found, points, strict=True)]

        def report() -> Iterator[tuple[list[orjson.Fragment], dict[str, DescribedArray]]]:
            for index, row in enumerate(logits):
                if not np.isfinite(row.max()):  # also NaN; single tokens may have minus infinity
                    raise inspection.not_finite(f"the logits of input {index} at position {positions[index][0]}")
                yield _next_tokens(inspection, body, row)

        reported = await inspection.compute(report())
        reasons = await unless_disconnected(request, _reasons(inspection, body, versus, positions, logits))

        def entries() -> Iterator[DescribedEntry]:
            for index, (temperatures, arrays) in enumerate(reported):
                fields = {"position": positions[index][0], "temperatures": temperatures, **reasons[index]}
                yield inspection.entry(index, "next", fields, arrays)

        return await inspection.answer_with(entries())


def _position(model: ServedModel, body: NextRequest, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the position of a request as a tuple. Raises BadRequest for a position that does not exist."""
    if body.position is not None or model.config.kind != "encoder":
        return resolve(-1 if body.position is None else body.position, len(ids), "position", "position")
    mask = model.tokenizer.mask_token_id
    if mask not in ids:
        token = "the mask token" if mask is None else repr(model.tokenizer.token(mask))
        raise BadRequest(
            f"position: null is the first masked position, and the input does not contain {token}; null is accepted "
            f"only with it; otherwise 0 to {len(ids) - 1}.",
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
    """Return the additional field of each entry: the reasons of its likeliest token; {} without `explain`."""
    options, model = body.explain, inspection.model
    if options is None:
        return [{} for _ in logits]
    asked = [
        explained_token(model, prompt, position, likeliest(row), options, versus)
        for prompt, (position,), row in zip(inspection.inputs, positions, logits, strict=True)
    ]
    return [{"reasons": each} for each in await explain(model, asked, options)]


def _next_tokens(
    inspection: Inspection, body: NextRequest, logits: NumpyArray
) -> tuple[list[orjson.Fragment], dict[str, DescribedArray]]:
    """Return the report of one row of logits at each temperature, and its arrays."""
    # One order for all temperatures, which do not change it. The lower id comes first among equals.
    order = np.argsort(-logits, kind="stable")[: body.num_tokens]
    names = inspection.model.tokenizer.token_strings(order.tolist())
    temperatures, probabilities, kept = [], [], []
    for temperature in body.temperatures:
        inspection.check()
        one = distribution(logits, temperature, top_k=max(0, body.top_k), top_p=body.top_p, min_p=body.min_p)
        reported = {
            "temperature": temperature,
            "entropy": one.entropy,
            "kept_entropy": one.kept_entropy,
            "num_kept": one.num_kept,
            "num_passed": one.num_passed,
            "tokens": [
                {
                    "token_id": token_id,
                    "token": name,
                    "logit": float(logits[token_id]),
                    "probability": float(one.probabilities[token_id]),
                    "kept_probability": float(one.kept[token_id]),
                }
                for token_id, name in zip(order.tolist(), names, strict=True)
            ],
        }
        temperatures.append(orjson.Fragment(orjson.dumps(reported)))  # a tenth of the memory of the dicts
        if body.full:
            probabilities.append(one.probabilities.astype(np.float32))
            kept.append(one.kept.astype(np.float32))
    if not body.full:
        return temperatures, {}
    return temperatures, {
        "logits": described(logits, "token"),
        "probabilities": described(np.stack(probabilities), "temperature", "token"),
        "kept": described(np.stack(kept), "temperature", "token"),
    }
