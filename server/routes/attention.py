"""POST /v1/attention: patterns or scores of whole inputs, for any selection of layers, heads and positions."""

import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from server.engine.request import AttentionTask
from server.errors import BadRequest, PayloadTooLarge
from server.routes.context import AppContext
from server.routes.generation import count_rejection
from server.routes.inputs import read_inputs
from server.routes.prompts import Prompt, check_model
from server.routes.tasks import Result, Work, run_all
from server.schemas import AttentionAnswer, AttentionRequest
from server.selectors import AttentionPlan, check_answer_size, plan_attention, select_heads
from server.sse import unless_disconnected
from server.tensors import Entry, Format, Wire, as_numpy, body_pieces, check_npy, negotiate, paced

TENSOR_CONTENT: dict[str, Any] = {kind.value: {} for kind in Format if kind is not Format.JSON}
"""For the OpenAPI page: the other media types of an answer."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route to the router."""

    @router.post(
        "/v1/attention",
        tags=["inside"],
        summary="Attention patterns of a text",
        response_model=AttentionAnswer,
        responses={200: {"content": TENSOR_CONTENT}},
    )
    async def attention(request: Request, body: AttentionRequest) -> Response:
        """Attention of each input. `Accept` chooses JSON, safetensors, npy (one input) or NDJSON (a line a layer)."""
        arrival = time.monotonic()
        check_model(context, body.model)
        wanted = negotiate(request.headers.get("accept"))
        _check_part(body)
        inputs = await read_inputs(
            context,
            body.input,
            completion=body.completion,
            decoder_input=body.decoder_input,
            add_special_tokens=body.add_special_tokens,
            truncate=body.truncate,
        )
        if wanted is Format.NPY:
            check_npy(len(inputs) * (1 if body.top_k is None else 2))
        heads = select_heads(body, context.config)
        plans = [plan_attention(body, heads, len(prompt.ids)) for prompt in inputs]
        try:
            check_answer_size(plans, wire_of(wanted, body.encoding_format), context.settings.max_response_bytes)
        except PayloadTooLarge as error:
            count_rejection(context, error)
            raise
        works = [
            Work(AttentionTask(capture=plan.capture), prompt, plan.capture_bytes)
            for plan, prompt in zip(plans, inputs, strict=True)
        ]
        results = await unless_disconnected(request, run_all(context, works, arrival))
        entries = [
            _entry(context, body, index, *parts) for index, parts in enumerate(zip(inputs, plans, results, strict=True))
        ]
        head = {"object": "list", "model": context.model_id, "usage": input_usage(inputs, results)}
        pieces = body_pieces(wanted, head, entries, body.encoding_format)
        return StreamingResponse(paced(pieces), media_type=wanted.value)


def wire_of(wanted: Format, encoding_format: str) -> Wire:
    """How numbers are written in an answer of this format."""
    if wanted in (Format.SAFETENSORS, Format.NPY):
        return "binary"
    return "base64" if encoding_format == "base64" else "json"


def input_usage(inputs: list[Prompt], results: list[Result]) -> dict[str, Any]:
    """Tokens of requests that generate none."""
    num_tokens = sum(prompt.num_tokens for prompt in inputs)
    return {
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(result.num_cached_tokens for result in results)},
    }


def _check_part(body: AttentionRequest) -> None:
    if body.part not in (None, "decoder"):
        raise BadRequest(f"part: {body.part!r} is not in this model; 'decoder' is accepted.", param="part")


def _entry(
    context: AppContext, body: AttentionRequest, index: int, prompt: Prompt, plan: AttentionPlan, result: Result
) -> Entry:
    """The answer for one input: the engine's [first axis, query, key] with the axes that were asked for."""
    is_sparse = body.top_k is not None
    names = {"attention": "values" if is_sparse else "attention", "attention.indices": "indices"}
    arrays = {}
    for name, tensor in result.tensors.items():
        value = as_numpy(tensor)
        value = value.reshape(*plan.heads.shape, *value.shape[-2:])
        if body.orientation == "columns":
            value = np.swapaxes(value, -1, -2)
        arrays[names[name]] = value
    last_axes = ["query", "k" if is_sparse else "key"]
    if body.orientation == "columns":
        last_axes.reverse()
    fields: dict[str, Any] = {
        "object": "attention",
        "index": index,
        "tokens": context.tokenizer.token_strings(prompt.ids),
        "token_ids": prompt.ids,
        "offsets": prompt.offsets,
        "layers": plan.heads.layers,
        "heads": plan.heads.heads,
        "query_positions": plan.queries,
        "key_positions": plan.keys,
        "axes": [*plan.heads.axes, *last_axes],
        "shape": next(iter(arrays.values())).shape,
        "dtype": body.dtype,
        "kind": body.kind,
    }
    if not plan.heads.is_grid:
        fields["pairs"] = plan.heads.pairs
    return Entry(index, fields, arrays)
