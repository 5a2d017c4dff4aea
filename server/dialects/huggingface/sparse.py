"""POST /embed_sparse: the weights of words in inputs (SPLADE), in the format of TEI."""

from collections.abc import Iterator

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.huggingface.tei import cut_fields
from lightwell.server.dialects.responses import tensor_response
from lightwell.server.engine.messages.request import SparseTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.embeddings import embed_inputs
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import SPARSE
from lightwell.server.generation.tasks import TaskResult, Work, check_capture, run_all
from lightwell.server.http.errors import answer_too_large
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.http.tensor_formats import Format, as_numpy
from lightwell.server.schemas.embeddings import EmbeddingRequest, SparseEmbeddingRequest, SparseValue

_VALUE_BYTES = 40
"""Most bytes of a word and its weight as JSON."""
_INPUTS_AT_ONCE = 64
"""Inputs after which the size of the answer is checked."""
_WORDS_AT_ONCE = 4096
"""Words that are written before other requests get their turn."""


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
        model = await accept(context, body, SPARSE)
        sparse = model.embedding_defaults.sparse
        task = SparseTask(is_sum=sparse.is_sum, is_log_twice=sparse.is_log_twice)
        asked = {"input": body.inputs, **cut_fields(model, body)}
        inputs = await embed_inputs(model, EmbeddingRequest.model_validate(asked), "inputs")
        num_bytes = 8 * model.config.vocab_size
        works = [Work(task, prompt, num_bytes) for prompt in inputs]
        results = await unless_disconnected(request, _run(model, works))
        return await tensor_response(Format.JSON, _pieces(results), ())


async def _run(model: ServedModel, works: list[Work]) -> list[TaskResult]:
    """Return the words of each input. Raises PayloadTooLarge once there are too many: how many is not known before."""
    check_capture(model, sum(work.capture_bytes for work in works))
    results: list[TaskResult] = []
    for begin in range(0, len(works), _INPUTS_AT_ONCE):
        results += await run_all(model, works[begin : begin + _INPUTS_AT_ONCE])
        _check_size(model, results)
    return results


def _pieces(results: list[TaskResult]) -> Iterator[bytes]:
    """Yield the answer in pieces of some milliseconds: a vocabulary may have a million words."""
    before = b"["
    for result in results:
        indices, values = (as_numpy(result.tensors[f"sparse.{name}"]) for name in ("indices", "values"))
        yield before + b"["
        for begin in range(0, len(indices), _WORDS_AT_ONCE):
            both = (array[begin : begin + _WORDS_AT_ONCE].tolist() for array in (indices, values))
            words = orjson.dumps([{"index": index, "value": value} for index, value in zip(*both, strict=True)])
            yield (b"," if begin else b"") + words[1:-1]
        before = b"],"
    yield b"]]"


def _check_size(model: ServedModel, results: list[TaskResult]) -> None:
    limit = model.settings.max_response_bytes
    estimate = _VALUE_BYTES * sum(result.tensors["sparse.indices"].shape[0] for result in results)
    if estimate > limit:
        model.metrics.capture_rejections.labels("answer_too_large").inc()
        raise answer_too_large(estimate, limit, "Send fewer inputs at a time.", of="inputs: the answer")
