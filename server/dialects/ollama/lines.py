"""Writes a generated text as Ollama does: one object, or one line of JSON for each part of it."""

import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from lightwell.model.tokenization.chat_formats.message import Message, ToolCall, joined
from lightwell.server.engine.messages.outputs import TokenLogprobs
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.conversation import ChatPiece
from lightwell.server.generation.logprobs import chat_entries
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Started
from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.errors import ApiError
from lightwell.server.http.sse import one_line
from lightwell.server.http.tensor_formats import JsonArray

NDJSON = "application/x-ndjson"


@dataclass(frozen=True)
class Begun:
    """A text in flight."""

    prompt: Prompt
    started: Started
    pieces: AsyncIterator[ChatPiece]
    num_logprobs: int | None
    """Alternatives of each token, or None for no log-probabilities."""


def line(value: dict[str, Any]) -> bytes:
    """Return one line of a stream, by everybody's idea of a line."""
    return one_line(orjson.dumps(value)) + b"\n"


def error_line(error: ApiError) -> bytes:
    """Return the last line of a stream that failed."""
    return error_json(error, "/api/") + b"\n"


def chat_fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message in an answer of /api/chat."""
    told: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        told["thinking"] = message.reasoning
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": call.id, "function": {"index": i, "name": call.name, "arguments": orjson.Fragment(call.arguments)}}
            for i, call in enumerate(message.tool_calls)
        ]
    return {"message": told}


def generate_fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message in an answer of /api/generate."""
    return {"response": message.content, **({"thinking": message.reasoning} if message.reasoning else {})}


Fields = Callable[[Message], dict[str, Any]]


def now() -> str:
    """Return the time as RFC 3339 writes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(since: float, until: float | None = None) -> int:
    """Return a time that passed, of two in CLOCK_MONOTONIC seconds; it is never 0, since clients divide by it."""
    return max(1, round(((time.monotonic() if until is None else until) - since) * 1e9))


def truncated(prompts: Sequence[Prompt]) -> dict[str, bool]:
    """Return the field `truncated` of an answer, if any prompt was cut because it was too long."""
    return {"truncated": True} if any(prompt.is_cut for prompt in prompts) else {}


class LineWriter:
    """Writes one answer, and remembers how far it has come."""

    def __init__(self, model: ServedModel, name: str, fields: Fields, begun: Begun) -> None:
        """Make the writer, when the first token has come. `name` is the one that the client wrote."""
        self._model = model
        self._name = name
        self._fields = fields
        self._begun = begun
        self._arrival = current_request().arrival
        self._first_token = time.monotonic()
        self._num_tokens = 0

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of a stream: one for each part that shows something, the tool calls whole, and the end."""
        last, calls = None, []
        async for last in self._begun.pieces:
            told = Message(content=last.delta.content, reasoning=last.delta.reasoning)
            calls += [last.delta] if last.delta.tool_calls else []
            extras = await self._extras(last)
            if told != Message() or extras:
                yield line(self._answer(told, extras))
        message = checked(joined(calls))
        if message != Message():
            yield line(self._answer(message, {}))
        yield line({**self._answer(Message(), {}), **self._end(last)})

    async def whole(self) -> dict[str, Any]:
        """Return the answer in one object."""
        pieces = [piece async for piece in self._begun.pieces]
        logprobs = [each for piece in pieces for each in piece.piece.logprobs]
        tensors = [piece.piece.tensors for piece in pieces if piece.piece.tensors]
        self._num_tokens = sum(len(piece.piece.token_ids) for piece in pieces)
        rows = self._begun.started.rows
        extras = await self._logprobs(logprobs)
        if rows is not None and tensors:
            extras["attention"] = rows.whole(tensors, len(self._begun.prompt.ids) - 1, JsonArray)
        message = checked(joined([piece.delta for piece in pieces]))
        return {**self._answer(message, extras), **self._end(pieces[-1])}

    def _answer(self, message: Message, extras: dict[str, Any]) -> dict[str, Any]:
        return {"model": self._name, "created_at": now(), **self._fields(message), **extras, "done": False}

    async def _extras(self, arrived: ChatPiece) -> dict[str, Any]:
        """Return the log-probabilities and attention rows of a part."""
        piece, rows = arrived.piece, self._begun.started.rows
        query = len(self._begun.prompt.ids) - 1 + self._num_tokens
        self._num_tokens += len(piece.token_ids)
        extras = await self._logprobs(piece.logprobs) if piece.logprobs else {}
        if rows is not None and piece.tensors:
            extras["attention"] = rows.piece(piece.tensors, query)
        return extras

    async def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        number = self._begun.num_logprobs
        return {} if number is None else {"logprobs": await chat_entries(self._model.tokenizer, logprobs, number)}

    def _end(self, last: ChatPiece | None) -> dict[str, Any]:
        return {
            "done": True,
            "done_reason": "length" if last is not None and last.finish_reason == "length" else "stop",
            **truncated([self._begun.prompt]),
            "total_duration": nanoseconds(self._arrival),
            "load_duration": 0,
            "prompt_eval_count": self._begun.prompt.num_tokens,
            "prompt_eval_duration": nanoseconds(self._arrival, self._first_token),
            "eval_count": self._num_tokens,
            "eval_duration": nanoseconds(self._first_token),
        }


def checked(message: Message) -> Message:
    """Return the message with the calls that have an object as arguments, as in Ollama; calls that the end of the
    answer cut off become text.
    """
    calls, rest = [], [message.content]
    for call in message.tool_calls:
        if _is_object(call):
            # Between its tokens JSON may have line ends, within them it has none.
            calls.append(replace(call, arguments=re.sub(r"[\r\n]", " ", call.arguments)))
        else:
            rest.append(orjson.dumps({"name": call.name, "arguments": call.arguments}).decode())
    return replace(message, content="".join(rest), tool_calls=tuple(calls))


def _is_object(call: ToolCall) -> bool:
    try:
        return isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        return False
