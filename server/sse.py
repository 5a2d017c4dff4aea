"""Server-sent events, and the end of work for clients that left.

A client can leave at any stage: before the first token, between two, before the stream's generator ever ran. Each
stage must free the engine's slot; this file knows how, and nothing of what is generated.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, EngineError, error_json, note_error
from server.http_protocol import BODY_WRITER, BodyWriter
from server.request_log import CLIENT_CLOSED_REQUEST

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGone(ApiError):
    """The client closed the connection: nobody reads this error but the metrics and the log."""

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED_REQUEST, "The client closed the connection.", "client_closed_request")


def event(data: bytes) -> bytes:
    """One event; `data` holds no newline."""
    return b"data: " + data + b"\n\n"


class TokenEvent:
    """The event of a token where only its text tells it from the next one's: made once, all but the text."""

    TEXT = "\0"
    """Stands for the text in the chunk that is given; no name or id holds it."""

    def __init__(self, chunk: dict[str, Any]) -> None:
        self._before, self._after = event(orjson.dumps(chunk)).split(orjson.dumps(self.TEXT))

    def of(self, text: str) -> bytes:
        return self._before + orjson.dumps(text) + self._after


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that failed."""
    note_error(error)
    return b"event: error\n" + event(error_json(error))


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client leaves first: then ClientGone is raised.

    The request's body must have been read: what comes after it can only be the disconnect.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """A stream of events. `on_close` is called when the answer is over, however it ends, even if it never began.

    `on_begin` is told how events may be written past the stream, between two of its own, where the server lets them.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        on_close: Callable[[], None],
        on_begin: Callable[[BodyWriter], None] | None = None,
    ) -> None:
        super().__init__(
            _with_errors(events),
            media_type="text/event-stream",
            # Proxies that buffer would turn a stream into one late answer.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self.on_close = on_close
        self._on_begin = on_begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = scope.get("extensions", {}).get(BODY_WRITER, {}).get("writer")
        if writer is not None and self._on_begin is not None:
            self._on_begin(writer)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_close()


async def _with_errors(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events; a failure becomes the last of them, never a silent end."""
    try:
        async for data in events:
            yield data
    except ApiError as error:
        yield error_event(error)
    except Exception:
        logger.exception("a stream failed")
        yield error_event(EngineError("The server failed on this stream; its log says why.", code="internal_error"))
