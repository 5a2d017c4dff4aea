"""POST /v1/embeddings: vectors of inputs, from any layer of the network."""

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from server.engine.request import EmbedTask, Pooling
from server.errors import BadRequest, PayloadTooLarge
from server.routes.answers import TENSOR_CONTENT, input_usage, wire_of
from server.routes.context import AppContext
from server.routes.prompts import Keep, Prompt, check_model, fit_input, read_prompts
from server.routes.tasks import Result, Work, run_all
from server.schemas import EmbeddingAnswer, EmbeddingRequest
from server.selectors import resolve
from server.sse import unless_disconnected
from server.tensors import Entry, Format, as_numpy, body_pieces, check_npy, negotiate, paced

_DECODER_POOLING: Pooling = "last"
_BYTES = {"json": 14.0, "base64": 16 / 3, "binary": 4.0}
"""Of one float32 on the wire."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route to the router."""

    @router.post(
        "/v1/embeddings",
        tags=["inside"],
        summary="Vectors of a text",
        response_model=EmbeddingAnswer,
        responses={200: {"content": TENSOR_CONTENT}},
    )
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        """The vector of each input, or with pooling none one vector a token. `Accept` chooses the format."""
        arrival = time.monotonic()
        check_model(context, body.model)
        wanted = negotiate(request.headers.get("accept"))
        task = _task(context, body)
        keep: Keep | None = "start" if body.truncate else None
        prompts = await read_prompts(context, body.input, "input", body.add_special_tokens, keep)
        inputs = [fit_input(context, prompt, body.truncate, "input") for prompt in prompts]
        if wanted is Format.NPY:
            check_npy(len(inputs))
        encoding_format = body.encoding_format or "float"
        _check_size(context, task, inputs, _BYTES[wire_of(wanted, encoding_format)])
        width = _width(context, task)
        works = [Work(task, prompt, 4 * width * _num_vectors(task, prompt)) for prompt in inputs]
        results = await unless_disconnected(request, run_all(context, works, arrival))
        entries = [
            _entry(context, task, index, *parts) for index, parts in enumerate(zip(inputs, results, strict=True))
        ]
        head = {"object": "list", "model": context.model_id, "usage": input_usage(inputs, results)}
        return StreamingResponse(paced(body_pieces(wanted, head, entries, encoding_format)), media_type=wanted.value)


def _task(context: AppContext, body: EmbeddingRequest) -> EmbedTask:
    """What is to be taken from the network. Raises BadRequest for a layer or a width that the model lacks."""
    hidden_size = context.config.hidden_size
    if body.dimensions is not None and body.dimensions > hidden_size:
        raise BadRequest(
            f"dimensions: {body.dimensions} is over the model's {hidden_size}; 1 to {hidden_size} are accepted.",
            param="dimensions",
        )
    layer = None
    if body.layer is not None:
        (layer,) = resolve(body.layer, context.config.num_layers + 1, "layer", "layer")
    return EmbedTask(
        layer=layer,
        pooling=body.pooling or _DECODER_POOLING,
        normalize=True if body.normalize is None else body.normalize,
        dimensions=body.dimensions,
    )


def _num_vectors(task: EmbedTask, prompt: Prompt) -> int:
    return len(prompt.ids) if task.pooling == "none" else 1


def _width(context: AppContext, task: EmbedTask) -> int:
    return task.dimensions or context.config.hidden_size


def _check_size(context: AppContext, task: EmbedTask, inputs: list[Prompt], bytes_each: float) -> None:
    estimate = round(sum(_num_vectors(task, prompt) for prompt in inputs) * _width(context, task) * bytes_each)
    limit = context.settings.max_response_bytes
    if estimate > limit:
        context.metrics.capture_rejections.labels("answer_too_large").inc()
        raise PayloadTooLarge(
            f"The answer would be about {estimate} bytes; at most {limit} are sent (--max-response-bytes). Ask for "
            f'fewer inputs, "dimensions": {max(1, int(_width(context, task) * limit / estimate))}, a pooling, or '
            "Accept: application/vnd.safetensors.",
            code="answer_too_large",
        )


def _entry(context: AppContext, task: EmbedTask, index: int, prompt: Prompt, result: Result) -> Entry:
    vectors = as_numpy(result.tensors["embedding"])
    fields: dict[str, Any] = {"object": "embedding", "index": index}
    if task.pooling == "none":
        fields["tokens"] = context.tokenizer.token_strings(prompt.ids)
        fields["token_ids"] = prompt.ids
    fields["axes"] = ["token", "dimension"] if vectors.ndim == 2 else ["dimension"]
    fields["shape"] = vectors.shape
    return Entry(index, fields, {"embedding": vectors})
