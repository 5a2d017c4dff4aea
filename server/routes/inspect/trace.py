"""POST /v1/trace: the numbers of any named points of an exact pass over whole inputs."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.engine.request import Intervention, TraceTask
from server.http.sse import unless_disconnected
from server.http.tensor_formats import Format, as_numpy, check_npy, negotiate
from server.routes.context import AppContext
from server.routes.inputs import read_inputs
from server.routes.inspect.interventions import read_all_interventions
from server.routes.inspect.trace_body import DescribedArray, DescribedEntry, described_body
from server.routes.inspect.trace_plan import PlannedPoint, check_trace_size, choose_points, plan_inputs
from server.routes.prompts import Prompt
from server.routes.request_context import accept
from server.routes.responses import (
    both_stacks_fields,
    counted_refusals,
    input_usage,
    inspection_head,
    tensor_response,
    tensor_route,
    token_bytes,
    wire_of,
)
from server.routes.tasks import TaskResult, Work, run_all
from server.schemas.trace import TraceAnswer, TraceRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route to the router."""

    @tensor_route(router.post, "/v1/trace", "Any named point of the forward pass", TraceAnswer)
    async def trace(request: Request, body: TraceRequest) -> Response:
        """Return the numbers of each point for each input, in TransformerLens's names and axes.

        `Accept` chooses JSON, safetensors (tensors "{index}/{name}"), npy (one input, one point) or NDJSON (one line
        per point).
        """
        arrival = time.monotonic()
        accept(context, body)
        wanted = negotiate(request.headers.get("accept"))
        chosen = choose_points(body, context.config)
        inputs = await read_inputs(context, body)
        if wanted is Format.NPY:
            check_npy(len(inputs) * len(chosen))
        lengths = [(len(prompt.ids), len(prompt.encoder_ids)) for prompt in inputs]
        with counted_refusals(context):
            check_trace_size(
                body,
                chosen,
                context.config,
                lengths,
                wire_of(wanted, body.encoding_format),
                context.settings.max_response_bytes,
                token_bytes(inputs),
            )
        plans = await asyncio.to_thread(plan_inputs, body, chosen, context.config, lengths)
        results = await unless_disconnected(request, _run(context, body, inputs, plans, arrival))
        entries = await asyncio.to_thread(_entries, context, inputs, plans, results)
        head = inspection_head(context, input_usage(inputs, results))
        pieces = described_body(wanted, head, entries, body.encoding_format)
        return tensor_response(wanted, pieces, (point.value for entry in entries for point in entry.points.values()))


async def _run(
    context: AppContext, body: TraceRequest, inputs: list[Prompt], plans: list[list[PlannedPoint]], arrival: float
) -> list[TaskResult]:
    changes = await read_all_interventions(context, body.interventions, inputs)
    works = [
        trace_work(prompt, points, interventions)
        for prompt, points, interventions in zip(inputs, plans, changes, strict=True)
    ]
    return await run_all(context, works, arrival)


def trace_work(prompt: Prompt, points: list[PlannedPoint], interventions: tuple[Intervention, ...]) -> Work:
    """Return what the engine is asked about one input."""
    num_bytes = sum(point.num_bytes for point in points)
    return Work(TraceTask(points=tuple(point.capture for point in points)), prompt, num_bytes, interventions)


def _entries(
    context: AppContext, inputs: list[Prompt], plans: list[list[PlannedPoint]], results: list[TaskResult]
) -> list[DescribedEntry]:
    return [trace_entry(context, index, *parts) for index, parts in enumerate(zip(inputs, plans, results, strict=True))]


def trace_entry(
    context: AppContext, index: int, prompt: Prompt, plan: list[PlannedPoint], result: TaskResult
) -> DescribedEntry:
    """Return the answer for one input: its tokens, and each point with its description."""
    fields: dict[str, Any] = {"object": "trace", "index": index, **both_stacks_fields(context, prompt)}
    points = {}
    for point in plan:
        value = as_numpy(result.tensors[point.capture.name])
        description = {
            "axes": point.axes,
            "shape": value.shape,
            "dtype": point.capture.dtype,
            **point.described,
        }
        points[point.capture.name] = DescribedArray(description, value)
    return DescribedEntry(index, fields, points)
