"""POST /v1/classify and /classify: the labels of texts, as in vLLM."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.reasons import check_head_reasons, reasons_of_scores
from lightwell.server.dialects.judgements.scoring import (
    NUMBER_BYTES,
    Scores,
    check_labels,
    cut_of,
    labels_of,
    probabilities_of,
    run_head,
    run_ids,
    scored_answer,
)
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.prompts.prompt import Prompt, fit_input, keep_end, read_prompts
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.schemas.judgements.classifying import ClassifyAnswer, ClassifyRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    for path, summary in (("/v1/classify", "The labels of texts"), ("/classify", "The same, without a version")):

        @router.post(path, tags=["judgements"], summary=summary, response_model=ClassifyAnswer, name=path)
        async def classify(request: Request, body: ClassifyRequest) -> Response:
            """Return the probability of every label for each input."""
            model = await accept(context, body, "/v1/classify")
            value = body.input
            is_one = isinstance(value, str) or (bool(value) and isinstance(value[0], int))
            check_head_reasons(model, body.explain, 1 if is_one else len(value))
            labels = labels_of(model)
            check_labels(model, 1 if is_one else len(value), 1, NUMBER_BYTES * len(labels))
            found = await unless_disconnected(request, _classified(model, body))
            explaining = reasons_of_scores(model, body.explain, found.each)
            reasons = await unless_disconnected(request, explaining)
            rows = await asyncio.to_thread(probabilities_of, model, found, body.use_activation)
            data = (
                {
                    "index": i,
                    "label": labels[numbers.argmax()],
                    "probs": numbers.tolist(),
                    "num_classes": len(numbers),
                    **reasons[i],
                }
                for i, numbers in enumerate(rows)
            )
            return await scored_answer(model, "classify", data, found)


async def _classified(model: ServedModel, body: ClassifyRequest) -> Scores:
    value = body.input
    if isinstance(value, str):
        return await run_head(model, body, [(value,)], lambda _: "input")
    if value and isinstance(value[0], str):
        texts = [(text,) for text in value if isinstance(text, str)]
        return await run_head(model, body, texts, "input[{}]".format)
    defaults = model.score_defaults
    cut = cut_of(model, body, None if defaults is None else defaults.max_length, is_default=False)
    kept = cut.limit if cut.keep == "end" and cut.is_allowed else None

    def fit(prompt: Prompt) -> Prompt:
        return fit_input(model, keep_end(prompt, kept, cut.limit), cut.is_allowed, "input", cut.limit)

    return await run_ids(model, await read_prompts(model, value, "input", fit=fit))
