"""Ranking of texts for a query: the best first, each with its reasons if the body has `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from server.http.sse import unless_disconnected
from server.routes.context import AppContext
from server.routes.judgements.reasons import check_head_reasons, reasons_of_scores
from server.routes.judgements.scoring import score_pairs, scores_of
from server.schemas.judgements.head_fields import PairFields


@dataclass(frozen=True, slots=True)
class Ranked:
    """One text of a ranking."""

    index: int
    """The text's number in the request."""
    score: float
    beside: dict[str, Any]
    """The field `reasons` of its result, or {}."""


async def rank(
    context: AppContext,
    request: Request,
    body: PairFields,
    query: str,
    texts: Sequence[str],
    top_n: int,
    field: str,
    arrival: float,
) -> tuple[list[Ranked], dict[str, Any]]:
    """Return the `top_n` best texts (0 is all), the best first, of equals the first, and the usage. Raises ApiError.

    field: the name of the field with the texts.
    """

    def name_of(number: int, side: int | None = None) -> str:
        return "query" if side == 0 else f"{field}[{number}]"

    pairs = [(query, text) for text in texts]
    check_head_reasons(context, body.explain, min(top_n or len(pairs), len(pairs)))
    found = await unless_disconnected(request, score_pairs(context, body, pairs, name_of, arrival))
    scores = scores_of(context, found, body.use_activation)
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: top_n or None]
    explaining = reasons_of_scores(context, body.explain, [found.each[i] for i in best], arrival)
    reasons = await unless_disconnected(request, explaining)
    return [Ranked(i, scores[i], beside) for i, beside in zip(best, reasons, strict=True)], found.usage
