"""POST /v1/score and /score: scores of pairs of texts, as in vLLM."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.pairs import Texts
from lightwell.server.dialects.judgements.reasons import check_head_reasons, reasons_of_scores
from lightwell.server.dialects.judgements.scoring import score_pairs, scored_answer, scores_of
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.schemas.judgements.scoring import ScoreAnswer, ScoreRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    for path, summary in (("/v1/score", "The scores of pairs of texts"), ("/score", "The same, without a version")):

        @router.post(path, tags=["judgements"], summary=summary, response_model=ScoreAnswer, name=path)
        async def score(request: Request, body: ScoreRequest) -> Response:
            """Return the score of each pair: one text with each of the others, or each with the other at its place."""
            model = await accept(context, body, "/v1/score")
            pairs, name_of = _pairs_of(body)
            check_head_reasons(model, body.explain, len(pairs))
            found = await unless_disconnected(request, score_pairs(model, body, pairs, name_of))
            explaining = reasons_of_scores(model, body.explain, found.each)
            reasons = await unless_disconnected(request, explaining)
            data = (
                {"index": i, "object": "score", "score": number, **reasons[i]}
                for i, number in enumerate(scores_of(model, found, body.use_activation))
            )
            return await scored_answer(model, "score", data, found)


def _pairs_of(body: ScoreRequest) -> tuple[list[Texts], Callable[[int], str]]:
    """Return the pairs, and a function that returns the field of a pair. Raises BadRequest for unequal lists."""
    names = body.sides
    first, second = ([value] if isinstance(value, str) else value for value in (getattr(body, name) for name in names))
    count = max(len(first), len(second))
    if not {len(first), len(second)} <= {1, count}:
        raise BadRequest(
            f"{names[1]}: {len(second)} texts, but {len(first)} in {names[0]}; the same number, or one on either "
            "side, is accepted.",
            param=names[1],
        )
    firsts, seconds = (texts * (count // len(texts)) for texts in (first, second))

    def name_of(number: int, side: int | None = None) -> str:
        """Return the field of one side, or of the longer text: the only errors of pairs are about their length."""
        name = names[len(seconds[number]) >= len(firsts[number]) if side is None else side]
        given = getattr(body, name)
        return name if isinstance(given, str) else f"{name}[{number if len(given) > 1 else 0}]"

    return list(zip(firsts, seconds, strict=True)), name_of
