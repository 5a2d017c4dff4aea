"""POST /v1/embeddings: vectors of inputs, from any layer of the network."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.responses import head_of, input_usage, tensor_response, tensor_route, wire_of
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.embeddings import embed, embed_inputs, embed_task, embedding_entry
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.http.tensor_formats import Format, body_pieces, check_npy, negotiate
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.embeddings import EmbeddingAnswer, EmbeddingRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    @tensor_route(router.post, "/v1/embeddings", "Vectors of a text", EmbeddingAnswer)
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        """Return the vector of each input, or with pooling none one vector per token. `Accept` chooses the format."""
        model = await accept(context, body, "/v1/embeddings")
        wanted = negotiate(request.headers.get("accept"))
        task = embed_task(model, body)
        inputs = await embed_inputs(model, body)
        if wanted is Format.NPY:
            check_npy(len(inputs))
        encoding_format = body.encoding_format or "float"
        wire = wire_of(wanted, encoding_format)
        results = await unless_disconnected(request, embed(model, task, inputs, wire))
        each = in_turns(enumerate(zip(inputs, results, strict=True)), 16)
        entries = [embedding_entry(model, task, index, *parts) async for index, parts in each]
        head = head_of(model, input_usage(inputs, results))
        pieces = body_pieces(wanted, head, entries, encoding_format)
        return await tensor_response(wanted, pieces, (entry.arrays["embedding"] for entry in entries))
