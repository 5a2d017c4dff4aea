"""Forwarding of requests from API processes to the main process: the messages of ASGI over a Unix socket."""

import asyncio
import contextlib
import logging
from collections.abc import Set
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightwell.server.http.error_shapes import error_response
from lightwell.server.http.errors import Unavailable

logger = logging.getLogger(__name__)

_FIELDS = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client",
    "server",
)  # fmt: skip
"""Parts of a request's ASGI scope that are forwarded."""


class Forwarding:
    """ASGI application: runs `app` for the local routes, and forwards other requests to the socket at `path`."""

    def __init__(self, app: ASGIApp, local: Set[tuple[str, str]], path: str) -> None:
        """local: methods and paths of the routes of this process."""
        self._app = app
        self._local = local
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or (scope["method"], path) in self._local:
            await self._app(scope, receive, send)
            return
        try:
            link = _Link(*await asyncio.open_unix_connection(self._path))
        except OSError:
            error = Unavailable("The server is shutting down.", code="shutting_down", retry_after=1)
            await error_response(error, path=path)(scope, receive, send)
            return
        with contextlib.closing(link.writer):
            await link.write({name: scope.get(name) for name in _FIELDS})
            asking = asyncio.create_task(_pass_on(receive, link))
            try:
                while (message := await link.read()) is not None:
                    await send(message)
            finally:
                asking.cancel()


async def answer_forwarded(app: ASGIApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one forwarded request with the application of the main process."""
    link = _Link(reader, writer)

    async def receive() -> Message:
        try:
            message: Message = await link.read()
            return message
        except (EOFError, ConnectionError):
            return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        with contextlib.suppress(ConnectionError):  # the client is gone: `receive` reports it
            await link.write(message)

    with contextlib.closing(writer), contextlib.suppress(EOFError, ConnectionError):
        scope = await link.read()
        headers, client = map(tuple, scope["headers"]), scope["client"]
        try:
            await app({**scope, "asgi": {"version": "3.0"}, "headers": [*headers], "client": client}, receive, send)
        except Exception:  # without the end of the answer, the API process answers 500
            logger.exception("a forwarded request failed")
            return
        await link.write(None)
        while await reader.read(1 << 16):  # the other end closes first: the rest of a body must not break the answer
            pass


class _Link:
    """Messages over a connection: four bytes of length, and msgpack."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._size: int | None = None
        """Length of the next message, if it was read: a reader may be cancelled after that."""

    async def read(self) -> Any:
        """Return the next message. Raises EOFError and ConnectionError at the end of the connection."""
        if self._size is None:
            self._size = int.from_bytes(await self._reader.readexactly(4))
        content = await self._reader.readexactly(self._size)
        self._size = None
        return msgspec.msgpack.decode(content)

    async def write(self, message: Any) -> None:
        """Send a message. Raises ConnectionError."""
        content = msgspec.msgpack.encode(message)
        self.writer.write(len(content).to_bytes(4) + content)
        await self.writer.drain()


async def _pass_on(receive: Receive, link: _Link) -> None:
    """Send the body of a request, and the end of its connection."""
    with contextlib.suppress(ConnectionError):
        message: Message = {"type": ""}
        while message["type"] != "http.disconnect":
            message = await receive()
            await link.write(message)
