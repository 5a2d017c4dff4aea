"""Writes one item of a response's output: reasoning, a message, or a call of a tool."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from lightwell.model.tokenization.chat_formats.message import ToolCallDelta
from lightwell.server.engine.messages.outputs import Array
from lightwell.server.generation.attention_rows import RowWriter
from lightwell.server.http.tensor_formats import JsonArray

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of all items of one type."""

    type: str
    id_prefix: str
    events: str
    """The beginning of the names of the events of its text."""
    text_field: str = "text"
    part: str | None = None
    """The type of the only part that holds the text, or None where the item itself does."""


REASONING = Kind("reasoning", "rs", "response.reasoning_text", part="reasoning_text")
MESSAGE = Kind("message", "msg", "response.output_text", part="output_text")
CALL = Kind("function_call", "fc", "response.function_call_arguments", "arguments")


@dataclass(frozen=True, slots=True)
class Written:
    """An item that is over. In a stream, its values are JSON: events repeat them, and logprobs may be megabytes."""

    done: dict[str, Any]
    """The fields of the event that ends its text."""
    part: Any
    whole: Any


def _json(value: Any) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(value))


@dataclass(slots=True)
class Item:
    """One item as it grows."""

    kind: Kind
    index: int
    """Its place in the output."""
    rows: RowWriter | None
    call: ToolCallDelta | None = None
    """The first of a call."""
    called: Mapping[str, str] = field(default_factory=dict)
    """The name of the called function, and its namespace if it has one."""
    id: str = ""
    texts: list[str] = field(default_factory=list)
    logprobs: list[orjson.Fragment] | None = None
    """One entry a token, or None without log-probabilities."""
    tensors: list[dict[str, Array]] = field(default_factory=list)
    """The captures of each of its tokens, if the whole item has them."""
    first_query: int = 0
    """Position of the query that chose the first of those tokens."""

    def __post_init__(self) -> None:
        self.id = f"{self.kind.id_prefix}_{uuid.uuid4().hex}"

    def takes(self, kind: Kind, call: ToolCallDelta | None) -> bool:
        """Return whether text of this kind, and of this call if it is one, belongs to the item."""
        return self.kind is kind and (call is None or (self.call is not None and self.call.index == call.index))

    def place(self) -> dict[str, Any]:
        """Return the fields by which events name the item, and its part."""
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return place if self.kind.part is None else {**place, "content_index": 0}

    def opening(self) -> dict[str, Any]:
        """Return the item before it has any text."""
        return self._as(self._text_fields("", []) if self.kind.part is None else {"content": []}, "in_progress")

    def opening_part(self) -> dict[str, Any]:
        """Return the part before it has any text."""
        return {"type": self.kind.part, **self._text_fields("", [])}

    def written(self, status: Status, *, streams: bool) -> "Written":
        """Return the item with the text so far."""
        kept = _json if streams else lambda value: value
        text, logprobs = "".join(self.texts), kept(self.logprobs or [])
        done = {self.kind.text_field: text, **({"logprobs": logprobs} if self.kind is MESSAGE else {})}
        fields = self._text_fields(text, logprobs)
        if self.rows is not None and self.tensors:
            fields["attention"] = self.rows.whole(self.tensors, self.first_query, JsonArray)
        if self.kind.part is None:
            return Written(done, None, kept(self._as(fields, status)))
        part = kept({"type": self.kind.part, **fields})
        return Written(done, part, kept(self._as({"content": [part]}, status)))

    def _text_fields(self, text: str, logprobs: orjson.Fragment | list[Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {self.kind.text_field: text}
        if self.kind is MESSAGE:
            fields |= {"annotations": [], "logprobs": logprobs}
        return fields

    def _as(self, fields: dict[str, Any], status: Status) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": self.kind.type, "status": status}
        if self.kind is REASONING:
            item["summary"] = []
        elif self.kind is MESSAGE:
            item["role"] = "assistant"
        elif self.call is not None:
            item |= {"call_id": self.call.id, **self.called}
        return {**item, **fields}
