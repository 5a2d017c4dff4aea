"""POST /v1/attention: patterns or scores of whole inputs, for any selection of layers, heads and positions."""

import asyncio
import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from model.hooks.point_names import stack_config
from server.engine.request import AttentionTask, Part
from server.http.sse import unless_disconnected
from server.http.tensor_formats import Entry, Format, as_numpy, body_pieces, check_npy, negotiate
from server.routes.context import AppContext
from server.routes.inputs import read_inputs
from server.routes.inspect.interventions import read_all_interventions
from server.routes.inspect.selectors import (
    AttentionPlan,
    HeadSelection,
    check_answer_size,
    plan_attention,
    select_heads,
)
from server.routes.prompts import Prompt
from server.routes.request_context import accept
from server.routes.responses import (
    counted_refusals,
    input_usage,
    inspection_head,
    tensor_response,
    tensor_route,
    token_bytes,
    token_fields,
    wire_of,
)
from server.routes.supported_routes import check_part
from server.routes.tasks import TaskResult, Work, run_all
from server.schemas.attention import AttentionAnswer, AttentionRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route to the router."""

    @tensor_route(
        router.post, "/v1/attention", "Attention patterns of a text, of any of the model's parts", AttentionAnswer
    )
    async def attention(request: Request, body: AttentionRequest) -> Response:
        """Return the attention of each input. `Accept` chooses JSON, safetensors, npy (one input) or NDJSON (one
        line per layer).
        """
        arrival = time.monotonic()
        accept(context, body)
        wanted = negotiate(request.headers.get("accept"))
        part = check_part(context, body.part)
        inputs = await read_inputs(context, body)
        if wanted is Format.NPY:
            check_npy(len(inputs) * (1 if body.top_k is None else 2))
        heads = select_heads(body, stack_config(context.config, "encoder" if part == "encoder" else "decoder"))
        plans = [plan_of(body, heads, prompt, part) for prompt in inputs]
        with counted_refusals(context):
            wire, limit = wire_of(wanted, body.encoding_format), context.settings.max_response_bytes
            check_answer_size(plans, wire, limit, token_bytes(inputs))
        results = await unless_disconnected(request, _run(context, body, inputs, plans, arrival))
        entries = await asyncio.to_thread(_entries, context, body, inputs, plans, results)
        head = inspection_head(context, input_usage(inputs, results))
        pieces = body_pieces(wanted, head, entries, body.encoding_format)
        return tensor_response(wanted, pieces, (array for entry in entries for array in entry.arrays.values()))


def rows_of(prompt: Prompt, part: Part) -> Prompt:
    """Return the tokens that are the queries of a part."""
    return prompt.encoder if part == "encoder" and prompt.encoder is not None else prompt


def keys_of(prompt: Prompt, part: Part) -> Prompt:
    """Return the tokens that are the keys of a part."""
    return prompt.encoder if part != "decoder" and prompt.encoder is not None else prompt


def plan_of(body: AttentionRequest, heads: HeadSelection, prompt: Prompt, part: Part) -> AttentionPlan:
    """Return the plan for one input. Raises BadRequest when a position is out of range."""
    return plan_attention(body, heads, len(rows_of(prompt, part).ids), len(keys_of(prompt, part).ids), part)


async def _run(
    context: AppContext, body: AttentionRequest, inputs: list[Prompt], plans: list[AttentionPlan], arrival: float
) -> list[TaskResult]:
    changes = await read_all_interventions(context, body.interventions, inputs)
    works = [
        Work(AttentionTask(capture=plan.capture), prompt, plan.capture_bytes, interventions)
        for prompt, plan, interventions in zip(inputs, plans, changes, strict=True)
    ]
    return await run_all(context, works, arrival)


def _entries(
    context: AppContext,
    body: AttentionRequest,
    inputs: list[Prompt],
    plans: list[AttentionPlan],
    results: list[TaskResult],
) -> list[Entry]:
    return [
        attention_entry(context, body, index, *parts)
        for index, parts in enumerate(zip(inputs, plans, results, strict=True))
    ]


def attention_entry(
    context: AppContext, body: AttentionRequest, index: int, prompt: Prompt, plan: AttentionPlan, result: TaskResult
) -> Entry:
    """Return the answer for one input: the engine's [first axis, query, key] with the axes that were asked for."""
    part, is_sparse = plan.capture.part, body.top_k is not None
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
        **token_fields(context, rows_of(prompt, part)),
        "part": part,
        "layers": plan.heads.layers,
        "heads": plan.heads.heads,
        "query_positions": plan.queries,
        "key_positions": plan.keys,
        "axes": [*plan.heads.axes, *last_axes],
        "shape": next(iter(arrays.values())).shape,
        "dtype": body.dtype,
        "kind": body.kind,
    }
    if part == "cross":
        fields |= token_fields(context, keys_of(prompt, part), "key_")
    if not plan.heads.is_grid:
        fields["pairs"] = plan.heads.pairs
    return Entry(index, fields, arrays)
