"""Streamed content blocks of Anthropic's API: one block begins, grows and ends, then the next begins.

The input is the additions of each engine output. Independent of HTTP.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from lightwell.model.tokenization.chat_formats.message import ToolCallDelta
from lightwell.server.engine.messages.outputs import Array
from lightwell.server.generation.attention_rows import RowWriter
from lightwell.server.generation.conversation import ChatPiece
from lightwell.server.http.tensor_formats import JsonArray

Event = dict[str, Any]
Kind = Literal["thinking", "text", "tool_use"]

_GROWING: dict[Kind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of the delta of each block, and its field with the new part."""


@dataclass
class _Block:
    """A block of the answer."""

    kind: Kind
    begun: Event
    """The block as it begins, empty."""
    call: int | None
    """Number of the tool call that it is."""
    parts: list[str] = field(default_factory=list)
    tensors: list[dict[str, Array]] = field(default_factory=list)
    """The rows of its tokens."""
    first_query: int = 0
    """Position of the query of the first of them."""

    def whole(self, rows: RowWriter | None) -> Event:
        text = "".join(self.parts)
        grown: Event = {"input": _arguments(text)} if self.kind == "tool_use" else {self.kind: text}
        block = {**self.begun, **grown}
        if rows is not None and self.tensors:
            block["attention"] = rows.whole(self.tensors, self.first_query, JsonArray)
        return block


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call. Incomplete arguments, or arguments that are no object, are returned as text under
    the name in Anthropic's documentation.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


class ContentWriter:
    """Writes the blocks of one answer: as events while they grow, or whole at the end; both say the same."""

    def __init__(self, rows: RowWriter | None, num_prompt_ids: int, *, streams: bool, shows_thinking: bool) -> None:
        self._rows = rows
        self._query = num_prompt_ids - 1
        """Position of the query that chooses the next token."""
        self._streams = streams
        self._shows_thinking = shows_thinking
        self._blocks: list[_Block] = []

    def take(self, piece: ChatPiece) -> list[Event]:
        """Return the events of a piece. Its attention rows are in the last of them."""
        delta, tensors = piece.delta, piece.piece.tensors
        events: list[Event] = []
        if delta.reasoning and self._shows_thinking:
            events += self._grow("thinking", delta.reasoning)
        if delta.content:
            events += self._grow("text", delta.content)
        for call in delta.tool_calls:
            events += self._grow("tool_use", call.arguments, call)
        if self._rows is not None and tensors:
            events = events or ([self.delta(self._blocks[-1].kind, "")] if self._blocks else self._grow("text", ""))
            block = self._blocks[-1]
            if self._streams:
                events[-1]["attention"] = self._rows.piece(tensors, self._query)
            else:
                block.first_query = block.first_query if block.tensors else self._query
                block.tensors.append(tensors)
        self._query += len(piece.piece.token_ids)
        return events

    def begin(self, kind: Kind, call: ToolCallDelta | None = None) -> list[Event]:
        """Return the events that end the block before, and begin another."""
        events = self.end()
        begun: Event = {"type": kind}
        if kind == "text":
            begun["text"] = ""
        elif kind == "thinking":
            begun |= {"thinking": "", "signature": ""}
        elif call is not None:
            begun |= {"id": call.id or "", "name": call.name or "", "input": {}}
        self._blocks.append(_Block(kind, begun, None if call is None else call.index))
        return [*events, {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": begun}]

    def end(self) -> list[Event]:
        """Return the event that ends the last block, if there is any."""
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}] if self._blocks else []

    def whole(self) -> list[Event]:
        return [block.whole(self._rows) for block in self._blocks]

    def delta(self, kind: Kind, text: str) -> Event:
        """Return the event of the new part of the last block."""
        name, key = _GROWING[kind]
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": {"type": name, key: text}}

    def _grow(self, kind: Kind, text: str, call: ToolCallDelta | None = None) -> list[Event]:
        events: list[Event] = []
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.kind != kind or (call is not None and last.call != call.index):
            events = self.begin(kind, call)
        if not self._streams:
            self._blocks[-1].parts.append(text)
        return [*events, self.delta(kind, text)]
