"""POST /v1/attention: patterns or scores of whole inputs, for any selection of layers, heads and positions."""

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.model.hooks.point_names import stack_config
from lightwell.server.dialects.inspect.inspection import begin, inspection_route, keys_of, rows_of, stack_of
from lightwell.server.dialects.responses import input_usage, inspection_head, tensor_response, token_fields, wire_of
from lightwell.server.engine.messages.request import AttentionTask, Part
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import (
    AttentionPlan,
    HeadSelection,
    check_answer_size,
    plan_attention,
    select_heads,
)
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.generation.tasks import TaskResult, counted_refusals, token_bytes
from lightwell.server.http.tensor_formats import Entry, as_numpy, body_pieces
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.inspect.attention import AttentionEntry, AttentionRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.post, "/v1/attention", "Attention patterns of a text, of any of the model's parts", AttentionEntry
    )
    async def attention(request: Request, body: AttentionRequest) -> Response:
        """Return the attention of each input. `Accept` chooses JSON, safetensors, npy (one input) or NDJSON (one
        line per layer).
        """
        model = await accept(context, body, "/v1/attention")
        part = check_part(model, body.part)
        inspection = await begin(model, request, body, 1 if body.top_k is None else 2)
        wanted, inputs = inspection.wanted, inspection.inputs
        heads = select_heads(body, stack_config(model.config, stack_of(part)))
        plans = [plan_of(body, heads, prompt, part) async for prompt in in_turns(inputs, 256)]
        with counted_refusals(model):
            wire, limit = wire_of(wanted, body.encoding_format), model.settings.max_response_bytes
            check_answer_size(plans, wire, limit, token_bytes(inputs))
        results = await inspection.results_of([(AttentionTask(capture=p.capture), p.capture_bytes) for p in plans])
        answered = enumerate(zip(inputs, plans, results, strict=True))
        entries = await inspection.compute(attention_entry(model, body, index, *parts) for index, parts in answered)
        head = inspection_head(model, input_usage(inputs, results))
        pieces = body_pieces(wanted, head, entries, body.encoding_format)
        return await tensor_response(wanted, pieces, (array for entry in entries for array in entry.arrays.values()))


def plan_of(body: AttentionRequest, heads: HeadSelection, prompt: Prompt, part: Part) -> AttentionPlan:
    """Return the plan for one input. Raises BadRequest when a position is out of range."""
    return plan_attention(body, heads, len(rows_of(prompt, part).ids), len(keys_of(prompt, part).ids), part)


def attention_entry(
    model: ServedModel, body: AttentionRequest, index: int, prompt: Prompt, plan: AttentionPlan, result: TaskResult
) -> Entry:
    """Return the answer for one input: the engine's array [pair, query, key] with the requested axes."""
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
        **token_fields(model, rows_of(prompt, part)),
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
        fields |= token_fields(model, keys_of(prompt, part), "key_")
    if not plan.heads.is_grid:
        fields["pairs"] = plan.heads.pairs
    return Entry(index, fields, arrays)
