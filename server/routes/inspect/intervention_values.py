"""Reads the numbers of an intervention, as lists or base64, and checks that they fit its point."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from model.config import ModelConfig
from model.hooks.point_names import stack_config
from model.hooks.points import is_cross
from server.http.errors import shown
from server.http.tensor_formats import NumpyArray
from server.routes.inspect.intervention_plan import InterventionTarget, is_scores_point, wrong
from server.schemas.inspect.interventions import EncodedArray

_BASE64_PIECE = 1 << 18
"""Characters of base64, in whole groups of four, that are decoded before the event loop may run again: about 1 ms."""


def read_value(
    value: float | Sequence[Any] | EncodedArray, field: str, *, may_mask: bool = False
) -> float | NumpyArray:
    """Read the numbers of a body's value. Raises BadRequest for what is not a number or an array finite in float32.

    `may_mask`: minus infinity is accepted too, which is null in lists: answers write a masked score so.
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
            raise wrong(f"{field}.value: {shown(value)} is no array; nested lists of numbers, of equal lengths, are "
                         "accepted.")  # fmt: skip
    with np.errstate(over="ignore"):
        array = array.astype("<f4", copy=False)
    is_accepted = np.isfinite(array) | (may_mask & np.isneginf(array))
    if not is_accepted.all():
        accepted = "finite ones and minus infinity (null in lists)" if may_mask else "finite ones"
        raise wrong(f"{field}.value: the array holds numbers that are not finite in float32; {accepted} are accepted.")
    return array


def _without_nulls(array: NumpyArray) -> NumpyArray:
    """Return the numbers with each null as minus infinity, or the array as it is if it holds anything else."""
    is_null = np.array([number is None for number in array.flat]).reshape(array.shape)
    if all(type(number) in (int, float) for number in array[~is_null]):
        return np.where(is_null, -np.inf, array).astype(np.float64)
    return array


def check_masked(config: ModelConfig, place: InterventionTarget, op: str, value: NumpyArray, field: str) -> None:
    """Raise BadRequest when numbers for each query and key would change what the mask hides, and so be lost.

    An array that is the same for all queries, or for all keys, is meant for the pairs that the mask leaves visible.
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
        raise wrong(f"{field}.value.data: no base64, got {shown(value.data)}.") from None
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
