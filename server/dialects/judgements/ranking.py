"""Ranking of texts for a query: sorted by score, and with reasons if the body has `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.reasons import check_head_reasons, reasons_of_scores
from lightwell.server.dialects.judgements.scoring import score_pairs, scores_of
from lightwell.server.dialects.responses import large_response
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.schemas.judgements.head_fields import PairFields, TeiReadFields
from lightwell.server.schemas.judgements.reranking import TeiRerankRequest


@dataclass(frozen=True, slots=True)
class Ranked:
    """One text of a ranking."""

    index: int
    """The text's number in the request."""
    score: float
    beside: dict[str, Any]
    """The field `reasons` of its result, or {}."""


async def rank(
    model: ServedModel,
    request: Request,
    body: PairFields,
    query: str,
    texts: Sequence[str],
    top_n: int,
    field: str,
) -> tuple[list[Ranked], dict[str, Any]]:
    """Return the `top_n` best texts (0 is all), the best first, of equals the first, and the usage. Raises ApiError.

    field: the name of the field with the texts.
    """

    def name_of(number: int, side: int | None = None) -> str:
        return "query" if side == 0 else f"{field}[{number}]"

    pairs = [(query, text) for text in texts]
    check_head_reasons(model, body.explain, min(top_n or len(pairs), len(pairs)))
    found = await unless_disconnected(request, score_pairs(model, body, pairs, name_of))
    scores = scores_of(model, found, body.use_activation)
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: top_n or None]
    explaining = reasons_of_scores(model, body.explain, [found.each[i] for i in best])
    reasons = await unless_disconnected(request, explaining)
    return [Ranked(i, scores[i], beside) for i, beside in zip(best, reasons, strict=True)], found.usage


async def rank_texts(context: AppContext, request: Request, body: TeiRerankRequest) -> Response:
    """Answer POST /rerank for a body of Text Embeddings Inference: each text's score, the best first."""
    model = await accept(context, body, "/rerank")
    ranked, _ = await rank(model, request, pair_fields(body), body.query, body.texts, body.top_n, "texts")

    def text(index: int) -> dict[str, str]:
        return {"text": body.texts[index]} if body.return_text else {}

    return await large_response(
        {"index": each.index, "score": each.score, **each.beside, **text(each.index)} for each in ranked
    )


def pair_fields(body: TeiReadFields) -> PairFields:
    """Convert the truncation and score options of a TEI body to the other APIs' fields."""
    return PairFields.model_validate(
        {
            "truncate": body.truncate,
            "truncation_side": body.truncation_direction.lower(),
            "use_activation": not body.raw_scores,
            "explain": body.explain,
        }
    )
