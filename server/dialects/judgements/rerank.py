"""POST /v1/rerank, /v2/rerank and /rerank: documents in the order of their scores for a query."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.ranking import rank, rank_texts
from lightwell.server.dialects.responses import large_response, model_name, new_answer_id
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.schemas.judgements.reranking import (
    AnyRerankRequest,
    RerankAnswer,
    RerankRequest,
    TeiRank,
    TeiRerankRequest,
)


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/v1/rerank",
        tags=["judgements"],
        summary="Documents by how well they answer a query",
        response_model=RerankAnswer,
    )
    async def rerank(request: Request, body: RerankRequest) -> Response:
        """Return the score of each document, the best first, as Cohere's first API, Jina's and vLLM's have it."""
        return await _reranked(context, request, body, "/v1/rerank")

    @router.post(
        "/v2/rerank",
        tags=["judgements"],
        summary="The same, as Cohere's clients ask; too long ones are cut",
        response_model=RerankAnswer,
    )
    async def rerank_v2(request: Request, body: RerankRequest) -> Response:
        """Return the score of each document, the best first. Documents that are too long are cut unless `truncate` is
        false.
        """
        if body.truncate is None:
            body = body.model_copy(update={"truncate": True})
        return await _reranked(context, request, body, "/v2/rerank")

    @router.post(
        "/rerank",
        tags=["judgements"],
        summary="The same for clients of vLLM and of Text Embeddings Inference",
        response_model=RerankAnswer | list[TeiRank],
    )
    async def rerank_either(request: Request, body: AnyRerankRequest) -> Response:
        """Return the score of each document, the best first: for `documents` as /v1/rerank, for `texts` as Text
        Embeddings Inference does.
        """
        if isinstance(body, TeiRerankRequest):
            return await rank_texts(context, request, body)
        return await _reranked(context, request, body, "/rerank")


async def _reranked(context: AppContext, request: Request, body: RerankRequest, route: str) -> Response:
    model = await accept(context, body, route)
    texts = [each if isinstance(each, str) else each["text"] for each in body.documents]
    ranked, usage = await rank(model, request, body, body.query, texts, body.top_n, "documents")
    meta = {
        "api_version": {"version": "2" if route == "/v2/rerank" else "1"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": usage["prompt_tokens"], "output_tokens": 0},
    }

    def document(index: int) -> dict[str, Any]:
        return {"document": {"text": texts[index]}} if body.return_documents else {}

    results = (
        {"index": each.index, "relevance_score": each.score, **each.beside, **document(each.index)} for each in ranked
    )
    head = {"id": new_answer_id("rerank"), "model": model_name(model)}
    return await large_response({**head, "results": results, "usage": usage, "meta": meta})
