"""POST /api/embed and /api/embeddings: vectors of texts, over the path of /v1/embeddings."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.ollama.lines import nanoseconds, truncated
from lightwell.server.dialects.ollama.translation import accept_named
from lightwell.server.dialects.responses import large_response
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.embeddings import embed_vectors
from lightwell.server.http.tensor_formats import JsonArray
from lightwell.server.schemas.ollama import (
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
        model = await accept_named(context, body, "/api/embed")
        asked = {"input": body.input, "truncate": body.truncate, "dimensions": body.dimensions, "normalize": True}
        inputs, vectors = await embed_vectors(model, request, asked)
        answer = {
            "model": model.id if body.model is None else body.model,
            "total_duration": nanoseconds(current_request().arrival),
            "load_duration": 0,
            "prompt_eval_count": sum(prompt.num_tokens for prompt in inputs),
            **truncated(inputs),
            "embeddings": (JsonArray(vector, "float") for vector in vectors),
        }
        return await large_response(answer)

    @router.post(
        "/api/embeddings",
        tags=["Ollama"],
        summary="The vector of one text, as Ollama gave it before /api/embed",
        response_model=OllamaEmbeddingsAnswer,
    )
    async def embed_prompt(request: Request, body: OllamaEmbeddingsRequest) -> Response:
        """Return the text's vector, of the length that the model gives it."""
        model = await accept_named(context, body, "/api/embeddings")
        asked = {"input": body.prompt, "truncate": True, "normalize": False}
        inputs, (vector,) = await embed_vectors(model, request, asked, "prompt")
        return await large_response({"embedding": JsonArray(vector, "float"), **truncated(inputs)})
