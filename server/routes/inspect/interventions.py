"""Converts the interventions of a request body to what the engine takes: targets checked, and sources captured by
traces.

A clean pass over each source runs first, as an ordinary trace through the engine; the request itself then carries
numbers only. It has no points (`model.hooks.points`) and no shapes (`server.routes.inspect.intervention_plan`) of its
own.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.config import ModelConfig
from server.engine.request import Intervention, PointCapture, TraceTask
from server.http.errors import BadRequest, PayloadTooLarge
from server.http.tensor_formats import NumpyArray, as_numpy
from server.routes.context import AppContext
from server.routes.inputs import read_inputs
from server.routes.inspect.intervention_plan import (
    InterventionTarget,
    Lengths,
    check_map_changes,
    check_operation,
    intervention,
    is_scores,
    mean_target,
    target_of,
    wrong,
)
from server.routes.inspect.intervention_values import check_fits, check_masked, read_value
from server.routes.prompts import Prompt
from server.routes.tasks import Work, run_all
from server.schemas.inspect.inputs import InputFields
from server.schemas.inspect.interventions import InterventionField, InterventionSource

MAX_VALUE_BYTES = 64 << 20
"""Most bytes of all values of one input's interventions together: they travel to the worker with the request."""
MAX_SOURCE_TOKENS = 1 << 18
"""Most tokens of all inputs that one request takes numbers from, equal ones counted once: each is a pass of its own."""

_Values = Sequence[float | NumpyArray]
"""The values of an intervention's layers, or one for all of them."""
_Key = tuple[int, int | None]
"""The index of an intervention, and of the input that its numbers belong to, or None if they serve every input."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Numbers that are taken from a clean pass over a prompt: as they are, or their mean over the positions."""

    prompt: Prompt
    place: InterventionTarget
    is_mean: bool
    times: float = 1.0
    """The factor of this source; an intervention adds up its sources, each times its factor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what one layer is changed with."""
        return (mean_target(self.place) if self.is_mean else self.place).shape


async def read_all_interventions(
    context: AppContext, items: Sequence[InterventionField] | None, prompts: Sequence[Prompt]
) -> list[tuple[Intervention, ...]]:
    """Return the interventions for each input. Values from other inputs are captured first, by traces through the
    engine.

    One trace takes everything that is needed of equal inputs, for all interventions and all inputs of the request, and
    everything is checked before any trace runs.

    Raises BadRequest for what the model, an input or a point's shape does not allow; ApiError when a trace fails.
    """
    if not items:
        return [()] * len(prompts)
    given = await asyncio.to_thread(_given, context.config, items)
    placed = [[_placed(context, item, i, prompt, given) for i, item in enumerate(items)] for prompt in prompts]
    for places, prompt in zip(placed, prompts, strict=True):
        check_map_changes(context.config, places, _lengths(prompt))
        await asyncio.to_thread(_check_masked, context, items, places, given)
    sources = await _all_sources(context, items, prompts, placed)
    for index, places in enumerate(placed):
        _check_value_bytes(places, given, sources, index)
    captured = await _capture(context, sources)
    return [_for_one(items, places, {**given, **captured}, index) for index, places in enumerate(placed)]


def _given(config: ModelConfig, items: Sequence[InterventionField]) -> dict[_Key, _Values]:
    """Return the values that the items bring with them. Raises BadRequest."""
    return {
        (number, None): [
            0.0
            if item.value is None
            else read_value(
                item.value,
                f"interventions[{number}]",
                may_mask=item.op in ("patch", "add") and is_scores(config, item.point),
            )
        ]
        for number, item in enumerate(items)
        if item.value is not None or item.op == "zero"
    }


def _placed(
    context: AppContext, item: InterventionField, number: int, prompt: Prompt, given: Mapping[_Key, _Values]
) -> InterventionTarget:
    """Return where the item applies in this input, after its operation and its own value are checked."""
    field = f"interventions[{number}]"
    place = target_of(context.config, item.point, item.layer, item.head, item.positions, _lengths(prompt), field)
    check_operation(context.config, item, place, field)
    for value in given.get((number, None), ()):
        if not isinstance(value, float):
            check_fits(value.shape, place, f"{field}.value")
    return place


def _check_masked(
    context: AppContext,
    items: Sequence[InterventionField],
    places: Sequence[InterventionTarget],
    given: Mapping[_Key, _Values],
) -> None:
    """Raise BadRequest for numbers of one input's interventions that are visible to no query."""
    for number, (item, place) in enumerate(zip(items, places, strict=True)):
        for value in given.get((number, None), ()):
            if not isinstance(value, float):
                check_masked(context.config, place, item.op, value, f"interventions[{number}]")


def _lengths(prompt: Prompt) -> Lengths:
    return Lengths(len(prompt.ids), len(prompt.encoder_ids))


def _for_one(
    items: Sequence[InterventionField], places: Sequence[InterventionTarget], known: Mapping[_Key, _Values], index: int
) -> tuple[Intervention, ...]:
    """Return the interventions of the input at this index."""
    changes: list[Intervention] = []
    for number, (item, place) in enumerate(zip(items, places, strict=True)):
        values = known.get((number, None)) or known[number, index]
        each = values if len(values) == len(place.layers) else [values[0]] * len(place.layers)
        changes += (intervention(layer, place, item, value) for layer, value in zip(place.layers, each, strict=True))
    return tuple(changes)


def _check_value_bytes(
    places: Sequence[InterventionTarget],
    given: Mapping[_Key, _Values],
    sources: Mapping[_Key, Sequence[_Source]],
    index: int,
) -> None:
    """Raise PayloadTooLarge when the values of one input's interventions take too many bytes."""
    num_bytes = 0
    for number, place in enumerate(places):
        if (number, None) in given:
            shape = np.shape(given[number, None][0])
        else:
            each = sources.get((number, None)) or sources[number, index]
            shape = max((source.shape for source in each), key=math.prod)
        num_bytes += 4 * math.prod(shape) * len(place.layers)
    if num_bytes > MAX_VALUE_BYTES:
        raise PayloadTooLarge(
            f"interventions: their values take {num_bytes} bytes; at most {MAX_VALUE_BYTES} are accepted. Give fewer "
            "layers, heads or positions.",
            param="interventions",
            code="values_too_large",
        )


# ---- sources


async def _all_sources(
    context: AppContext,
    items: Sequence[InterventionField],
    prompts: Sequence[Prompt],
    placed: Sequence[Sequence[InterventionTarget]],
) -> dict[_Key, list[_Source]]:
    """Return what must be captured: the inputs of `from`, and for a mean without it the inputs themselves. Raises
    BadRequest.
    """
    sources: dict[_Key, list[_Source]] = {}
    for number, item in enumerate(items):
        field = f"interventions[{number}]"
        if item.source is not None:
            targets = [places[number] for places in placed]
            found = await _sources(context, item, item.source, targets, f"{field}.from")
            if item.minus is not None:
                found += await _sources(context, item, item.minus, targets, f"{field}.minus")
            sources[number, None] = [
                replace(source, times=item.times if i == 0 else -item.times) if item.op == "add" else source
                for i, source in enumerate(found)
            ]
        elif item.op == "mean":
            for index, prompt in enumerate(prompts):
                place = target_of(context.config, item.point, item.layer, item.head, "all", _lengths(prompt), field)
                sources[number, index] = [_Source(prompt, place, is_mean=True)]
    elsewhere = [source.prompt for (_, index), each in sources.items() if index is None for source in each]
    num_tokens = sum(prompt.num_tokens for prompt in {_ids(prompt): prompt for prompt in elsewhere}.values())
    if num_tokens > MAX_SOURCE_TOKENS:
        raise wrong(
            f"interventions: the inputs of from have {num_tokens} tokens, equal inputs counted once; at most "
            f"{MAX_SOURCE_TOKENS} are accepted. Give fewer or shorter ones.",
            "sources_too_long",
        )
    return sources


async def _sources(
    context: AppContext,
    item: InterventionField,
    source: InterventionSource,
    targets: Sequence[InterventionTarget],
    field: str,
) -> list[_Source]:
    """Return the passes over the inputs of `from`, checked to fit the item's target in each input of the request."""
    is_mean = item.op == "mean"
    prompts = await _read_source(context, source, field)
    if len(prompts) > 1 and not is_mean:
        raise wrong(
            f"{field}.input: {len(prompts)} inputs; one is accepted with op {item.op!r}, more with 'mean'.", None
        )
    layer = source.layer if source.point is not None or source.layer is not None else item.layer
    own_positions = "all" if is_mean else item.positions
    positions = own_positions if source.positions is None else source.positions
    head = item.head if source.head is None else source.head
    found = []
    for prompt in prompts:
        place = target_of(context.config, source.point or item.point, layer, head, positions, _lengths(prompt), field)
        found.append(_Source(prompt, place, is_mean))
        for target in targets:
            check_fits(found[-1].shape, target, field)
        num_layers = len(targets[0].layers)
        if len(place.layers) not in (1, num_layers):
            raise wrong(
                f"{field}.layer: {len(place.layers)} layers for {num_layers}; one, or as many, are accepted.", None
            )
    return found


async def _read_source(context: AppContext, source: InterventionSource, field: str) -> list[Prompt]:
    fields = source.model_dump(include={"input", "decoder_input", "add_special_tokens"})
    try:
        return await read_inputs(context, InputFields.model_validate(fields))
    except BadRequest as error:
        raise wrong(f"{field}.{error.message}", error.code) from None


def _ids(prompt: Prompt) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a pass depends on."""
    return prompt.ids, prompt.encoder_ids


async def _capture(context: AppContext, sources: Mapping[_Key, Sequence[_Source]]) -> dict[_Key, list[NumpyArray]]:
    """Return the numbers of each key, one array for each layer, by one pass over each distinct prompt.

    A mean is over all positions of all of a key's sources; every position weighs the same. Other numbers are added up,
    each source's times its factor.
    """
    passes: dict[tuple[tuple[int, ...], ...], list[tuple[_Key, _Source]]] = {}
    for key, each in sources.items():
        for source in each:
            passes.setdefault(_ids(source.prompt), []).append((key, source))
    found: dict[_Key, list[NumpyArray]] = {}
    for users in passes.values():
        traced = await _trace(context, [source for _, source in users])
        for (key, source), arrays in zip(users, traced, strict=True):
            sums = await asyncio.to_thread(_sums, arrays) if source.is_mean else _scaled(arrays, source.times)
            found[key] = _added(found[key], sums) if key in found else sums
    for key, each in sources.items():
        if each[0].is_mean:
            num_positions = sum(source.place.shape[source.place.row_axis] for source in each)
            found[key] = [np.asarray(total / num_positions, np.float32) for total in found[key]]
    return found


def _sums(traced: Sequence[NumpyArray]) -> list[NumpyArray]:
    """Return the sums over positions, [1, ...] for each layer, in float64."""
    return [value.sum(axis=0, keepdims=True, dtype=np.float64) for value in traced]


def _added(some: list[NumpyArray], more: list[NumpyArray]) -> list[NumpyArray]:
    """Return the sums, layer by layer; numbers of a single layer are added to those of each."""
    count = max(len(some), len(more))
    return [some[i % len(some)] + more[i % len(more)] for i in range(count)]


def _scaled(traced: list[NumpyArray], times: float) -> list[NumpyArray]:
    """Return the arrays times a number, in float32."""
    return traced if times == 1.0 else [np.multiply(value, times, dtype=np.float32) for value in traced]


async def _trace(context: AppContext, sources: Sequence[_Source]) -> list[list[NumpyArray]]:
    """Return what the sources of one prompt need of it, as it is without interventions: for each one array for each
    layer.
    """
    wanted = [[(_unnamed(capture), source) for capture in source.place.captures(context.config)] for source in sources]
    places = {capture: source.place for captures in wanted for capture, source in captures}
    names = {capture: str(i) for i, capture in enumerate(places)}  # one point may be wanted with different heads
    work = Work(
        TraceTask(points=tuple(replace(capture, name=name) for capture, name in names.items())),
        sources[0].prompt,
        sum(4 * math.prod(place.shape) for place in places.values()),
        is_sent=False,
    )
    (result,) = await run_all(context, [work], time.monotonic())
    return [[as_numpy(result.tensors[names[capture]]) for capture, _ in captures] for captures in wanted]


def _unnamed(capture: PointCapture) -> PointCapture:
    """Return the capture without its name, so that captures of equal numbers are equal."""
    return replace(capture, name="")
