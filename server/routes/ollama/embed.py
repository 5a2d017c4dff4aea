"""POST /api/embed and /api/embeddings: vectors of texts, over the path of /v1/embeddings."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.http.error_handlers import retold, translated
from server.http.tensor_formats import Format, NumpyArray, json_lists, json_pieces
from server.routes.context import AppContext
from server.routes.ollama.lines import nanoseconds, truncated
from server.routes.ollama.translation import NAMES, accept_named
from server.routes.openai.embeddings import embed_vectors
from server.routes.responses import tensor_response
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.ollama import (
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/api/embed",
        tags=["Ollama"],
        summary="Vectors of texts, as Ollama gives them",
        response_model=OllamaEmbedAnswer,
    )
    async def embed_texts(request: Request, body: OllamaEmbedRequest) -> Response:
        """Return a vector of length 1 for each text."""
        with retold(NAMES):
            arrival = accept_named(context, body)
            asked = {"input": body.input, "truncate": body.truncate, "dimensions": body.dimensions, "normalize": True}
            translated(EmbeddingRequest, asked)
            inputs, vectors = await embed_vectors(context, request, asked, arrival)
        head = {
            "model": context.model_id if body.model is None else body.model,
            "total_duration": nanoseconds(arrival),
            "load_duration": 0,
            "prompt_eval_count": sum(prompt.num_tokens for prompt in inputs),
            **truncated(inputs),
        }
        return tensor_response(Format.JSON, _embeddings(head, vectors), vectors)

    @router.post(
        "/api/embeddings",
        tags=["Ollama"],
        summary="The vector of one text, as Ollama gave it before /api/embed",
        response_model=OllamaEmbeddingsAnswer,
    )
    async def embed_prompt(request: Request, body: OllamaEmbeddingsRequest) -> Response:
        """Return the text's vector, of the length that the model gives it."""
        with retold(NAMES | {"input": "prompt"}):
            arrival = accept_named(context, body)
            asked = {"input": body.prompt, "truncate": True, "normalize": False}
            translated(EmbeddingRequest, asked)
            inputs, (vector,) = await embed_vectors(context, request, asked, arrival)
        end = b',"truncated":true}' if truncated(inputs) else b"}"
        return Response(b'{"embedding":' + b"".join(json_pieces(vector, "float")) + end, media_type="application/json")


def _embeddings(head: dict[str, Any], vectors: Sequence[NumpyArray]) -> Iterator[bytes]:
    yield orjson.dumps(head)[:-1] + b',"embeddings":'
    yield from json_lists(vectors)
    yield b"}"
