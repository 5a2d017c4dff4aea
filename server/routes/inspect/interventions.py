"""Converts the interventions of a request body to what the engine takes: targets checked, and sources captured by
traces.

A clean pass over each source runs first, as an ordinary trace through the engine; the request itself then carries
numbers only. It has no points (`model.hooks.points`) and no shapes (`server.routes.inspect.intervention_plan`) of its
own.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence

import numpy as np

from model.config import ModelConfig
from server.engine.request import Intervention
from server.http.errors import PayloadTooLarge
from server.http.tensor_formats import NumpyArray
from server.http.turns import in_turns
from server.routes.context import AppContext
from server.routes.inspect.intervention_plan import (
    InterventionTarget,
    Place,
    check_map_changes,
    check_operation,
    intervention,
    is_scores,
    place_of,
)
from server.routes.inspect.intervention_sources import (
    IN_TURN,
    Key,
    Source,
    all_sources,
    capture_sources,
    check_number,
    first_equal,
    ids_of,
    lengths_of,
)
from server.routes.inspect.intervention_values import check_fits, check_masked, read_value
from server.routes.inspect.trace_plan import Lengths
from server.routes.prompts import Prompt
from server.schemas.inspect.interventions import InterventionField

MAX_VALUE_BYTES = 64 << 20
"""Most bytes of all values of one input's interventions together: they travel to the worker with the request."""
_Values = Sequence[float | NumpyArray]
"""The values of an intervention's layers, or one for all of them."""


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
    config = context.config
    given = await asyncio.to_thread(_given, config, items)
    places = []
    async for number, item in in_turns(enumerate(items), 8):
        field = f"interventions[{number}]"
        places.append(place_of(config, item.point, item.layer, item.head, field))
        check_operation(config, item, places[-1], field)
    check_number("inputs", len(prompts) * sum(len(place.layers) for place in places))
    planned: dict[Lengths, Sequence[InterventionTarget]] = {}
    async for lengths in in_turns(dict.fromkeys(map(lengths_of, prompts)), 1):
        planned[lengths] = await asyncio.to_thread(_targets, context, items, places, lengths, given)
    sources = await all_sources(context, items, prompts, places, planned)
    # Of inputs that are alike, one has the shared changes: of equal length, or equal if their own numbers are taken.
    is_own = any(index is not None for _, index in sources)
    alike = first_equal([ids_of(prompt) if is_own else lengths_of(prompt) for prompt in prompts])
    first = dict.fromkeys(alike)
    async for index in in_turns(first, IN_TURN):
        _check_value_bytes(planned[lengths_of(prompts[index])], given, sources, index)
    known = {**given, **await capture_sources(context, sources)}
    found: dict[int, tuple[Intervention, ...]] = {}
    async for index in in_turns(first, IN_TURN):
        found[index] = _for_one(items, planned[lengths_of(prompts[index])], known, index)
    return [found[index] for index in alike]


def _given(config: ModelConfig, items: Sequence[InterventionField]) -> dict[Key, _Values]:
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


def _targets(
    context: AppContext,
    items: Sequence[InterventionField],
    places: Sequence[Place],
    lengths: Lengths,
    given: Mapping[Key, _Values],
) -> list[InterventionTarget]:
    """Return where the items apply in inputs of these lengths, after their values are checked. Raises BadRequest"""
    targets = [place.at(context.config, item.positions, lengths) for item, place in zip(items, places, strict=True)]
    arrays = [
        (item.op, target, value)
        for number, (item, target) in enumerate(zip(items, targets, strict=True))
        for value in given.get((number, None), ())
        if not isinstance(value, float)
    ]
    for _, target, value in arrays:
        check_fits(value.shape, target, f"{target.field}.value")
    check_map_changes(context.config, targets, lengths)
    for op, target, value in arrays:
        check_masked(context.config, target, op, value, target.field)
    return targets


def _for_one(
    items: Sequence[InterventionField], places: Sequence[InterventionTarget], known: Mapping[Key, _Values], index: int
) -> tuple[Intervention, ...]:
    changes: list[Intervention] = []
    for number, (item, place) in enumerate(zip(items, places, strict=True)):
        values = known.get((number, None)) or known[number, index]
        each = values if len(values) == len(place.layers) else [values[0]] * len(place.layers)
        changes += (intervention(layer, place, item, value) for layer, value in zip(place.layers, each, strict=True))
    return tuple(changes)


def _check_value_bytes(
    places: Sequence[InterventionTarget],
    given: Mapping[Key, _Values],
    sources: Mapping[Key, Sequence[Source]],
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
