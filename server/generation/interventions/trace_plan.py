"""Captures of named points in each input, and the size of the answer.

`plan_attention` of selectors.py does the same for /v1/attention.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import (
    UnknownPoint,
    full_name,
    read_name,
    short_name,
    sizes,
    stack_config,
    why_absent,
)
from lightwell.model.hooks.points import Point, Stack, is_cross, reads_encoder
from lightwell.server.engine.messages.request import PointCapture
from lightwell.server.generation.interventions.selectors import number_bytes, resolve, span
from lightwell.server.http.errors import BadRequest, answer_too_large, shown
from lightwell.server.http.tensor_formats import Wire
from lightwell.server.schemas.inspect.trace import TraceRequest

_Counts = npt.NDArray[np.int64]
_Size = TypeVar("_Size", int, _Counts)


class Lengths(NamedTuple):
    """The token counts of one input: of the only stack or of the decoder, and of an encoder before it."""

    own: int
    encoder: int = 0


def lengths_at(
    config: ModelConfig, stack: Stack, point: Point, length: _Size, encoder_length: _Size
) -> tuple[_Size, _Size, _Size]:
    """Return the number of positions of a point's own sequence, of its rows and of their keys, in inputs of these
    lengths (of the only stack or the decoder, and of an encoder).
    """
    own = encoder_length if stack == "encoder" and config.kind == "encoder-decoder" else length
    return own, encoder_length if reads_encoder(point) else own, encoder_length if is_cross(point) else own


@dataclass(frozen=True, slots=True)
class ChosenPoint:
    """One point of one layer, with its heads."""

    name: str
    stack: Stack
    layer: int | None
    point: Point
    heads: tuple[int, ...] | None
    """The heads, or None for all or for a point without heads."""

    def num_heads(self, config: ModelConfig) -> int:
        """Return the length of the head axis of a point that has one."""
        own = stack_config(config, self.stack).at(self.layer or 0)
        return own.num_heads if "head" in self.point.axes else own.num_kv_heads

    def capture(self, **options: Any) -> PointCapture:
        """Return the engine's capture; `options` are the other fields of `PointCapture`."""
        point = self.point.name
        return PointCapture(
            name=self.name, stack=self.stack, layer=self.layer, point=point, heads=self.heads, **options
        )


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One point in the answer of one input."""

    capture: PointCapture
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    described: dict[str, Any]
    """Heads and positions, as the answer names them."""

    @property
    def num_values(self) -> int:
        """Return the number of values in the answer."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the bytes that the engine keeps and sends."""
        return round(self.num_values * number_bytes(self.capture.dtype, "binary"))


def choose_points(request: TraceRequest, config: ModelConfig) -> list[ChosenPoint]:
    """Return the points of a request, one for each layer of a short name, in order. Raises BadRequest, also for a
    selector that applies to no point.
    """
    chosen = [one for name in request.points for one in _layers_of(request, config, name)]
    names = [one.name for one in chosen]
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise BadRequest(f"points: {twice!r} is given twice; once is accepted.", param="points")
    written = [read_name(config, name) for name in request.points]
    takes = {
        "layers": any(one.layer is None and one.point.in_block for one in written),
        "heads": any(head_axis(one.point) for one in written),
        "key_positions": any("key" in one.point.axes for one in written),
    }
    for field, is_taken in takes.items():
        value = getattr(request, field)
        if value != "all" and not is_taken:
            message = f"{field}: no point of this request has such an axis; leave out {shown(value)}."
            raise BadRequest(message, param=field)
    return chosen


def head_axis(point: Point) -> str | None:
    """Return the name of the point's head axis, or None if it has none."""
    return next((axis for axis in point.axes if axis in ("head", "kv_head")), None)


def choose_heads(selector: Any, config: ModelConfig, point: Point, field: str) -> tuple[int, ...] | None:
    """Return the heads of a point of this stack, or None for all. Raises BadRequest."""
    axis = head_axis(point)
    if axis is None or selector == "all":
        return None
    is_shared = axis == "kv_head" and config.num_kv_heads != config.num_heads
    count = config.num_heads if axis == "head" else config.num_kv_heads
    return resolve(selector, count, field, "key head" if is_shared else "head")


def _layers_of(request: TraceRequest, config: ModelConfig, name: str) -> Iterator[ChosenPoint]:
    """Yield the point of a name in each layer of the name or else of the request."""
    try:
        written = read_name(config, name)
    except UnknownPoint as error:
        raise BadRequest(f"points: {error}.", param="points", code="unknown_point") from None
    stack, point = written.stack, written.point
    own = stack_config(config, stack)
    selector, field = (request.layers, "layers") if written.layer is None else (written.layer, "points")
    for layer in resolve(selector, own.num_layers, field, "layer") if point.in_block else (None,):
        absent = why_absent(config, stack, point, layer)
        if absent is None:
            heads = choose_heads(request.heads, own.at(layer or 0), point, "heads")
            yield ChosenPoint(full_name(config, stack, point.name, layer), stack, layer, point, heads)
        elif selector != "all":
            reported = short_name(config, stack, point.name)
            raise BadRequest(f"points: layer {layer} has no {reported}: {absent}.", param="points")


def plan_inputs(
    request: TraceRequest, chosen: Sequence[ChosenPoint], config: ModelConfig, lengths: Sequence[Lengths]
) -> list[list[PlannedPoint]]:
    """Return the plan for each input; inputs of the same lengths share theirs. Raises BadRequest.

    It takes about 10 microseconds for each point of each different length, so it should run in a thread.
    """
    plans = {each: [_plan(request, one, config, *each) for one in chosen] for each in dict.fromkeys(lengths)}
    return [plans[each] for each in lengths]


def _plan(
    request: TraceRequest, one: ChosenPoint, config: ModelConfig, length: int, encoder_length: int
) -> PlannedPoint:
    own_length, num_rows, num_keys = lengths_at(config, one.stack, one.point, length, encoder_length)
    positions = _positions(request.positions, num_rows, "positions")
    keys = _positions(request.key_positions, num_keys, "key_positions") if "key" in one.point.axes else None
    kept = {"position": positions, "query": positions, "key": keys, "head": one.heads, "kv_head": one.heads}
    full = sizes(config, one.stack, one.point, own_length, encoder_length, one.layer)
    lengths = [
        size if (chosen := kept.get(axis)) is None else len(chosen)
        for axis, size in zip(one.point.axes, full, strict=True)
    ]
    capture = one.capture(positions=positions, keys=keys, dtype=request.dtype)
    described: dict[str, Any] = {"layer": one.layer}
    if (axis := head_axis(one.point)) is not None:
        described["heads"] = _named(one.heads, full[one.point.axes.index(axis)])
    described["positions"] = _named(positions, num_rows)
    if "key" in one.point.axes:
        described["key_positions"] = _named(keys, num_keys)
    return PlannedPoint(capture, one.point.axes, tuple(lengths), described)


def _named(indices: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    return _first(count) if indices is None else indices


@lru_cache(maxsize=256)
def _first(count: int) -> tuple[int, ...]:
    """Return 0 to count - 1: one object for all points of one length."""
    return tuple(range(count))


def _positions(selector: Any, count: int, field: str) -> tuple[int, ...] | None:
    return None if selector == "all" else resolve(selector, count, field, "position")


def check_trace_size(
    request: TraceRequest,
    chosen: Sequence[ChosenPoint],
    config: ModelConfig,
    lengths: Sequence[Lengths],
    wire: Wire,
    limit: int,
    token_bytes: int,
) -> None:
    """Raise PayloadTooLarge, with selectors that fit, when the answer for inputs of these lengths is over `limit`.

    `token_bytes` are the bytes of the inputs' tokens, which no selector reduces.
    """
    size = _estimate(request, chosen, config, lengths, wire)
    room = limit - token_bytes
    if size <= room:
        return

    def fits(field: str, value: Any) -> bool:
        changed = request.model_copy(update={field: value})
        try:
            return _estimate(changed, choose_points(changed, config), config, lengths, wire) <= room
        except BadRequest:  # none of the points takes this selector
            return False

    ways = []
    if _estimate(request, chosen, config, lengths, "binary") <= room:
        ways.append("Accept: application/vnd.safetensors")
    for field, values in _smaller(request, chosen, config, lengths):
        value = next((value for value in values if fits(field, value)), None)
        if value is not None:
            ways.append(f'"{field}": {json.dumps(value) if isinstance(value, str) else shown(value)}')
    advice = f"Any of these fits: {'; '.join(ways)}." if ways else "Send fewer points, or fewer or shorter inputs."
    raise answer_too_large(size + token_bytes, limit, advice)


def _estimate(
    request: TraceRequest, chosen: Sequence[ChosenPoint], config: ModelConfig, lengths: Sequence[Lengths], wire: Wire
) -> int:
    """Return the bytes of the numbers, without the plans, which take seconds for many points and inputs."""
    values = 0
    # Points of different layers count as equal if all layers are equal.
    alike = Counter(
        replace(one, name="", layer=None if stack_config(config, one.stack).layers_are_alike else one.layer)
        for one in chosen
    )
    for one, number in alike.items():
        _, rows, keys = lengths_at(config, one.stack, one.point, *np.array(lengths, np.int64).T)
        counts = _count(request.positions, rows)
        if "key" in one.point.axes:
            counts = counts * _count(request.key_positions, keys)
        one_position = math.prod(sizes(config, one.stack, one.point, 1, 1, one.layer))
        if one.heads is not None:
            one_position = one_position // one.num_heads(config) * len(one.heads)
        values += number * one_position * int(counts.sum())
    return math.ceil(values * number_bytes(request.dtype, wire))


def _count(selector: Any, lengths: _Counts) -> _Counts:
    """Return the number of positions that a selector takes in inputs of these lengths."""
    if selector == "all":
        return lengths
    if isinstance(selector, str):
        return np.array([len(span(selector, length)) for length in lengths.tolist()])
    return np.full_like(lengths, 1 if isinstance(selector, int) else len(selector))


def _smaller(
    request: TraceRequest, chosen: Sequence[ChosenPoint], config: ModelConfig, lengths: Sequence[Lengths]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the fields that reduce the answer, each with values of increasing effect."""
    yield "dtype", ["float16"]
    layers = dict.fromkeys(one.layer for one in chosen if one.layer is not None)
    yield "layers", _halves(list(layers))
    heads = [list(_named(one.heads, one.num_heads(config))) for one in chosen if head_axis(one.point) is not None]
    yield "heads", _halves(min(heads, key=len, default=[]))
    if isinstance(request.positions, str):  # the last ones, in inputs of any length
        counts = np.array(lengths, np.int64).T
        shortest = min(int(lengths_at(config, one.stack, one.point, *counts)[1].min()) for one in chosen)
        positions = list(range(-shortest, 0))
    else:
        positions = [request.positions] if isinstance(request.positions, int) else request.positions
    yield "positions", [part[::-1] for part in _halves(positions[::-1])]


def _halves(items: list[int]) -> list[list[int]]:
    """Return shorter and shorter beginnings of the list."""
    parts = []
    while len(items) > 1:
        items = items[: len(items) // 2]
        parts.append(items)
    return parts
