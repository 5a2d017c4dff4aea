"""Body of a trace: fields of each input, and arrays with a description for each.

`server.http.tensor_formats` writes answers with a common description of all arrays. Independent of networks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from server.http.tensor_formats import (
    EncodingFormat,
    Format,
    NumpyArray,
    Piece,
    json_pieces,
    npy_pieces,
    safetensors_pieces,
)


@dataclass(frozen=True)
class DescribedArray:
    """One array of an answer: its axes, shape and dtype among the description."""

    description: dict[str, Any]
    value: NumpyArray


@dataclass(frozen=True)
class DescribedEntry:
    """One entry of an answer: the fields and arrays of one input."""

    index: int
    fields: dict[str, Any]
    """The fields, "object" and "index" included."""
    points: dict[str, DescribedArray]
    key: str = "points"
    """The field of the JSON answer that holds the arrays."""


def described_body(
    wanted: Format, head: dict[str, Any], entries: Sequence[DescribedEntry], encoding_format: EncodingFormat
) -> Iterator[Piece]:
    """Yield the whole answer in the wanted format.

    JSON: `head` with "data": the entries, each with "points": {name: {description..., "data"}}. safetensors: tensors
    "{index}/{name}", and in the metadata `head` and "{object}.{index}": the entry without its numbers. npy: the one
    array. NDJSON: for each entry a line of its fields (the first has `head` too), then one line per point.
    """
    match wanted:
        case Format.JSON:
            return _json(head, entries, encoding_format)
        case Format.SAFETENSORS:
            return _safetensors(head, entries)
        case Format.NPY:
            (array,) = (point.value for entry in entries for point in entry.points.values())
            return npy_pieces(array)
        case Format.NDJSON:
            return _ndjson(head, entries, encoding_format)


def _with_data(fields: dict[str, Any], value: NumpyArray, encoding_format: EncodingFormat) -> Iterator[bytes]:
    yield orjson.dumps(fields)[:-1] + b',"data":'
    yield from json_pieces(value, encoding_format)
    yield b"}"


def _json(head: dict[str, Any], entries: Sequence[DescribedEntry], encoding_format: EncodingFormat) -> Iterator[bytes]:
    yield orjson.dumps(head)[:-1] + b',"data":['
    for i, entry in enumerate(entries):
        yield (b"," if i else b"") + orjson.dumps(entry.fields)[:-1] + b"," + orjson.dumps(entry.key) + b":{"
        for j, (name, point) in enumerate(entry.points.items()):
            yield (b"," if j else b"") + orjson.dumps(name) + b":"
            yield from _with_data(point.description, point.value, encoding_format)
        yield b"}}"
    yield b"]}"


def _safetensors(head: dict[str, Any], entries: Sequence[DescribedEntry]) -> Iterator[Piece]:
    metadata = dict(head)
    tensors: dict[str, NumpyArray] = {}
    for entry in entries:
        described = {name: point.description for name, point in entry.points.items()}
        metadata[f"{entry.fields['object']}.{entry.index}"] = {**entry.fields, entry.key: described}
        tensors |= {f"{entry.index}/{name}": point.value for name, point in entry.points.items()}
    return safetensors_pieces(metadata, tensors)


def _ndjson(
    head: dict[str, Any], entries: Sequence[DescribedEntry], encoding_format: EncodingFormat
) -> Iterator[bytes]:
    for entry in entries:
        yield orjson.dumps({**head, **entry.fields}) + b"\n"
        head = {}
        for name, point in entry.points.items():
            yield from _with_data(
                {"index": entry.index, entry.key.removesuffix("s"): name, **point.description},
                point.value,
                encoding_format,
            )
            yield b"\n"
