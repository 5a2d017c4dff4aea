"""Entries of an answer whose arrays each have a description, such as a trace.

`server.http.tensor_formats` has the entries with a common description of all arrays. Independent of networks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from lightwell.server.http.tensor_formats import AnswerEntry, EncodingFormat, NumpyArray, object_pieces


@dataclass(frozen=True)
class DescribedArray:
    """One array of an answer: its axes, shape and dtype among the description."""

    description: dict[str, Any]
    value: NumpyArray


@dataclass(frozen=True)
class DescribedEntry(AnswerEntry):
    """An entry with a description of each array.

    JSON: the fields and `key`: {name: {description..., "data"}}. In a safetensors file an array is "{index}/{name}";
    the metadata are the fields and descriptions. NDJSON: a line for each array.
    """

    points: dict[str, DescribedArray]
    key: str = "points"
    """The field of the JSON answer that holds the arrays."""

    def tensors(self) -> dict[str, NumpyArray]:
        return {f"{self.index}/{name}": point.value for name, point in self.points.items()}

    def metadata(self) -> dict[str, Any]:
        return {**self.fields, self.key: {name: point.description for name, point in self.points.items()}}

    def as_json(self, encoding_format: EncodingFormat) -> Iterator[bytes]:
        yield orjson.dumps(self.fields)[:-1] + b"," + orjson.dumps(self.key) + b":{"
        for i, (name, point) in enumerate(self.points.items()):
            yield (b"," if i else b"") + orjson.dumps(name) + b":"
            yield from object_pieces(point.description, {"data": point.value}, encoding_format)
        yield b"}}"

    def lines(self, encoding_format: EncodingFormat) -> Iterator[bytes]:
        for name, point in self.points.items():
            fields = {"index": self.index, self.key.removesuffix("s"): name, **point.description}
            yield from object_pieces(fields, {"data": point.value}, encoding_format)
            yield b"\n"
