"""Forwarding of requests from an API process to the main process, over HTTP on a Unix socket."""

import asyncio
import contextlib
import socket
from collections.abc import Set
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.errors import Unavailable

_NOT_FORWARDED = frozenset(
    b"connection keep-alive upgrade expect transfer-encoding x-forwarded-for x-forwarded-proto date".split()
)
_PIECE = 1 << 16


class Forwarding:
    """ASGI application: runs `app` for the local routes, and sends other requests to the socket at `path`."""

    def __init__(self, app: ASGIApp, local: Set[tuple[str, str]], path: str) -> None:
        """local: methods and paths of the routes of this process."""
        self._app = app
        self._local = local
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], _path_of(scope)) in self._local:
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope["method"] == "HEAD")
        with socket.socket(socket.AF_UNIX) as connected:
            connected.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connected, self._path)
            except OSError:
                await _refuse(send)
                return
            asking = asyncio.create_task(_ask(scope, receive, connected, answer))
            try:
                await _pass_on(connected, answer, send)
            finally:
                asking.cancel()
                await asyncio.wait([asking])
        if not answer.is_begun:
            await _refuse(send)
        elif not answer.is_over:
            raise ConnectionError("the answer of the main process broke off")


async def _pass_on(connected: socket.socket, answer: "_Answer", send: Send) -> None:
    """Send the answer until its end, or the end of the connection."""
    with contextlib.suppress(OSError, httptools.HttpParserError):
        while not answer.is_over and (piece := await asyncio.get_running_loop().sock_recv(connected, _PIECE)):
            for message in answer.read(piece):
                await send(message)


class _Answer:
    """The answer, as ASGI messages. The parser calls the methods that begin with `on_`."""

    def __init__(self, is_head: bool) -> None:
        self._is_head = is_head
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[Message] = []
        self.is_begun = self.is_over = False

    def read(self, piece: bytes) -> list[Message]:
        """Return the messages that a piece completes. Raises HttpParserError."""
        self._parser.feed_data(piece)
        messages, self._messages = self._messages, []
        return messages

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _NOT_FORWARDED:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_begun = True
        status = self._parser.get_status_code()
        self._messages.append({"type": "http.response.start", "status": status, "headers": self._headers})
        if self._is_head:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._messages.append({"type": "http.response.body", "body": b""})


def _path_of(scope: Scope) -> str:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path


async def _ask(scope: Scope, receive: Receive, connected: socket.socket, answer: _Answer) -> None:
    """Send the request; end the connection if the client leaves.

    The answer may come before the end of the body. So errors of this direction do not end the other one, as they do
    with the streams of asyncio.
    """
    loop = asyncio.get_running_loop()
    target = scope["raw_path"].removeprefix(scope.get("root_path", "").encode())
    target += b"?" + scope["query_string"] if scope["query_string"] else b""
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_FORWARDED]
    is_chunked = all(name != b"content-length" for name, _ in headers) and scope["method"] not in ("GET", "HEAD")
    headers += [(b"connection", b"close"), (b"x-forwarded-proto", scope["scheme"].encode())]
    if is_chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    if scope["client"] is not None:
        headers.append((b"x-forwarded-for", scope["client"][0].encode()))
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target), *(b"%b: %b" % each for each in headers)]
    piece, is_whole = b"\r\n".join([*lines, b"", b""]), False
    while True:
        with contextlib.suppress(OSError):
            await loop.sock_sendall(connected, piece)
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            answer.is_begun = answer.is_over = True  # the rest has no reader
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            return
        piece = message.get("body", b"")
        if is_chunked and not is_whole:
            is_whole = not message.get("more_body", False)
            piece = (b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"") + (b"0\r\n\r\n" if is_whole else b"")


async def _refuse(send: Send) -> None:
    error = Unavailable("The server is shutting down.", code="shutting_down", retry_after=1)
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error_json(error)})
