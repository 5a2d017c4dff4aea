"""Interventions of a request body as the engine takes them: places checked, and sources captured by traces.

A clean pass over each source runs first, as an ordinary trace through the engine; the request itself then carries
numbers only. Knows no points (`model.points`) and no shapes (`server.intervention_plan`) of its own.
"""

import asyncio
import math
import time
from collections.abc import Sequence

import numpy as np

from server.engine.request import Intervention, TraceTask
from server.errors import BadRequest, PayloadTooLarge
from server.intervention_plan import (
    Lengths,
    Place,
    check_fits,
    check_operation,
    intervention,
    mean_place,
    place_of,
    read_value,
)
from server.routes.context import AppContext
from server.routes.inputs import read_inputs
from server.routes.prompts import Prompt
from server.routes.tasks import Work, run_all
from server.schemas import InputFields, InterventionField, InterventionSource
from server.tensors import NumpyArray, as_numpy

MAX_VALUE_BYTES = 64 << 20
"""Of all values of one input's interventions together: they travel to the worker with the request."""

_Known = dict[int, Sequence[float | NumpyArray]]
"""Number of an intervention -> the values of its layers, or one for all, once read or captured: every input of a
request takes the same."""


async def read_all_interventions(
    context: AppContext, items: Sequence[InterventionField] | None, prompts: Sequence[Prompt]
) -> list[tuple[Intervention, ...]]:
    """The interventions for each input. Values from other inputs are captured first, by traces through the engine.

    A source is captured once for all inputs, and everything is checked before any trace runs.

    Raises BadRequest for what the model, an input or a point's shape does not allow; ApiError when a trace fails.
    """
    if not items:
        return [()] * len(prompts)
    known = await asyncio.to_thread(_given, items)
    placed = [[_placed(context, item, i, prompt, known) for i, item in enumerate(items)] for prompt in prompts]
    return [
        await _for_one(context, items, places, prompt, known) for places, prompt in zip(placed, prompts, strict=True)
    ]


def _given(items: Sequence[InterventionField]) -> _Known:
    """The values that the items bring with them. Raises BadRequest."""
    return {
        number: [read_value(item.value, f"interventions[{number}]")]
        for number, item in enumerate(items)
        if item.value is not None
    }


def _placed(context: AppContext, item: InterventionField, number: int, prompt: Prompt, known: _Known) -> Place:
    """Where the item stands in this input, its operation and own value checked."""
    field = f"interventions[{number}]"
    place = place_of(context.config, item.point, item.layer, item.head, item.positions, _lengths(prompt), field)
    check_operation(context.config, item, place, field)
    for value in known.get(number, ()):
        if not isinstance(value, float):
            check_fits(value.shape, place, f"{field}.value")
    return place


def _lengths(prompt: Prompt) -> Lengths:
    return Lengths(len(prompt.ids), len(prompt.encoder_ids))


async def _for_one(
    context: AppContext,
    items: Sequence[InterventionField],
    places: Sequence[Place],
    prompt: Prompt,
    known: _Known,
) -> tuple[Intervention, ...]:
    changes: list[Intervention] = []
    num_bytes = 0
    for number, (item, place) in enumerate(zip(items, places, strict=True)):
        values = await _values(context, item, number, place, prompt, known)
        num_bytes += sum(0 if isinstance(value, float) else value.nbytes for value in values)
        if num_bytes > MAX_VALUE_BYTES:
            raise PayloadTooLarge(
                f"interventions: their values take over {MAX_VALUE_BYTES} bytes; fewer layers, heads or positions are "
                "accepted.",
                param="interventions",
                code="values_too_large",
            )
        changes += (intervention(layer, place, item, value) for layer, value in zip(place.layers, values, strict=True))
    return tuple(changes)


async def _values(
    context: AppContext, item: InterventionField, number: int, place: Place, prompt: Prompt, known: _Known
) -> Sequence[float | NumpyArray]:
    """The value of each of the place's layers."""
    field = f"interventions[{number}]"
    if item.op == "zero":
        return [0.0] * len(place.layers)
    if item.op == "mean" and item.source is None:  # of this input itself
        whole = place_of(context.config, item.point, item.layer, item.head, "all", _lengths(prompt), field)
        return await _means(context, [(prompt, whole)])
    if item.source is not None:
        if number not in known:
            known[number] = await _captured(context, item, item.source, place, f"{field}.from")
        for value in known[number]:  # another input may have other positions
            check_fits(np.shape(value), place, f"{field}.from")
    values = known[number]
    return values if len(values) == len(place.layers) else [values[0]] * len(place.layers)


async def _captured(
    context: AppContext, item: InterventionField, source: InterventionSource, target: Place, field: str
) -> list[NumpyArray]:
    """The numbers of a source, one array for each layer of the target; shapes are checked before anything runs."""
    is_mean = item.op == "mean"
    prompts = await _read_source(context, source, field)
    if len(prompts) > 1 and not is_mean:
        raise BadRequest(
            f"{field}.input: {len(prompts)} inputs; one is accepted with op {item.op!r}, more with 'mean'.",
            param="interventions",
        )
    layer = source.layer if source.point is not None or source.layer is not None else item.layer
    own_positions = "all" if is_mean else item.positions
    positions = own_positions if source.positions is None else source.positions
    head = item.head if source.head is None else source.head
    found = []
    for prompt in prompts:
        place = place_of(context.config, source.point or item.point, layer, head, positions, _lengths(prompt), field)
        check_fits((mean_place(place) if is_mean else place).shape, target, field)
        if len(place.layers) not in (1, len(target.layers)):
            raise BadRequest(
                f"{field}.layer: {len(place.layers)} layers for {len(target.layers)}; one, or as many, are accepted.",
                param="interventions",
            )
        found.append((prompt, place))
    return await (_means(context, found) if is_mean else _trace(context, found[0]))


async def _read_source(context: AppContext, source: InterventionSource, field: str) -> list[Prompt]:
    fields = source.model_dump(include={"input", "decoder_input", "add_special_tokens"})
    try:
        return await read_inputs(context, InputFields.model_validate(fields))
    except BadRequest as error:
        raise BadRequest(f"{field}.{error.message}", param="interventions", code=error.code) from None


async def _means(context: AppContext, sources: Sequence[tuple[Prompt, Place]]) -> list[NumpyArray]:
    """The mean over all positions of all sources, [1, ...] for each layer; every position weighs the same."""
    totals: list[NumpyArray] = []
    for source in sources:
        sums = await asyncio.to_thread(_sums, await _trace(context, source))
        totals = [total + new for total, new in zip(totals, sums, strict=True)] if totals else sums
    num_positions = sum(place.shape[place.row_axis] for _, place in sources)
    return [np.asarray(total / num_positions, np.float32) for total in totals]


def _sums(traced: Sequence[NumpyArray]) -> list[NumpyArray]:
    """Over positions, [1, ...] for each layer, in float64."""
    return [value.sum(axis=0, keepdims=True, dtype=np.float64) for value in traced]


async def _trace(context: AppContext, source: tuple[Prompt, Place]) -> list[NumpyArray]:
    """The numbers of a place of one input, as they are without interventions, one array for each layer."""
    prompt, place = source
    captures = place.captures(context.config)
    work = Work(TraceTask(points=captures), prompt, 4 * math.prod(place.shape) * len(captures), is_sent=False)
    (result,) = await run_all(context, [work], time.monotonic())
    return [as_numpy(result.tensors[capture.name]) for capture in captures]
