"""Arrays on the wire: JSON, safetensors, npy and NDJSON, chosen by the Accept header.

Every body is made in pieces, so that a large answer is never copied whole and does not block the event loop. Pickle is
never used. Minus infinity is null in JSON and itself in binary. Independent of the meaning of the numbers.
"""

import asyncio
import base64
import io
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
import orjson

from lightwell.server.engine.messages.outputs import Array
from lightwell.server.http.errors import BadRequest, NotAcceptable, shown

NumpyArray = np.ndarray[Any, np.dtype[Any]]
Wire = Literal["json", "base64", "binary"]
"""How a number is written, which decides how large an answer is."""
VALUE_BYTES: dict[Wire, float] = {"json": 14.0, "base64": 16 / 3, "binary": 4.0}
"""Bytes of one float32 on the wire."""
EncodingFormat = Literal["float", "base64"]

Piece = bytes | memoryview
"""Some bytes of a body; a view is of an array that is not written to any more."""
PIECE_VALUES = 1 << 16
"""Numbers that are turned into text before other requests get a chance to run: about 5 ms."""
PIECE_BYTES = 1 << 20
WRITE_BYTES = PIECE_BYTES // 4
"""Bytes of a body that are worth their own write."""

_SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int32": "I32"}


class Format(Enum):
    """The media types that a tensor answer can have."""

    JSON = "application/json"
    SAFETENSORS = "application/vnd.safetensors"
    NPY = "application/x-npy"
    NDJSON = "application/x-ndjson"


def negotiate(accept: str | None) -> Format:
    """Return the format that the Accept header prefers; the first one wins ties. Raises NotAcceptable."""
    if not accept or not accept.strip():
        return Format.JSON
    wishes = [_wish(part) for part in accept.split(",") if part.strip()]
    best, best_quality = None, 0.0
    for candidate in Format:
        matching = [(specific, quality) for kind, specific, quality in wishes if _matches(kind, candidate.value)]
        quality = max(matching)[1] if matching else 0.0  # the most specific type decides
        if quality > best_quality:
            best, best_quality = candidate, quality
    if best is None:
        formats = ", ".join(candidate.value for candidate in Format)
        raise NotAcceptable(f"Accept: {shown(accept)} contains no format of this route; accepted: {formats}.")
    return best


def _wish(part: str) -> tuple[str, int, float]:
    """Return one element of an Accept header: media type, how specific it is, quality."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = min(max(float(value), 0.0), 1.0)
            except ValueError:
                quality = 0.0
    return kind, 2 - kind.count("*"), quality


def _matches(kind: str, media_type: str) -> bool:
    return kind in {"*/*", "*", media_type} or (kind.endswith("/*") and media_type.startswith(kind[:-1]))


def as_numpy(array: Array) -> NumpyArray:
    """Return a read-only view of an array from the engine."""
    return np.frombuffer(array.data, np.dtype(array.dtype).newbyteorder("<")).reshape(array.shape)


def for_engine(value: NumpyArray) -> Array:
    """Return numbers as a float32 array for the engine, without a copy if possible: many inputs may share them."""
    return Array("float32", value.shape, np.ascontiguousarray(value, "<f4").reshape(-1).view(np.uint8).data)


@dataclass(frozen=True)
class AnswerEntry(ABC):
    """One input's part of an answer, in each of the formats."""

    index: int
    fields: dict[str, Any]
    """The fields, "object" and "index" included."""

    @abstractmethod
    def tensors(self) -> dict[str, NumpyArray]:
        """Return the arrays by their names in a safetensors file."""

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Return the entry in the metadata of a safetensors file."""

    @abstractmethod
    def as_json(self, encoding_format: EncodingFormat) -> Iterator[bytes]:
        """Yield the entry as a JSON object."""

    @abstractmethod
    def lines(self, encoding_format: EncodingFormat) -> Iterator[bytes]:
        """Yield the arrays as lines of NDJSON, each a JSON object; the line of the fields is before them."""


@dataclass(frozen=True)
class Entry(AnswerEntry):
    """An entry whose fields describe all its arrays.

    In a safetensors file an array is "{name}.{index}". A line of NDJSON is a slice of the first axis of all arrays:
    {"index", NAME, "shape", ARRAYS...}, where NAME is that axis (layer or pair; for vectors token) and its value is the
    layer, the pair or the position.
    """

    arrays: dict[str, NumpyArray]

    def tensors(self) -> dict[str, NumpyArray]:
        return {f"{name}.{self.index}": value for name, value in self.arrays.items()}

    def metadata(self) -> dict[str, Any]:
        return self.fields

    def as_json(self, encoding_format: EncodingFormat) -> Iterator[bytes]:
        return object_pieces(self.fields, self.arrays, encoding_format)

    def lines(self, encoding_format: EncodingFormat) -> Iterator[bytes]:
        axis = self.fields["axes"][0]
        num_slices, *shape = next(iter(self.arrays.values())).shape
        labels = self.fields.get({"layer": "layers", "pair": "pairs"}.get(axis, ""), range(num_slices))
        for i, label in enumerate(labels):
            fields = {"index": self.index, axis: label, "shape": shape}
            yield from object_pieces(fields, {name: value[i] for name, value in self.arrays.items()}, encoding_format)
            yield b"\n"


def body_pieces(
    wanted: Format, head: dict[str, Any], entries: Sequence[AnswerEntry], encoding_format: EncodingFormat
) -> Iterator[Piece]:
    """Yield the whole answer in the wanted format.

    JSON: `head` with "data", a list of the entries. safetensors: all arrays, and in the metadata `head` and
    "{object}.{index}" of each entry. npy: the one array. NDJSON: for each entry a line of its fields (the first has
    `head` too) and the lines of its arrays.
    """
    match wanted:
        case Format.JSON:
            yield orjson.dumps(head)[:-1] + b',"data":['
            for i, entry in enumerate(entries):
                yield b"," if i else b""
                yield from entry.as_json(encoding_format)
            yield b"]}"
        case Format.SAFETENSORS:
            described = {f"{entry.fields['object']}.{entry.index}": entry.metadata() for entry in entries}
            tensors = {name: value for entry in entries for name, value in entry.tensors().items()}
            yield from safetensors_pieces(head | described, tensors)
        case Format.NPY:
            (array,) = (value for entry in entries for value in entry.tensors().values())
            yield from npy_pieces(array)
        case Format.NDJSON:
            for i, entry in enumerate(entries):
                yield orjson.dumps(entry.fields if i else head | entry.fields) + b"\n"
                yield from entry.lines(encoding_format)


# ---- JSON


def json_pieces(value: NumpyArray, encoding_format: EncodingFormat) -> Iterator[bytes]:
    """Yield an array as a JSON value: nested lists with null for non-finite numbers, or base64 (little endian)."""
    if encoding_format == "base64":
        yield b'"'
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        step = PIECE_BYTES // 3 * 3  # base64 of pieces joins only at multiples of three bytes
        for start in range(0, data.size, step):
            yield base64.b64encode(data[start : start + step].tobytes())
        yield b'"'
        return
    yield from _list_pieces(value)


def _list_pieces(value: NumpyArray) -> Iterator[bytes]:
    if value.size <= PIECE_VALUES or value.ndim == 1:
        value = value.astype(np.float32) if value.dtype == np.float16 else value
        yield orjson.dumps(np.ascontiguousarray(value), option=orjson.OPT_SERIALIZE_NUMPY)
        return
    yield b"["
    for i, part in enumerate(value):
        if i:
            yield b","
        yield from _list_pieces(part)
    yield b"]"


@dataclass(frozen=True)
class JsonArray:
    """An array that an answer holds as one JSON value."""

    value: NumpyArray
    encoding_format: EncodingFormat


def json_value(value: NumpyArray, encoding_format: EncodingFormat) -> orjson.Fragment:
    """Return a small array (a token's rows) as one JSON value, for use inside `orjson.dumps`."""
    return orjson.Fragment(b"".join(json_pieces(value, encoding_format)))


def json_parts(value: Any, depth: int = 8) -> Iterator[bytes]:
    """Yield a value as JSON: arrays in pieces, and the entries of iterators and of lists of objects or fragments one by
    one. An entry of an iterator is written whole.
    """
    if isinstance(value, JsonArray):
        yield from json_pieces(value.value, value.encoding_format)
    elif isinstance(value, dict) and value and depth:
        before = b"{"
        for name, each in value.items():
            yield before + orjson.dumps(name) + b":"
            yield from json_parts(each, depth - 1)
            before = b","
        yield b"}"
    elif isinstance(value, Iterator) or (
        isinstance(value, list) and depth and isinstance((value or [0])[0], dict | orjson.Fragment)
    ):
        inner = 0 if isinstance(value, Iterator) else depth - 1
        yield b"["
        for number, each in enumerate(value):
            yield b"," * (number > 0)
            yield from json_parts(each, inner)
        yield b"]"
    else:
        yield orjson.dumps(value)


def object_pieces(
    fields: dict[str, Any], arrays: dict[str, NumpyArray], encoding_format: EncodingFormat
) -> Iterator[bytes]:
    """Yield a JSON object of fields, at least one, and arrays."""
    yield orjson.dumps(fields)[:-1]
    for name, value in arrays.items():
        yield b"," + orjson.dumps(name) + b":"
        yield from json_pieces(value, encoding_format)
    yield b"}"


# ---- binary


def _byte_pieces(value: NumpyArray) -> Iterator[Piece]:
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    for start in range(0, data.nbytes, PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def safetensors_pieces(metadata: dict[str, Any], tensors: dict[str, NumpyArray]) -> Iterator[Piece]:
    """Yield a safetensors file. Metadata values that are not strings are written as JSON text, as the format requires.
    An empty piece comes wherever a long header has grown by a write.

    Format: u64 length, JSON header, raw bytes (github.com/huggingface/safetensors).
    """
    described, size = [], 0
    for name, value in metadata.items():
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        described.append(orjson.dumps(name) + b":" + orjson.dumps(text))
        size += len(described[-1])
        if size > WRITE_BYTES:
            size = 0
            yield b""
    header: dict[str, Any] = {"__metadata__": orjson.Fragment(b"{%b}" % b",".join(described))}
    offset = 0
    for name, value in tensors.items():
        end = offset + value.nbytes
        dtype = _SAFETENSORS_DTYPES[value.dtype.name]
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [offset, end]}
        offset = end
    begin = orjson.dumps(header)
    padding = -len(begin) % 8  # the data begins at a multiple of 8, so that it can be mapped
    yield b"%b%b%b" % (struct.pack("<Q", len(begin) + padding), begin, b" " * padding)
    for value in tensors.values():
        yield from _byte_pieces(value)


def check_npy(num_arrays: int) -> None:
    """Raise BadRequest unless there is exactly one array, as a .npy file requires. Call it before anything runs."""
    if num_arrays != 1:
        raise BadRequest(
            f"application/x-npy can contain only one array, but this answer has {num_arrays}; request one array of one "
            "input, or application/vnd.safetensors."
        )


def npy_pieces(array: NumpyArray) -> Iterator[Piece]:
    """Yield an array as a .npy file."""
    buffer = io.BytesIO()
    header = {"descr": array.dtype.newbyteorder("<").str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    yield buffer.getvalue()
    yield from _byte_pieces(array)


async def paced(pieces: Iterator[Piece]) -> AsyncIterator[Piece]:
    """Yield the pieces, joined to at least `WRITE_BYTES`, and let other requests run after each of them."""
    waiting = bytearray()
    for piece in pieces:
        if waiting or len(piece) < WRITE_BYTES:
            waiting += piece
        if len(waiting) >= WRITE_BYTES:
            yield bytes(waiting)
            waiting.clear()
            await asyncio.sleep(0)
        elif not waiting:  # large enough for a write: it is not copied
            yield piece
            await asyncio.sleep(0)
    if waiting:
        yield bytes(waiting)
