"""POST /v1/attention: patterns or scores of whole inputs, for any selection of layers, heads and positions."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from server.engine.request import AttentionTask
from server.errors import BadRequest, PayloadTooLarge
from server.routes.context import AppContext
from server.routes.generation import count_rejection
from server.routes.prompts import (
    Keep,
    Prompt,
    check_ids,
    check_model,
    fit_input,
    read_chat,
    read_completion,
    read_prompts,
)
from server.routes.tasks import Result, Work, run_all
from server.schemas import AttentionAnswer, AttentionRequest, ChatMessage
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
        inputs = await _inputs(context, body)
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
            Work(AttentionTask(capture=plan.capture), prompt.ids, plan.capture_bytes)
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
    num_tokens = sum(len(prompt.ids) for prompt in inputs)
    return {
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(result.num_cached_tokens for result in results)},
    }


def _check_part(body: AttentionRequest) -> None:
    if body.part not in (None, "decoder"):
        raise BadRequest(f"part: {body.part!r} is not in this model; 'decoder' is accepted.", param="part")
    if body.decoder_input is not None:
        raise BadRequest(
            "decoder_input: this model has no encoder; null is accepted. Give the text as input.", param="decoder_input"
        )


async def _inputs(context: AppContext, body: AttentionRequest) -> list[Prompt]:
    """Each input with its completion, within the context."""
    value = body.input
    if isinstance(value, list) and value and isinstance(value[0], ChatMessage):
        messages = [item for item in value if isinstance(item, ChatMessage)]
        prompts = [await read_chat(context, messages, body.completion is not None)]
    else:
        keep: Keep | None = "start" if body.truncate else None
        prompts = await read_prompts(context, value, "input", body.add_special_tokens, keep)  # type: ignore[arg-type]
    if body.completion is not None:
        prompts = await _completed(context, prompts, body.completion)
    return [fit_input(context, prompt, body.truncate, "input") for prompt in prompts]


async def _completed(context: AppContext, prompts: list[Prompt], completion: Any) -> list[Prompt]:
    """The prompts, each followed by its completion. Raises BadRequest when they do not match in number."""
    is_one = isinstance(completion, str) or (bool(completion) and isinstance(completion[0], int))
    completions = [completion] if is_one else list(completion)
    if len(completions) != len(prompts):
        raise BadRequest(
            f"completion: {len(completions)} of them for {len(prompts)} inputs; one for each is accepted.",
            param="completion",
        )
    joined = []
    for prompt, following in zip(prompts, completions, strict=True):
        if isinstance(following, str):
            end = await read_completion(context, following)
        else:
            end = Prompt(check_ids(context, following, "completion"))
        joined.append(_joined(prompt, end))
    return joined


def _joined(prompt: Prompt, end: Prompt) -> Prompt:
    """Two texts as one: the spans of the second count from the beginning of the first."""
    ids = prompt.ids + end.ids
    if prompt.text is None or end.text is None or prompt.offsets is None or end.offsets is None:
        return Prompt(ids)
    shift = len(prompt.text)
    moved = tuple((start + shift, stop + shift) for start, stop in end.offsets)
    return replace(prompt, ids=ids, text=prompt.text + end.text, offsets=prompt.offsets + moved)


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
