"""Targets and values of interventions: names, indices, shapes and numbers, checked against model and input.

`server.generation.interventions.reading` captures the values from other inputs.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import (
    UnknownPoint,
    near_names,
    points_of,
    read_name,
    short_name,
    sizes,
    stack_config,
    stacks,
    why_absent,
)
from lightwell.model.hooks.points import Point, Stack, is_cross
from lightwell.server.engine.messages.request import Intervention, Op, PointCapture
from lightwell.server.generation.interventions.selectors import resolve
from lightwell.server.generation.interventions.trace_plan import Lengths, choose_heads, head_axis, lengths_at
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.http.tensor_formats import NumpyArray, for_engine
from lightwell.server.schemas.base import Selector
from lightwell.server.schemas.inspect.interventions import EncodedArray, InterventionField

_OPS: dict[str, Op] = {
    "zero": "set",
    "mean": "set",
    "patch": "set",
    "scale": "scale",
    "add": "add",
    "temperature": "temperature",
}
MAX_MAP_CHANGES = 4
"""Most changes of a request to each score, or weight, of its attention."""


@dataclass(frozen=True, slots=True)
class Place:
    """A point in one or more layers, with its heads: the part of a target that is the same in every input."""

    stack: Stack
    point: Point
    name: str
    """The point's name in messages: with its stack if there are two, without a layer."""
    layers: tuple[int | None, ...]
    heads: tuple[int, ...] | None
    field: str
    """The name of the intervention in messages."""

    @property
    def is_map(self) -> bool:
        """Return whether the point has an axis of keys."""
        return "key" in self.point.axes

    def at(self, config: ModelConfig, positions: Selector, lengths: Lengths) -> "InterventionTarget":
        """Return the target in an input. Raises BadRequest."""
        point = self.point
        own_length, rows, _ = lengths_at(config, self.stack, point, *lengths)
        chosen = None if positions == "all" else _about(resolve, positions, rows, f"{self.field}.positions", "position")
        first = self.layers[0] if self.layers else None
        shape = list(sizes(config, self.stack, point, own_length, lengths.encoder, first))
        for i, axis in enumerate(point.axes):
            if axis in ("head", "kv_head") and self.heads is not None:
                shape[i] = len(self.heads)
            elif axis in ("position", "query") and chosen is not None:
                shape[i] = len(chosen)
        return InterventionTarget(
            self.stack, point, self.name, self.layers, self.heads, self.field, chosen, tuple(shape)
        )


@dataclass(frozen=True, slots=True)
class InterventionTarget(Place):
    """A point in one or more layers, with its heads and positions, for one input."""

    positions: tuple[int, ...] | None
    """The positions, or None for all, including generated tokens."""
    shape: tuple[int, ...]
    """The shape of its numbers for the input's positions, with the point's axes."""

    @property
    def row_axis(self) -> int:
        """Return the axis of `shape` that counts positions or queries."""
        return next(i for i, axis in enumerate(self.point.axes) if axis in ("position", "query"))

    def captures(self) -> tuple[PointCapture, ...]:
        """Return the captures of a trace, one for each layer. They have no names, so that equal ones compare equal."""
        return tuple(
            PointCapture(
                name="",
                stack=self.stack,
                layer=layer,
                point=self.point.name,
                heads=self.heads,
                positions=self.positions,
            )
            for layer in self.layers
        )


def place_of(config: ModelConfig, name: str, layer: Selector | None, head: Selector, field: str) -> Place:
    """Return the place of a point's name. `field` names the intervention in messages. Raises BadRequest."""
    try:
        written = read_name(config, name)
    except UnknownPoint as error:
        raise wrong(f"{field}.point: {error}.", "unknown_point") from None
    stack, point = written.stack, written.point
    shown_name = short_name(config, stack, point.name)
    own = stack_config(config, stack)
    layers = _layers(config, stack, point, written.layer, layer, field)
    if head != "all" and head_axis(point) is None:
        raise wrong(f'{field}.head: {shown_name} has no heads; leave out {shown(head)} or give "all".')
    of_size = {sizes(config, stack, point, 1, 1, each): each for each in reversed(layers)}
    if len(of_size) > 1:
        unlike = " and ".join(map(str, sorted(of_size.values(), key=lambda each: each or 0)[:2]))
        raise wrong(
            f"{field}.layer: layers {unlike} have {shown_name} of different sizes; layers of one size are accepted."
        )
    first = layers[0] if layers else None
    heads = _about(choose_heads, head, own.at(first or 0), point, f"{field}.head")
    return Place(stack, point, shown_name, layers, heads, field)


def is_scores(config: ModelConfig, name: str) -> bool:
    """Return whether the name of a point, in any spelling, means scores of an attention."""
    try:
        return is_scores_point(read_name(config, name).point)
    except UnknownPoint:  # `place_of` reports it
        return False


def is_scores_point(point: Point) -> bool:
    return point.name.endswith("hook_attn_scores")


def _layers(
    config: ModelConfig, stack: Stack, point: Point, named: int | None, selector: Selector | None, field: str
) -> tuple[int | None, ...]:
    """Return the layers from the name or the field. Raises BadRequest if both or none of them give layers."""
    shown_name = short_name(config, stack, point.name)
    if not point.in_block:
        if selector is not None:
            raise wrong(f"{field}.layer: {shown_name} is outside the blocks; leave out {shown(selector)}.")
        return (None,)
    own = stack_config(config, stack)
    if named is not None and selector is not None:
        raise wrong(
            f"{field}.layer: the name of the point already contains layer {named}; leave out {shown(selector)}."
        )
    if named is None and selector is None:
        raise wrong(f'{field}.layer: {shown_name} is in every block; a layer, a list or "all" is accepted.')
    wanted = selector if named is None else named
    assert wanted is not None
    layers = _about(resolve, wanted, own.num_layers, f"{field}.layer", "layer")
    absent = {layer: reason for layer in layers if (reason := why_absent(config, stack, point, layer)) is not None}
    if absent and wanted != "all":
        layer, reason = next(iter(absent.items()))
        raise wrong(f"{field}.layer: layer {layer} has no {shown_name}: {reason}.")
    return tuple(layer for layer in layers if layer not in absent)


def _about(check: Any, *arguments: Any) -> Any:
    """Return the result of a check; its BadRequest then names the field `interventions`."""
    try:
        return check(*arguments)
    except BadRequest as error:
        raise wrong(error.message, error.code) from None


def wrong(message: str, code: str | None = "invalid_intervention") -> BadRequest:
    return BadRequest(message, param="interventions", code=code)


def check_operation(config: ModelConfig, item: InterventionField, place: Place, field: str) -> None:
    """Raise BadRequest when the operation cannot be applied at this point."""
    name = place.name
    if not place.point.changeable:
        near = near_names(config, item.point, changeable=True)
        raise wrong(f"{field}.point: {name} can be read but not changed; similar points that can be changed: {near}.")
    for layer in place.layers:
        kv_layer = None if layer is None else stack_config(config, place.stack).kv_layer(layer)
        if kv_layer != layer and name.endswith(("attn.hook_k", "attn.hook_v")):
            raise wrong(f"{field}.layer: layer {layer} uses {name} of layer {kv_layer}; change it there.")
    if item.op == "temperature" and not name.endswith("hook_attn_scores"):
        module = "cross_attn" if is_cross(place.point) else "attn"
        accepted = short_name(config, place.stack, f"{module}.hook_attn_scores")
        raise wrong(f"{field}.op: 'temperature' divides attention scores, not {name}; point {accepted!r} is accepted.")
    if item.op == "mean" and place.is_map:
        raise wrong(f"{field}.op: rows of {name} have different lengths and no mean; 'zero' and 'patch' are accepted.")
    if item.source is not None and item.op in ("scale", "add") and place.is_map:
        raise wrong(f"{field}.op: {item.op!r} with from is not accepted for {name}; 'patch' is.")


def check_map_changes(config: ModelConfig, places: Sequence[InterventionTarget], lengths: Lengths) -> None:
    """Raise BadRequest when the scores and patterns of one input are changed too many times.

    Each change passes over all numbers of its target in the step that computes them, while other requests wait: maps
    are far larger than rows of the residual stream.
    """
    changed = sum(len(place.layers) * math.prod(place.shape) for place in places if place.is_map)
    if not changed:
        return
    whole = 0
    for stack in stacks(config):
        for point in points_of(config, stack):
            if point.name.endswith("hook_pattern"):
                own_length, *_ = lengths_at(config, stack, point, *lengths)
                size = math.prod(sizes(config, stack, point, own_length, lengths.encoder))
                whole += stack_config(config, stack).num_layers * size
    if changed > MAX_MAP_CHANGES * whole:
        raise wrong(
            f"interventions: they change {changed} attention scores and weights; at most {MAX_MAP_CHANGES * whole} are "
            f"accepted for this input, {MAX_MAP_CHANGES} changes of each. Give fewer layers, heads or positions, or "
            "fewer interventions.",
            "too_many_changes",
        )


def intervention(
    layer: int | None, value: float | NumpyArray, place: InterventionTarget, item: InterventionField
) -> Intervention:
    """Return the engine's intervention in one layer. An array must have passed `check_fits`."""
    positions = place.positions
    if positions is None and not isinstance(value, float) and _is_for_positions(value, place):
        positions = tuple(range(place.shape[place.row_axis]))
    return Intervention(
        stack=place.stack,
        layer=layer,
        point=place.point.name,
        op=_OPS[item.op],
        value=value if isinstance(value, float) else 0.0,
        array=None if isinstance(value, float) else for_engine(value),
        heads=place.heads,
        positions=positions,
    )


def _is_for_positions(value: NumpyArray, place: InterventionTarget) -> bool:
    """Return whether an array has a number for each of the input's positions or keys, so that it fits only these."""
    lengths = dict(zip(range(-len(place.shape), 0), place.shape, strict=True))
    along = {place.row_axis - len(place.shape)} | ({-1} if place.is_map else set())
    return any(axis >= -value.ndim and value.shape[axis] == lengths[axis] > 1 for axis in along)


# ---- numbers

_BASE64_PIECE = 1 << 18
"""Characters of base64, in whole groups of four, that are decoded before the event loop may run again: about 1 ms."""


def read_value(
    value: float | Sequence[Any] | EncodedArray, field: str, *, may_mask: bool = False
) -> float | NumpyArray:
    """Return the number or the array of a body's value. Raises BadRequest if it is not finite in float32.

    `may_mask`: minus infinity is accepted too, as null in lists, the form of masked scores in answers.
    """
    if isinstance(value, int | float):
        if abs(value) > float(np.finfo(np.float32).max):
            raise wrong(f"{field}.value: {shown(value)} is not finite in float32; a finite number is accepted.")
        return float(value)
    if isinstance(value, EncodedArray):
        array = _decoded(value, field)
    else:
        try:
            array = np.array(value)
        except (ValueError, OverflowError):  # lists of different lengths, or integers of more than 64 bits
            array = np.array(None)
        if may_mask and array.dtype == object and array.ndim:
            array = _without_nulls(array)
        if array.dtype.kind not in "iuf" or array.size == 0:
            raise wrong(f"{field}.value: {shown(value)} is not an array; nested lists of numbers of equal length are "
                         "accepted.")  # fmt: skip
    with np.errstate(over="ignore"):
        array = array.astype("<f4", copy=False)
    is_accepted = np.isfinite(array) | (may_mask & np.isneginf(array))
    if not is_accepted.all():
        accepted = "finite ones and minus infinity (null in lists)" if may_mask else "finite ones"
        raise wrong(f"{field}.value: the array has numbers that are not finite in float32; {accepted} are accepted.")
    return array


def _without_nulls(array: NumpyArray) -> NumpyArray:
    """Return the numbers with each null as minus infinity, or the same array if it has other contents."""
    is_null = np.array([number is None for number in array.flat]).reshape(array.shape)
    if all(type(number) in (int, float) for number in array[~is_null]):
        return np.where(is_null, -np.inf, array).astype(np.float64)
    return array


def check_masked(config: ModelConfig, place: InterventionTarget, op: str, value: NumpyArray, field: str) -> None:
    """Raise BadRequest for an array of queries and keys with numbers for pairs that the mask hides.

    An array that is the same for all queries, or for all keys, applies to the visible pairs.
    """
    if not place.is_map or op not in ("patch", "add") or is_cross(place.point):
        return
    own, (num_queries, num_keys) = stack_config(config, place.stack), place.shape[-2:]
    if value.ndim < 2 or value.shape[-2:] != (num_queries, num_keys):
        return
    of_scores = is_scores_point(place.point)
    hidden_number = -math.inf if of_scores else 0.0
    is_lost = value != hidden_number if op == "patch" else (value != 0.0) & (value != hidden_number)
    queries = np.arange(num_queries) if place.positions is None else np.array(place.positions)
    distance = np.arange(num_keys) - queries[:, None]
    for layer in place.layers:
        assert layer is not None
        window = own.window_of(layer)
        hidden = np.zeros_like(distance, bool) if window is None else np.abs(distance) >= window
        if own.causal:
            hidden |= distance > 0
        if (is_lost & hidden).any():
            *_, row, key = np.argwhere(is_lost & hidden)[0]
            accepted = "null, minus infinity," if of_scores else "0"
            raise wrong(
                f"{field}.value: in layer {layer} the query {queries[row]} does not see the key {key}, but the value "
                f"has a number for it; {accepted} is accepted there."
            )


def _decoded(value: EncodedArray, field: str) -> NumpyArray:
    dtype = np.dtype(value.dtype).newbyteorder("<")
    data = bytearray()
    try:
        for start in range(0, len(value.data), _BASE64_PIECE):
            data += base64.b64decode(value.data[start : start + _BASE64_PIECE], validate=True)
    except ValueError:
        raise wrong(f"{field}.value.data: not valid base64: {shown(value.data)}.") from None
    expected = math.prod(value.shape) * dtype.itemsize
    if len(data) != expected:
        raise wrong(
            f"{field}.value.data: {len(data)} bytes; {expected} are accepted for shape {value.shape} of {value.dtype}."
        )
    return np.frombuffer(data, dtype).reshape(value.shape)


def check_fits(shape: Sequence[int], place: InterventionTarget, field: str) -> None:
    """Raise BadRequest when an array of this shape does not broadcast to the target."""
    axes = list(zip(place.point.axes, place.shape, strict=True))
    aligned = axes[len(axes) - len(shape) :]
    if len(shape) <= len(axes) and all(size in (1, length) for size, (_, length) in zip(shape, aligned, strict=True)):
        return
    accepted = ", ".join(f"{axis} {length}" for axis, length in axes)
    raise wrong(
        f"{field}: shape {list(shape)} does not broadcast to {place.name}, which is [{accepted}] here; that "
        "shape is accepted, with 1 for any axis and without leading axes.",
        "wrong_shape",
    )
