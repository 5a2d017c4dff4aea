"""Bytes to numpy arrays. The one place that imports numpy, and only when an array is wanted."""

from __future__ import annotations

import base64
import math
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


def require_numpy(purpose: str) -> ModuleType:
    """numpy, or an error that says how to get it.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import numpy  # here and not above: text needs no arrays
    except ImportError as error:
        raise MissingDependency(f"{purpose} needs numpy: pip install 'lightwell-client[numpy]'") from error
    return numpy


def array_of(tensor: RawTensor) -> Array:
    """A read-only view of the tensor's bytes; bfloat16, which numpy lacks, becomes float32 exactly."""
    np = require_numpy("reading a tensor")
    if tensor.dtype == "BF16":
        upper: Array = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return upper.view("<f4").reshape(tensor.shape)
    flat: Array = np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape)


def array_from_json(data: Any, dtype: str, shape: tuple[int, ...] | None) -> Array:
    """An array from nested lists (null is a masked score, -inf) or from base64 of its little-endian bytes.

    Raises:
        InvalidResponse: unknown dtype, ragged lists, or not as many numbers as the shape says.
    """
    np = require_numpy("reading a tensor")
    if dtype not in WIRE_DTYPES:
        raise InvalidResponse(f"dtype is {dtype!r}; known are {', '.join(WIRE_DTYPES)}")
    try:
        if isinstance(data, str):
            array: Array = np.frombuffer(base64.b64decode(data, validate=True), WIRE_DTYPES[dtype])
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
