"""POST /v1/trace: the numbers of any named points of an exact pass over whole inputs."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.inspect.inspection import Asked, begin, inspection_route
from lightwell.server.dialects.responses import both_stacks_fields, wire_of
from lightwell.server.engine.messages.request import TraceTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.trace_plan import (
    Lengths,
    PlannedPoint,
    check_trace_size,
    choose_points,
    plan_inputs,
)
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, counted_refusals, token_bytes
from lightwell.server.http.tensor_formats import as_numpy
from lightwell.server.http.trace_body import DescribedArray, DescribedEntry
from lightwell.server.schemas.inspect.trace import TraceEntry, TraceRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(router.post, "/v1/trace", "Any named point of the forward pass", TraceEntry)
    async def trace(request: Request, body: TraceRequest) -> Response:
        """Return the numbers of each point for each input, in TransformerLens's names and axes.

        `Accept` chooses JSON, safetensors (tensors "{index}/{name}"), npy (one input, one point) or NDJSON (one line
        per point).
        """
        model = await accept(context, body, "/v1/trace")
        chosen = choose_points(body, model.config)
        inspection = await begin(model, request, body, len(chosen))
        inputs = inspection.inputs
        lengths = [Lengths(len(prompt.ids), len(prompt.encoder_ids)) for prompt in inputs]
        with counted_refusals(model):
            check_trace_size(
                body,
                chosen,
                model.config,
                lengths,
                wire_of(inspection.wanted, body.encoding_format),
                model.settings.max_response_bytes,
                token_bytes(inputs),
            )
        plans = await asyncio.to_thread(plan_inputs, body, chosen, model.config, lengths)
        results = await inspection.results_of([asked_of(points) for points in plans])
        answered = enumerate(zip(inputs, plans, results, strict=True))
        return await inspection.answer_with(trace_entry(model, index, *parts) for index, parts in answered)


def asked_of(points: list[PlannedPoint]) -> Asked:
    """Return the engine's task for one input, and the bytes of its tensors."""
    task = TraceTask(points=tuple(point.capture for point in points))
    return task, sum(point.num_bytes for point in points)


def trace_entry(
    model: ServedModel, index: int, prompt: Prompt, plan: list[PlannedPoint], result: TaskResult
) -> DescribedEntry:
    """Return the answer for one input: its tokens, and each point with its description."""
    fields: dict[str, Any] = {"object": "trace", "index": index, **both_stacks_fields(model, prompt)}
    points = {}
    for point in plan:
        value = as_numpy(result.tensors[point.capture.name])
        description = {"axes": point.axes, "shape": value.shape, "dtype": point.capture.dtype, **point.described}
        points[point.capture.name] = DescribedArray(description, value)
    return DescribedEntry(index, fields, points)
