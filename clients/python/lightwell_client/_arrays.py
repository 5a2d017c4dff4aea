"""Converts bytes to numpy arrays, and arrays to bytes. This is the one place that imports numpy, and only when an
array is wanted.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightwell_client._exceptions import InvalidResponse, MissingDependency
from lightwell_client._safetensors import RawTensor

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    Array = NDArray[Any]

# Little endian always, as on the wire, whatever machine reads it.
NUMPY_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}
WIRE_DTYPES = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4", "uint8": "|u1"}
_LISTED = 64
"""Arrays of more numbers than this travel as base64, which holds every bit in a third of the space."""


def require_numpy(purpose: str) -> ModuleType:
    """Return numpy, or raise an error with the command that installs it.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import numpy  # here and not above: text needs no arrays
    except ImportError as error:
        raise MissingDependency(f"{purpose} needs numpy: pip install 'lightwell-client[numpy]'") from error
    return numpy


def array_of(tensor: RawTensor) -> Array:
    """Return a copy of the tensor, which may be written to; bfloat16, which numpy lacks, becomes float32 exactly."""
    np = require_numpy("reading a tensor")
    if tensor.dtype == "BF16":
        upper: Array = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return upper.view("<f4").reshape(tensor.shape)
    flat: Array = np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape).copy()


def array_from_json(data: Any, dtype: str, shape: tuple[int, ...] | None) -> Array:
    """Return an array from nested lists (null is a masked score, -inf) or from base64 of its little-endian bytes.

    Raises:
        InvalidResponse: unknown dtype, ragged lists, or not as many numbers as the shape says.
    """
    np = require_numpy("reading a tensor")
    if dtype not in WIRE_DTYPES:
        raise InvalidResponse(f"dtype is {dtype!r}; known are {', '.join(WIRE_DTYPES)}")
    try:
        if isinstance(data, str):
            array: Array = np.frombuffer(base64.b64decode(data, validate=True), WIRE_DTYPES[dtype]).copy()
        else:
            floats = np.array(data, dtype=np.float64)  # None becomes nan
            array = np.where(np.isnan(floats), -np.inf, floats) if dtype.startswith("float") else floats
            array = array.astype(WIRE_DTYPES[dtype])
    except (TypeError, ValueError) as error:
        raise InvalidResponse(f"not an array of {dtype}: {error}") from error
    if shape is None:
        return array
    if array.size != math.prod(shape):
        raise InvalidResponse(f"an array of shape {shape} came with {array.size} numbers")
    return array.reshape(shape)


def encoded(value: Any) -> Any:
    """Return an intervention's numbers as the wire takes them: long arrays, and those with minus infinity (in lists
    also None, as in JSON), as {"data", "shape", "dtype"}.

    Raises:
        ValueError: it is no number or no array of real ones, or holds NaN or plus infinity, which no point takes.
    """
    if hasattr(value, "__array__") and not hasattr(value, "tolist"):  # a result, or an array with its axes
        value = value.__array__()
    if hasattr(value, "detach"):  # a torch tensor, of whatever device and dtype
        tensor = value.detach().cpu()
        value = (tensor if tensor.is_complex() else tensor.float()).numpy()  # numpy lacks bfloat16
    if value is None or isinstance(value, (bool, int, float, str, Mapping)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"value is {value}; a finite number is accepted, or an array of scores with -inf")
        return value
    try:
        np = require_numpy("an array as a value")
    except MissingDependency:
        if isinstance(value, list):  # the server reads these too
            return value
        raise
    accepted = "numbers, arrays and nested lists of equal lengths are accepted"
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = np.asarray(np.where(np.equal(array, None), -np.inf, array).tolist())
        if array.dtype.kind in "cSUmMO":  # numpy would drop imaginary parts, and read numbers out of texts
            raise ValueError(f"its dtype is {array.dtype}")
        with np.errstate(over="ignore"):
            given, array = array, array.astype("<f4")
        if (np.isinf(array) & np.isfinite(given)).any():
            raise ValueError("a number is too large for float32")
    except (TypeError, ValueError) as error:
        raise ValueError(f"value is no array of real numbers: {error}; {accepted}") from None
    if np.isnan(array).any() or np.isposinf(array).any():
        raise ValueError("value holds NaN or infinity; finite numbers are accepted, and -inf for scores")
    if array.size <= _LISTED and np.isfinite(array).all():
        return array.tolist()
    return {"data": base64.b64encode(array.tobytes()).decode(), "shape": list(array.shape), "dtype": "float32"}
