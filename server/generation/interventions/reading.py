"""Interventions of a request body as the engine takes them: targets checked, and values from other inputs captured.

The values come from a clean pass over each source, an ordinary trace through the engine that runs first. The request
itself then carries only numbers.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from lightwell.model.config import ModelConfig
from lightwell.server.engine.messages.request import Intervention, TraceTask
from lightwell.server.generation.interventions.plan import (
    InterventionTarget,
    Place,
    check_fits,
    check_map_changes,
    check_masked,
    check_operation,
    intervention,
    is_scores,
    place_of,
    read_value,
    wrong,
)
from lightwell.server.generation.interventions.trace_plan import Lengths
from lightwell.server.generation.prompts.field_names import WITHOUT_TRUNCATE
from lightwell.server.generation.prompts.inputs import read_inputs
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import Work, run_all
from lightwell.server.http.errors import BadRequest, PayloadTooLarge
from lightwell.server.http.tensor_formats import NumpyArray, as_numpy
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.inspect.inputs import InputFields
from lightwell.server.schemas.inspect.interventions import InterventionField, InterventionSource

MAX_VALUE_BYTES = 64 << 20
"""Most bytes of all values of one input's interventions, which are sent to the worker with the request."""
_Value = float | NumpyArray
MAX_SOURCE_TOKENS = 1 << 18
"""Most tokens of all source inputs of one request, equal inputs counted once: each is a pass of its own."""
MAX_CHANGES = 1 << 17
"""Most changes of single layers in all inputs of one request, and most layers of all its sources: each is an object."""
IN_TURN = 64
"""Inputs that are planned before the event loop may run again."""
Key = tuple[int, int | None]
"""The index of an intervention, and of the first of the equal inputs of its values, or None for values of all inputs.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Numbers of a clean pass over a prompt, or their mean over the positions."""

    prompt: Prompt
    place: InterventionTarget
    is_mean: bool
    count: int = 1
    """Number of equal inputs, which all count in a mean."""
    times: float = 1.0
    """The factor of this source in the sum of an intervention's sources."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the value for one layer: one row of means, or all rows."""
        if not self.is_mean:
            return self.place.shape
        axis = self.place.row_axis
        return (*self.place.shape[:axis], 1, *self.place.shape[axis + 1 :])


async def read_all_interventions(
    model: ServedModel, items: Sequence[InterventionField] | None, prompts: Sequence[Prompt]
) -> list[tuple[Intervention, ...]]:
    """Return the interventions for each input, after the capture of values from other inputs.

    Equal source inputs share one trace, for all interventions and all inputs of the request. Everything is checked
    before any trace runs.

    Raises BadRequest for interventions that do not fit the model or an input; ApiError if a trace fails.
    """
    if not items:
        return [()] * len(prompts)
    config = model.config
    given = await asyncio.to_thread(_given, config, items)
    places = []
    async for number, item in in_turns(enumerate(items), 8):
        field = f"interventions[{number}]"
        places.append(place_of(config, item.point, item.layer, item.head, field))
        check_operation(config, item, places[-1], field)
    _check_number("inputs", len(prompts) * sum(len(place.layers) for place in places))
    planned: dict[Lengths, Sequence[InterventionTarget]] = {}
    async for lengths in in_turns(dict.fromkeys(map(_lengths_of, prompts)), 1):
        planned[lengths] = await asyncio.to_thread(_targets, model, items, places, lengths, given)
    sources = await _all_sources(model, items, prompts, places, planned)
    # Inputs of equal lengths share their changes; with values of their own, only equal inputs do.
    is_own = any(index is not None for _, index in sources)
    alike = _first_equal([_ids_of(prompt) if is_own else _lengths_of(prompt) for prompt in prompts])
    first = dict.fromkeys(alike)
    async for index in in_turns(first, IN_TURN):
        _check_value_bytes(planned[_lengths_of(prompts[index])], given, sources, index)
    captured = await _capture_sources(model, sources)
    found: dict[int, tuple[Intervention, ...]] = {}
    async for index in in_turns(first, IN_TURN):
        changes: list[Intervention] = []
        targets = planned[_lengths_of(prompts[index])]
        for number, (item, target, value) in enumerate(zip(items, targets, given, strict=True)):
            values = [value] if value is not None else captured.get((number, None)) or captured[number, index]
            each = values if len(values) == len(target.layers) else [values[0]] * len(target.layers)
            changes += (intervention(*of_layer, target, item) for of_layer in zip(target.layers, each, strict=True))
        found[index] = tuple(changes)
    return [found[index] for index in alike]


def _given(config: ModelConfig, items: Sequence[InterventionField]) -> list[_Value | None]:
    """Return the value in each item, or None for values from inputs. Raises BadRequest."""
    values: list[_Value | None] = []
    for number, item in enumerate(items):
        if item.value is None:
            values.append(0.0 if item.op == "zero" else None)
        else:
            may_mask = item.op in ("patch", "add") and is_scores(config, item.point)
            values.append(read_value(item.value, f"interventions[{number}]", may_mask=may_mask))
    return values


def _targets(
    model: ServedModel,
    items: Sequence[InterventionField],
    places: Sequence[Place],
    lengths: Lengths,
    given: Sequence[_Value | None],
) -> list[InterventionTarget]:
    """Return the targets of the items in inputs of these lengths, with their values checked. Raises BadRequest."""
    targets = [place.at(model.config, item.positions, lengths) for item, place in zip(items, places, strict=True)]
    arrays = [
        (item.op, target, value)
        for item, target, value in zip(items, targets, given, strict=True)
        if isinstance(value, np.ndarray)
    ]
    for _, target, value in arrays:
        check_fits(value.shape, target, f"{target.field}.value")
    check_map_changes(model.config, targets, lengths)
    for op, target, value in arrays:
        check_masked(model.config, target, op, value, target.field)
    return targets


def _check_value_bytes(
    targets: Sequence[InterventionTarget],
    given: Sequence[_Value | None],
    sources: Mapping[Key, Sequence[Source]],
    index: int,
) -> None:
    """Raise PayloadTooLarge when the values of one input's interventions take too many bytes."""
    num_bytes = 0
    for number, (target, value) in enumerate(zip(targets, given, strict=True)):
        if value is not None:
            shape = np.shape(value)
        else:
            each = sources.get((number, None)) or sources[number, index]
            shape = max((source.shape for source in each), key=math.prod)
        num_bytes += 4 * math.prod(shape) * len(target.layers)
    if num_bytes > MAX_VALUE_BYTES:
        raise PayloadTooLarge(
            f"interventions: their values take {num_bytes} bytes; at most {MAX_VALUE_BYTES} are accepted. Give fewer "
            "layers, heads or positions.",
            param="interventions",
            code="values_too_large",
        )


# ---- sources


def _check_number(of: str, number: int) -> None:
    """Raise BadRequest for more than MAX_CHANGES changes of single layers."""
    if number > MAX_CHANGES:
        raise wrong(
            f"interventions: {of} times interventions times layers is {number}; at most {MAX_CHANGES} is accepted. "
            f"Give fewer {of}, layers or interventions.",
            "too_many_changes",
        )


def _lengths_of(prompt: Prompt) -> Lengths:
    return Lengths(len(prompt.ids), len(prompt.encoder_ids))


def _first_equal(values: Sequence[Hashable]) -> list[int]:
    """Return for each value the index of the first one that is equal to it."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(value, index) for index, value in enumerate(values)]


async def _all_sources(
    model: ServedModel,
    items: Sequence[InterventionField],
    prompts: Sequence[Prompt],
    places: Sequence[Place],
    planned: Mapping[Lengths, Sequence[InterventionTarget]],
) -> dict[Key, list[Source]]:
    """Return the sources: the inputs of `from`, and for a mean without it the inputs themselves. Raises BadRequest."""
    sources: dict[Key, list[Source]] = {}
    async for number, (item, place) in in_turns(enumerate(zip(items, places, strict=True)), 1):
        if item.source is not None:
            targets = list({each[number].shape: each[number] for each in planned.values()}.values())
            found = await _sources(model, item, item.source, targets, f"{place.field}.from")
            if item.minus is not None:
                found += await _sources(model, item, item.minus, targets, f"{place.field}.minus")
            sources[number, None] = [
                replace(source, times=item.times if i == 0 else -item.times) if item.op == "add" else source
                for i, source in enumerate(found)
            ]
        elif item.op == "mean":
            async for index in in_turns(dict.fromkeys(_first_equal(list(map(_ids_of, prompts)))), IN_TURN):
                target = place.at(model.config, "all", _lengths_of(prompts[index]))
                sources[number, index] = [Source(prompts[index], target, is_mean=True)]
        _check_number("inputs of from", sum(len(e.place.layers) for each in sources.values() for e in each))
    elsewhere = [source.prompt for (_, index), each in sources.items() if index is None for source in each]
    num_tokens = sum(prompt.num_tokens for prompt in {_ids_of(prompt): prompt for prompt in elsewhere}.values())
    if num_tokens > MAX_SOURCE_TOKENS:
        raise wrong(
            f"interventions: the inputs of from have {num_tokens} tokens, where equal inputs count once; at most "
            f"{MAX_SOURCE_TOKENS} are accepted. Give fewer or shorter ones.",
            "sources_too_long",
        )
    return sources


async def _sources(
    model: ServedModel,
    item: InterventionField,
    source: InterventionSource,
    targets: Sequence[InterventionTarget],
    field: str,
) -> list[Source]:
    """Return the sources of `from`, one for equal inputs, after a check that they fit each of the item's targets."""
    is_mean = item.op == "mean"
    fields = source.model_dump(include={"input", "decoder_input", "add_special_tokens"})
    try:
        with WITHOUT_TRUNCATE.in_errors():
            prompts = await read_inputs(model, InputFields.model_validate(fields))
    except BadRequest as error:
        raise wrong(f"{field}.{error.message}", error.code) from None
    if len(prompts) > 1 and not is_mean:
        raise wrong(
            f"{field}.input: {len(prompts)} inputs; one is accepted with op {item.op!r}, more with 'mean'.", None
        )
    layer = source.layer if source.point is not None or source.layer is not None else item.layer
    own_positions = "all" if is_mean else item.positions
    positions = own_positions if source.positions is None else source.positions
    place = place_of(
        model.config, source.point or item.point, layer, item.head if source.head is None else source.head, field
    )
    num_layers = len(targets[0].layers)
    if len(place.layers) not in (1, num_layers):
        raise wrong(f"{field}.layer: {len(place.layers)} layers for {num_layers}; 1 or as many are accepted.", None)
    counts = Counter(map(_ids_of, prompts))
    found = []
    async for prompt in in_turns({_ids_of(prompt): prompt for prompt in prompts}.values(), IN_TURN):
        target = place.at(model.config, positions, _lengths_of(prompt))
        found.append(Source(prompt, target, is_mean, counts[_ids_of(prompt)]))
    for shape in {each.shape for each in found}:
        for target in targets:
            check_fits(shape, target, field)
    return found


def _ids_of(prompt: Prompt) -> tuple[bytes, bytes]:
    """Return the ids of both stacks, which determine a pass."""
    return prompt.ids.tobytes(), prompt.encoder_ids.tobytes()


async def _capture_sources(model: ServedModel, sources: Mapping[Key, Sequence[Source]]) -> dict[Key, list[NumpyArray]]:
    """Return the values of each key, one array for each layer, by one pass over each distinct prompt.

    A mean is over all positions of all of a key's sources, with equal weights. Other values are the sum of the sources,
    each times its factor.
    """
    passes: dict[tuple[bytes, bytes], list[tuple[Key, Source]]] = {}
    for key, each in sources.items():
        for source in each:
            passes.setdefault(_ids_of(source.prompt), []).append((key, source))
    found: dict[Key, list[NumpyArray]] = {}
    for users in passes.values():
        traced = await _trace(model, [source for _, source in users])
        for (key, source), arrays in zip(users, traced, strict=True):
            if source.is_mean:
                sums = await asyncio.to_thread(_sums, arrays, source.count)
            elif source.times == 1.0:
                sums = arrays
            else:
                sums = [np.multiply(value, source.times, dtype=np.float32) for value in arrays]
            if key in found:  # numbers of a single layer are added to every layer
                count = max(len(found[key]), len(sums))
                sums = [found[key][i % len(found[key])] + sums[i % len(sums)] for i in range(count)]
            found[key] = sums
    for key, each in sources.items():
        if each[0].is_mean:
            num_positions = sum(source.count * source.place.shape[source.place.row_axis] for source in each)
            found[key] = [np.asarray(total / num_positions, np.float32) for total in found[key]]
    return found


def _sums(traced: Sequence[NumpyArray], count: int) -> list[NumpyArray]:
    """Return `count` times the sums over positions, [1, ...] for each layer, in float64."""
    return [count * value.sum(axis=0, keepdims=True, dtype=np.float64) for value in traced]


async def _trace(model: ServedModel, sources: Sequence[Source]) -> list[list[NumpyArray]]:
    """Return the arrays of the sources of one prompt, one for each layer, from a pass without interventions."""
    wanted = [source.place.captures() for source in sources]
    places = {capture: source.place for captures, source in zip(wanted, sources, strict=True) for capture in captures}
    names = {capture: str(i) for i, capture in enumerate(places)}  # one point may have several selections of heads
    work = Work(
        TraceTask(points=tuple(structs.replace(capture, name=name) for capture, name in names.items())),
        sources[0].prompt,
        sum(4 * math.prod(place.shape) for place in places.values()),
        is_sent=False,
    )
    (result,) = await run_all(model, [work])
    return [[as_numpy(result.tensors[names[capture]]) for capture in captures] for captures in wanted]
