"""Captures the numbers that interventions take from other inputs, or from the mean of their own: by clean passes, as
ordinary traces through the engine.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from server.engine.request import TraceTask
from server.generation.field_names import WITHOUT_TRUNCATE
from server.http.errors import BadRequest
from server.http.tensor_formats import NumpyArray, as_numpy
from server.http.turns import in_turns
from server.routes.context import AppContext
from server.routes.inputs import read_inputs
from server.routes.inspect.intervention_plan import (
    InterventionTarget,
    Place,
    place_of,
    wrong,
)
from server.routes.inspect.intervention_values import check_fits
from server.routes.inspect.trace_plan import Lengths
from server.routes.prompts import Prompt
from server.routes.tasks import Work, run_all
from server.schemas.inspect.inputs import InputFields
from server.schemas.inspect.interventions import InterventionField, InterventionSource

MAX_SOURCE_TOKENS = 1 << 18
"""Most tokens of all inputs that one request takes numbers from, equal ones counted once: each is a pass of its own."""

MAX_CHANGES = 1 << 17
"""Most changes of single layers in all inputs of one request together, and most layers of all inputs that numbers are
taken from: each is an object of its own.
"""
IN_TURN = 64
"""Inputs that are planned before the event loop may do something else."""

Key = tuple[int, int | None]
"""The index of an intervention, and of the first of the equal inputs that its numbers belong to, or None if they serve
every input.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Numbers that are taken from a clean pass over a prompt: as they are, or their mean over the positions."""

    prompt: Prompt
    place: InterventionTarget
    is_mean: bool
    count: int = 1
    """Number of equal inputs, each of which counts in a mean."""
    times: float = 1.0
    """The factor of this source; an intervention adds up its sources, each times its factor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what one layer is changed with: one row of means, or all rows."""
        if not self.is_mean:
            return self.place.shape
        axis = self.place.row_axis
        return (*self.place.shape[:axis], 1, *self.place.shape[axis + 1 :])


def check_number(of: str, number: int) -> None:
    """Raise BadRequest for more changes of single layers, over all inputs, than a request may have."""
    if number > MAX_CHANGES:
        raise wrong(
            f"interventions: {of} times interventions times layers is {number}; at most {MAX_CHANGES} is accepted. "
            f"Give fewer {of}, layers or interventions.",
            "too_many_changes",
        )


def lengths_of(prompt: Prompt) -> Lengths:
    return Lengths(len(prompt.ids), len(prompt.encoder_ids))


def first_equal(values: Sequence[Hashable]) -> list[int]:
    """Return for each value the index of the first one that is equal to it."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(value, index) for index, value in enumerate(values)]


async def all_sources(
    context: AppContext,
    items: Sequence[InterventionField],
    prompts: Sequence[Prompt],
    places: Sequence[Place],
    planned: Mapping[Lengths, Sequence[InterventionTarget]],
) -> dict[Key, list[Source]]:
    """Return what must be captured: the inputs of `from`, and for a mean without it the inputs themselves. Raises
    BadRequest.
    """
    sources: dict[Key, list[Source]] = {}
    async for number, (item, place) in in_turns(enumerate(zip(items, places, strict=True)), 1):
        if item.source is not None:
            targets = list({each[number].shape: each[number] for each in planned.values()}.values())
            found = await _sources(context, item, item.source, targets, f"{place.field}.from")
            if item.minus is not None:
                found += await _sources(context, item, item.minus, targets, f"{place.field}.minus")
            sources[number, None] = [
                replace(source, times=item.times if i == 0 else -item.times) if item.op == "add" else source
                for i, source in enumerate(found)
            ]
        elif item.op == "mean":
            async for index in in_turns(dict.fromkeys(first_equal(list(map(ids_of, prompts)))), IN_TURN):
                target = place.at(context.config, "all", lengths_of(prompts[index]))
                sources[number, index] = [Source(prompts[index], target, is_mean=True)]
        check_number("inputs of from", sum(len(e.place.layers) for each in sources.values() for e in each))
    elsewhere = [source.prompt for (_, index), each in sources.items() if index is None for source in each]
    num_tokens = sum(prompt.num_tokens for prompt in {ids_of(prompt): prompt for prompt in elsewhere}.values())
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
) -> list[Source]:
    """Return the passes over the inputs of `from`, equal inputs once, checked to fit the item's targets in the inputs
    of the request; `targets` has each of their shapes.
    """
    is_mean = item.op == "mean"
    prompts = await _read_source(context, source, field)
    if len(prompts) > 1 and not is_mean:
        raise wrong(
            f"{field}.input: {len(prompts)} inputs; one is accepted with op {item.op!r}, more with 'mean'.", None
        )
    layer = source.layer if source.point is not None or source.layer is not None else item.layer
    own_positions = "all" if is_mean else item.positions
    positions = own_positions if source.positions is None else source.positions
    place = place_of(
        context.config, source.point or item.point, layer, item.head if source.head is None else source.head, field
    )
    num_layers = len(targets[0].layers)
    if len(place.layers) not in (1, num_layers):
        raise wrong(f"{field}.layer: {len(place.layers)} layers for {num_layers}; 1 or as many are accepted.", None)
    counts = Counter(map(ids_of, prompts))
    found = []
    async for prompt in in_turns({ids_of(prompt): prompt for prompt in prompts}.values(), IN_TURN):
        target = place.at(context.config, positions, lengths_of(prompt))
        found.append(Source(prompt, target, is_mean, counts[ids_of(prompt)]))
    for shape in {each.shape for each in found}:
        for target in targets:
            check_fits(shape, target, field)
    return found


async def _read_source(context: AppContext, source: InterventionSource, field: str) -> list[Prompt]:
    fields = source.model_dump(include={"input", "decoder_input", "add_special_tokens"})
    try:
        with WITHOUT_TRUNCATE.in_errors():
            return await read_inputs(context, InputFields.model_validate(fields))
    except BadRequest as error:
        raise wrong(f"{field}.{error.message}", error.code) from None


def ids_of(prompt: Prompt) -> tuple[bytes, bytes]:
    """Return the ids that a pass depends on."""
    return prompt.ids.tobytes(), prompt.encoder_ids.tobytes()


async def capture_sources(context: AppContext, sources: Mapping[Key, Sequence[Source]]) -> dict[Key, list[NumpyArray]]:
    """Return the numbers of each key, one array for each layer, by one pass over each distinct prompt.

    A mean is over all positions of all of a key's sources; every position weighs the same. Other numbers are added up,
    each source's times its factor.
    """
    passes: dict[tuple[bytes, bytes], list[tuple[Key, Source]]] = {}
    for key, each in sources.items():
        for source in each:
            passes.setdefault(ids_of(source.prompt), []).append((key, source))
    found: dict[Key, list[NumpyArray]] = {}
    for users in passes.values():
        traced = await _trace(context, [source for _, source in users])
        for (key, source), arrays in zip(users, traced, strict=True):
            if source.is_mean:
                sums = await asyncio.to_thread(_sums, arrays, source.count)
            elif source.times == 1.0:
                sums = arrays
            else:
                sums = [np.multiply(value, source.times, dtype=np.float32) for value in arrays]
            found[key] = _added(found[key], sums) if key in found else sums
    for key, each in sources.items():
        if each[0].is_mean:
            num_positions = sum(source.count * source.place.shape[source.place.row_axis] for source in each)
            found[key] = [np.asarray(total / num_positions, np.float32) for total in found[key]]
    return found


def _sums(traced: Sequence[NumpyArray], count: int) -> list[NumpyArray]:
    """Return `count` times the sums over positions, [1, ...] for each layer, in float64."""
    return [count * value.sum(axis=0, keepdims=True, dtype=np.float64) for value in traced]


def _added(some: list[NumpyArray], more: list[NumpyArray]) -> list[NumpyArray]:
    """Return the sums, layer by layer; numbers of a single layer are added to those of each."""
    count = max(len(some), len(more))
    return [some[i % len(some)] + more[i % len(more)] for i in range(count)]


async def _trace(context: AppContext, sources: Sequence[Source]) -> list[list[NumpyArray]]:
    """Return what the sources of one prompt need of it, as it is without interventions: for each one array for each
    layer.
    """
    wanted = [source.place.captures() for source in sources]
    places = {capture: source.place for captures, source in zip(wanted, sources, strict=True) for capture in captures}
    names = {capture: str(i) for i, capture in enumerate(places)}  # one point may be wanted with different heads
    work = Work(
        TraceTask(points=tuple(structs.replace(capture, name=name) for capture, name in names.items())),
        sources[0].prompt,
        sum(4 * math.prod(place.shape) for place in places.values()),
        is_sent=False,
    )
    (result,) = await run_all(context, [work], time.monotonic())
    return [[as_numpy(result.tensors[names[capture]]) for capture in captures] for captures in wanted]
