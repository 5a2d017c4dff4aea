"""POST /embed_sparse: the weights of words in inputs (SPLADE), in the format of TEI."""

import asyncio

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.engine.request import SparseTask
from server.http.errors import answer_too_large
from server.http.sse import unless_disconnected
from server.http.tensor_formats import as_numpy
from server.routes.context import AppContext
from server.routes.huggingface.tei import cut_fields
from server.routes.openai.embeddings import embed_inputs
from server.routes.request_context import accept
from server.routes.supported_routes import SPARSE
from server.routes.tasks import TaskResult, Work, run_all
from server.schemas.embeddings import EmbeddingRequest, SparseEmbeddingRequest, SparseValue

_VALUE_BYTES = 40
"""Most bytes of a word and its weight as JSON."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        SPARSE,
        tags=["inside"],
        summary="The weights of words in a text (SPLADE)",
        response_model=list[list[SparseValue]],
    )
    async def embed_sparse(request: Request, body: SparseEmbeddingRequest) -> Response:
        """Return, for each input, the words of the vocabulary that a masked language model finds in it, with their
        weights.
        """
        arrival = accept(context, body, SPARSE)
        sparse = context.embedding_defaults.sparse
        task = SparseTask(is_sum=sparse.is_sum, is_log_twice=sparse.is_log_twice)
        asked = {"input": body.inputs, **cut_fields(context, body)}
        inputs = await embed_inputs(context, EmbeddingRequest.model_validate(asked), "inputs")
        num_bytes = 8 * context.config.vocab_size
        works = [Work(task, prompt, num_bytes) for prompt in inputs]
        results = await unless_disconnected(request, run_all(context, works, arrival))
        _check_size(context, results)
        # One input at a time: the answer to many has millions of numbers.
        parts = await asyncio.to_thread(lambda: [orjson.dumps(_words(result)) for result in results])
        return Response(b"[" + b",".join(parts) + b"]", media_type="application/json")


def _words(result: TaskResult) -> list[dict[str, float]]:
    indices, values = (as_numpy(result.tensors[f"sparse.{name}"]).tolist() for name in ("indices", "values"))
    return [{"index": index, "value": value} for index, value in zip(indices, values, strict=True)]


def _check_size(context: AppContext, results: list[TaskResult]) -> None:
    limit = context.settings.max_response_bytes
    estimate = _VALUE_BYTES * sum(result.tensors["sparse.indices"].shape[0] for result in results)
    if estimate > limit:
        context.metrics.capture_rejections.labels("answer_too_large").inc()
        raise answer_too_large(estimate, limit, "Send fewer inputs at a time.", of="inputs: the answer")
