"""POST /predict of Text Embeddings Inference: the labels of texts and pairs."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.pairs import Texts
from lightwell.server.dialects.judgements.ranking import pair_fields
from lightwell.server.dialects.judgements.reasons import check_head_reasons, reasons_of_scores
from lightwell.server.dialects.judgements.scoring import check_labels, labels_of, probabilities_of, run_head
from lightwell.server.dialects.responses import large_response
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.schemas.judgements.classifying import PredictAnswer, PredictRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add POST /predict to the router."""

    @router.post(
        "/predict",
        tags=["judgements"],
        summary="The labels of texts and pairs, as Text Embeddings Inference gives them",
        response_model=PredictAnswer,
    )
    async def predict_route(request: Request, body: PredictRequest) -> Response:
        """Return the score of every label for each input, the likeliest first."""
        return await predict(context, request, body)


async def predict(context: AppContext, request: Request, body: PredictRequest) -> Response:
    """Answer POST /predict. With `parameters`, one input's answer is a list in a list, as in HF's Inference API."""
    model = await accept(context, body, "/predict")
    asked = body.parameters
    is_batch = not isinstance(body.inputs, str) and not isinstance(body.inputs[0], str)
    inputs = _inputs_of(body.inputs)
    name_of = "inputs[{}]".format if is_batch else lambda _: "inputs"
    check_head_reasons(model, body.explain, len(inputs))
    top_k, function = (None, None) if asked is None else (asked.top_k, asked.function_to_apply)
    check_labels(model, len(inputs), top_k)
    found = await unless_disconnected(request, run_head(model, pair_fields(body), inputs, name_of))
    reasons = await unless_disconnected(request, reasons_of_scores(model, body.explain, found.each))
    labels = labels_of(model)
    numbers_of = await asyncio.to_thread(probabilities_of, model, found, not body.raw_scores, function)

    def rows() -> Iterator[list[dict[str, Any]]]:
        for numbers, reasons_field in zip(numbers_of, reasons, strict=True):
            best = (-numbers).argsort(kind="stable")[:top_k]
            row = [{"score": score, "label": labels[i]} for i, score in zip(best, numbers[best].tolist(), strict=True)]
            row[0] |= reasons_field
            yield row

    return await large_response(rows() if is_batch or asked is not None else next(rows()))


def _inputs_of(inputs: str | Sequence[str] | Sequence[Sequence[str]]) -> list[Texts]:
    if isinstance(inputs, str):
        return [(inputs,)]
    rows = [inputs] if isinstance(inputs[0], str) else inputs
    return [tuple(row) for row in rows]  # type: ignore[arg-type]  # the first shows what all are
