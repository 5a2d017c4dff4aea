"""Server-sent events, and the end of the work for clients that have disconnected.

A client can disconnect before the first token, between two tokens, or before the stream's generator runs. Each case
must free the engine's slot. Independent of the contents of the events.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import lru_cache
from typing import Any, TypeVar

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lightwell.server.http.connection import BODY_WRITER, BodyWriter
from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.errors import ApiError, EngineError, note_error
from lightwell.server.observability.access_log import CLIENT_CLOSED_REQUEST

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_SHORT = 32
"""The JSON of texts of this length or more is not cached: few tokens have as long a text."""
_BREAKS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\u0085\u2028\u2029")


class ClientGone(ApiError):
    """Raised when the client closed the connection: only the metrics and the log see this error."""

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED_REQUEST, "The client closed the connection.", "client_closed_request")


def one_line(data: bytes) -> bytes:
    """Return JSON without line breaks for any reader: httpx, which many clients use, also splits lines at three
    characters that JSON need not escape.
    """
    for char, escaped in _BREAKS:
        if char in data:
            data = data.replace(char, escaped)
    return data


def event(data: bytes, name: str | None = None) -> bytes:
    """Return one event, with its name if it has one; `data` is JSON without newlines."""
    return (b"" if name is None else b"event: %b\n" % name.encode()) + b"data: " + one_line(data) + b"\n\n"


@lru_cache(1 << 16)
def _text_json(text: str) -> bytes:
    return one_line(orjson.dumps(text))


class TokenEvent:
    """A token's event that differs from the next one's only in its text, and in its entry of log-probabilities:
    everything else is made once.
    """

    TEXT = "\0"
    """Placeholder for the text in the chunk that is passed in; no name or id holds it."""
    ENTRY = "\1"
    """Placeholder for the entry, after the text."""

    def __init__(
        self, chunk: dict[str, Any], name: str | None = None, entry: Callable[[int, Any], Any] | None = None
    ) -> None:
        """entry: returns the entry, for JSON, of a token and its log-probabilities; the chunk then has its place."""
        self.entry = entry
        self._before, rest = event(orjson.dumps(chunk), name).split(orjson.dumps(self.TEXT))
        self._between, *self._after = rest.split(orjson.dumps(self.ENTRY))

    def of(self, text: str, entry: Any = None) -> bytes:
        """Return the event of a text; `entry` is written only where the chunk has a place for it."""
        json = _text_json(text) if len(text) < _SHORT else one_line(orjson.dumps(text))
        if not self._after:
            return self._before + json + self._between
        return b"".join((self._before, json, self._between, one_line(orjson.dumps(entry)), *self._after))


def error_event(error: ApiError) -> bytes:
    """Return the last event of a stream that failed."""
    return event(error_json(error), "error")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, `work` is cancelled and ClientGone is raised.

    The request's body must have been read: the next message is then the disconnect. `work` runs in the current task,
    since a task for each request would be a large part of its cost.
    """
    running = asyncio.current_task()
    assert running is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        running.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and not running.uncancel():  # not cancelled by another caller too
            raise ClientGone from None
        raise
    finally:
        watching.cancel()


class EventStream(StreamingResponse):
    """A stream of events. `on_close` is called when the answer is over, however it ends, even if it never began.

    `on_begin` is given a way to write events past the stream, between two of its own, if the server allows it.
    `write_error` writes the last event of a stream that failed.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        on_close: Callable[[], None],
        on_begin: Callable[[BodyWriter], None] | None = None,
        *,
        media_type: str = "text/event-stream",
        write_error: Callable[[ApiError], bytes] = error_event,
    ) -> None:
        self._events = events
        self._write_error = write_error
        super().__init__(
            events,
            media_type=media_type,
            # A buffering proxy would turn a stream into one late answer.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self.on_close = on_close
        self._on_begin = on_begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = scope.get("extensions", {}).get(BODY_WRITER, {}).get("writer")
        if writer is not None and self._on_begin is not None:
            self._on_begin(writer)
        try:
            await unless_disconnected(Request(scope, receive), self._stream(scope, send))
        except ClientGone:
            pass
        except OSError:
            raise ClientDisconnect from None
        finally:
            self.on_close()

    async def _stream(self, scope: Scope, send: Send) -> None:
        """Send the answer. Its last event ends it: a separate packet after it would wake the client again."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        more = True
        async for data in self._with_errors(scope):
            more = not data.endswith(DONE)
            await send({"type": "http.response.body", "body": data, "more_body": more})
        if more:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_errors(self, scope: Scope) -> AsyncIterator[bytes]:
        try:
            async for data in self._events:
                yield data
            return
        except ApiError as raised:
            error = raised
        except Exception:
            logger.exception("a stream failed")
            error = EngineError("The server failed on this stream; see its log.", code="internal_error")
        note_error(scope, error)
        yield self._write_error(error)
