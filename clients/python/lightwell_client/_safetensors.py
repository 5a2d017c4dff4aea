"""Reads the safetensors format without its package. Every offset, shape and size is checked.

Layout (github.com/huggingface/safetensors, README): u64 little-endian header length, the header as JSON {name:
{"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}, then the data.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from lightwell_client._exceptions import InvalidResponse

MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as it is stored in the file: C order, little endian; `dtype` is the format's name, such as F32."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class TensorFile:
    tensors: dict[str, RawTensor]
    metadata: dict[str, str]

    @property
    def fields(self) -> dict[str, Any]:
        """Return the metadata, with JSON texts parsed."""
        return {name: _json_or_text(text) for name, text in self.metadata.items()}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_safetensors(content: bytes) -> TensorFile:
    """Parse a whole file; tensors are views into `content`, not copies.

    Raises:
        InvalidResponse: truncated, overlapping, misshaped, of an unknown dtype, or not the format at all.
    """
    if len(content) < 8:
        raise InvalidResponse(f"safetensors: {len(content)} bytes are too few for the header length")
    length = int.from_bytes(content[:8], "little")
    if length > MAX_HEADER_BYTES or 8 + length > len(content):
        raise InvalidResponse(f"safetensors: the header is said to take {length} bytes of {len(content) - 8}")
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(f"safetensors: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise InvalidResponse(f"safetensors: the header is a {type(header).__name__}, not an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InvalidResponse("safetensors: __metadata__ must map strings to strings")
    data = memoryview(content)[8 + length :]
    spans = {name: _check_entry(name, entry) for name, entry in header.items()}
    _check_cover(spans, len(data))
    tensors = {
        name: RawTensor(entry["dtype"], tuple(entry["shape"]), data[slice(*spans[name])])
        for name, entry in header.items()
    }
    return TensorFile(tensors, metadata)


def _check_entry(name: str, entry: Any) -> tuple[int, int]:
    """Return the (begin, end) of a tensor with a valid entry."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise InvalidResponse(f"safetensors: tensor {name!r} needs dtype, shape and data_offsets, has {entry!r}")
    if dtype not in ITEM_BYTES:
        raise InvalidResponse(f"safetensors: tensor {name!r} has dtype {dtype}; known are {', '.join(ITEM_BYTES)}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidResponse(f"safetensors: tensor {name!r} has shape {shape}")
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise InvalidResponse(f"safetensors: tensor {name!r} of {dtype} {shape} has {end - begin} bytes")
    return begin, end


def _check_cover(spans: dict[str, tuple[int, int]], num_bytes: int) -> None:
    """Check that the tensors tile the data: no hole, no overlap, nothing after the last (as the format demands)."""
    reached = 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != reached:
            raise InvalidResponse(f"safetensors: tensor {name!r} begins at byte {begin}, {reached} was due")
        reached = end
    if reached != num_bytes:
        raise InvalidResponse(f"safetensors: the tensors take {reached} bytes, the data has {num_bytes}")
