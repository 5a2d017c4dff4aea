"""Writes a response out of the pieces of its conversation: the whole object, and the events of a stream.

Both come from the same items, so that a stream's last event equals the whole answer.
"""

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import orjson

from lightwell.model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from lightwell.server.dialects.openai_responses.items import CALL, MESSAGE, REASONING, Item, Kind, Status
from lightwell.server.dialects.openai_responses.request import told
from lightwell.server.dialects.responses import model_name, new_answer_id
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.conversation import ChatPiece, Conversation
from lightwell.server.generation.logprobs import chat_entries
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.connection import BodyWriter
from lightwell.server.http.errors import ApiError
from lightwell.server.http.sse import TokenEvent, event
from lightwell.server.schemas.openai_responses.items import WebSearch, offered_functions
from lightwell.server.schemas.openai_responses.responses import ResponsesRequest


class ResponseWriter:
    """Writes one response. `begin`, then `push` each piece; `response` is the object so far."""

    def __init__(self, model: ServedModel, body: ResponsesRequest, conversation: Conversation) -> None:
        self._model = model
        self._body = body
        self._conversation = conversation
        self._rows = conversation.started.rows
        self._head = _head(model, body, conversation)
        self._called = _called(body)
        self._status = "in_progress"
        self._done: list[Any] = []
        """The items that are over, in a stream as JSON."""
        self._open: Item | None = None
        self._pending: list[Piece] = []
        """Tokens without text so far."""
        self._num_tokens = 0
        """Tokens that are in an item."""
        self._num_reasoning = 0
        self._events: list[bytes] = []
        self._sequence_number = 0
        self._before_delta = b""

    def begin(self) -> bytes:
        """Return the first events of a stream."""
        self._emit("response.created", response=self.response())
        self._emit("response.in_progress", response=self.response())
        return self._taken()

    async def push(self, piece: ChatPiece) -> bytes:
        """Add a piece, and return the events that it causes; the last piece causes the stream's last event."""
        parts = list(_parts(piece.delta))
        if parts and parts[0][0] is MESSAGE and self._open is not None and self._open.kind is not MESSAGE:
            await self._give_rest()  # they ended a thought or a call, and are no part of the message
        if piece.piece.token_ids:
            self._pending.append(piece.piece)
        for number, (kind, call, text) in enumerate(parts, 1):
            if self._open is None or not self._open.takes(kind, call):
                self._close("completed")
                self._begin_item(kind, call)
            if text:
                await self._add(text, takes_tokens=number == len(parts))
        if piece.finish_reason is not None:
            await self._end(piece.finish_reason)
        return self._taken()

    def token_writer(self) -> Callable[[BodyWriter], None] | None:
        """Return the function that writes tokens past the pieces, or None if they may bring more than text."""
        return self._conversation.token_writer(_Delta(self))

    def add_text(self, text: str) -> bytes:
        """Add a token's text to the message, and return its events: none without text."""
        if text:
            if self._open is None:
                self._begin_item(MESSAGE)
            self._add_text(text)
        return self._taken()

    def failed(self, error: ApiError) -> bytes:
        """Return the last event of a stream that failed."""
        self._close("incomplete")
        self._status = "failed"
        code = "rate_limit_exceeded" if error.status == HTTPStatus.TOO_MANY_REQUESTS else "server_error"
        failure = {"code": code, "message": error.message, "type": error.type, "param": error.param}
        self._emit("response.failed", response={**self.response(), "error": failure})
        return self._taken()

    def response(self) -> dict[str, Any]:
        """Return the response object so far."""
        is_over = self._status in ("completed", "incomplete")
        return {
            **self._head,
            "status": self._status,
            "completed_at": int(time.time()) if self._status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "output": self._done,
            "usage": self._usage() if is_over else None,
        }

    def _usage(self) -> dict[str, Any]:
        asked, generated = self._conversation.num_prompt_tokens, self._conversation.num_generated
        cached = self._conversation.num_cached_tokens
        return {
            "input_tokens": asked,
            # OpenAI bills writes to the prompt cache; here they cost nothing.
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning},
            "total_tokens": asked + generated,
        }

    def _begin_item(self, kind: Kind, call: ToolCallDelta | None = None) -> None:
        logprobs: list[orjson.Fragment] | None = [] if kind is MESSAGE and self._body.gives_logprobs else None
        called = {} if call is None else self._called.get(call.name or "", {"name": call.name or ""})
        item = Item(kind, len(self._done), self._rows, call, called, logprobs=logprobs)
        self._open = item
        item.first_query = len(self._conversation.job.prompt.ids) - 1 + self._num_tokens
        self._emit("response.output_item.added", output_index=item.index, item=item.opening())
        if kind.part is not None:
            self._emit("response.content_part.added", **item.place(), part=item.opening_part())
        name = f"{kind.events}.delta"
        fields = orjson.dumps({"type": name, **item.place(), **_no_logprobs(kind)})
        self._before_delta = b'event: %b\ndata: %b,"sequence_number":' % (name.encode(), fields[:-1])

    async def _add(self, text: str, takes_tokens: bool) -> None:
        """Add text to the open item, with the extras of its tokens, unless the next part of the piece takes them."""
        assert self._open is not None
        extras = await self._take_tokens(self._open) if takes_tokens else {}
        self._add_text(text, **extras)

    def _add_text(self, text: str, **extras: Any) -> None:
        assert self._open is not None
        self._open.texts.append(text)
        if extras:
            self._emit(f"{self._open.kind.events}.delta", **self._open.place(), delta=text, **extras)
        elif self._body.stream:  # most tokens: all but the text and a number was written when the item began
            written = (self._before_delta, self._sequence_number, orjson.dumps(text))
            self._events.append(b'%b%d,"delta":%b}\n\n' % written)
            self._sequence_number += 1

    async def _take_tokens(self, item: Item) -> dict[str, Any]:
        """Add the pending tokens to an item, and return the fields that they add to its event."""
        tokens, self._pending = self._pending, []
        query = len(self._conversation.job.prompt.ids) - 1 + self._num_tokens
        num_tokens = sum(len(piece.token_ids) for piece in tokens)
        self._num_tokens += num_tokens
        if item.kind is REASONING:
            self._num_reasoning += num_tokens
        extras: dict[str, Any] = {}
        if item.logprobs is not None:
            logprobs = [each for piece in tokens for each in piece.logprobs]
            entries = await chat_entries(self._model.tokenizer, logprobs, self._body.top_logprobs or 0)
            item.logprobs += entries
            extras["logprobs"] = entries
        tensors = [piece.tensors for piece in tokens if piece.tensors]
        if self._rows is not None and tensors:
            if self._body.stream:  # its event contains them, so they need not be kept
                extras = {**_no_logprobs(item.kind), **extras, "attention": self._rows.whole(tensors, query)}
            else:
                item.tensors += tensors
        return extras

    async def _give_rest(self) -> None:
        """Give the tokens that wait to the open item, though they bring no text."""
        assert self._open is not None
        if self._pending:
            extras = await self._take_tokens(self._open)
            if extras.get("logprobs") or "attention" in extras:
                self._add_text("", **extras)

    async def _end(self, finish_reason: str) -> None:
        """End the response; an answer without any text has one empty message."""
        if self._open is None:
            self._begin_item(MESSAGE)
        await self._give_rest()
        status: Status = "incomplete" if finish_reason == "length" else "completed"
        self._close(status)
        self._status = status
        self._emit(f"response.{status}", response=self.response())

    def _close(self, status: Status) -> None:
        """End the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return
        written = item.written(status, streams=bool(self._body.stream))
        self._emit(f"{item.kind.events}.done", **item.place(), **written.done)
        if written.part is not None:
            self._emit("response.content_part.done", **item.place(), part=written.part)
        self._emit("response.output_item.done", output_index=item.index, item=written.whole)
        self._done.append(written.whole)

    def _emit(self, name: str, **fields: Any) -> None:
        if not self._body.stream:
            return
        data = orjson.dumps({"type": name, "sequence_number": self._sequence_number, **fields})
        self._events.append(event(data, name))
        self._sequence_number += 1

    def _taken(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)


class _Delta(TokenEvent):
    """The event of a token's text, which counts on from the one before it."""

    entry = None

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer

    def of(self, text: str, entry: Any = None) -> bytes:
        return self._writer.add_text(text)


def _no_logprobs(kind: Kind) -> dict[str, Any]:
    """Return the field that events of a message's text always have."""
    return {"logprobs": []} if kind is MESSAGE else {}


def _parts(delta: MessageDelta) -> Iterator[tuple[Kind, ToolCallDelta | None, str]]:
    """Yield the new parts, each with the kind of its item."""
    if delta.reasoning:
        yield REASONING, None, delta.reasoning
    if delta.content:
        yield MESSAGE, None, delta.content
    for call in delta.tool_calls:
        yield CALL, call, call.arguments


def _called(body: ResponsesRequest) -> dict[str, dict[str, str]]:
    """Return the fields that name a function in a call's item, by the name that the model uses."""
    found = {}
    for each in offered_functions(body.tools or []):
        namespace = {} if each.namespace is None else {"namespace": each.namespace.name}
        found[each.name] = {"name": each.tool.name, **namespace}
    return found


def _head(model: ServedModel, body: ResponsesRequest, conversation: Conversation) -> dict[str, Any]:
    """Return the constant fields: the model and the settings of the answer."""
    sampling = conversation.job.sampling
    text = None if body.text is None else body.text.format
    choice = body.tool_choice or "auto"
    return {
        "id": new_answer_id("resp", "_"),
        "object": "response",
        "created_at": int(time.time()),
        "model": model_name(model),
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": {"type": "text"} if text is None else told(text), "verbosity": "medium"},
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
        "tools": [told(tool) for tool in body.tools or [] if not isinstance(tool, WebSearch)],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "max_tool_calls": body.max_tool_calls,
        "truncation": body.truncation or "disabled",
        "metadata": body.metadata or {},
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "background": False,
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
    }
