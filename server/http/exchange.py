"""A request that is sent to an ASGI application in this process, and its answer. Independent of the application."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The parts of a request before its body."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]


class Exchange:
    """One request and its answer. All methods run in the thread of the routes."""

    def __init__(self, head: RequestHead, body: bytes, marks: Mapping[str, Any] = MappingProxyType({})) -> None:
        """marks: further entries of the ASGI scope, which no client can send."""
        self._head = head
        self._marks = marks
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | None = body
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()
        self._chunks: list[bytes] = []
        self._is_over = False
        self._is_whole = False
        self._left = asyncio.Event()
        self._running: asyncio.Future[None] | None = None

    async def begin(self, app: ASGIApp) -> None:
        """Run the application until the answer's status is known. Raises its exception if there is none."""
        head = self._head
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": head.method,
            "scheme": "http",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": None,
            "server": ("lightwell", 80),
            **self._marks,
        }
        self._running = asyncio.ensure_future(app(scope, self._receive, self._send))
        self._running.add_done_callback(self._note_end)
        try:
            await self._begun.wait()
        except asyncio.CancelledError:  # the caller was interrupted
            self._left.set()
            raise
        if not self.status:
            self._running.result()
            raise RuntimeError("the route ended without an answer")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    async def read(self) -> bytes:
        """Return the bytes of the answer that have come since the last call, after waiting for the first, or b"" at
        its end. Raises ConnectionError for an answer that broke off.
        """
        while not self._chunks and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        if not self._chunks and not self._is_whole:
            raise ConnectionError("the answer broke off")
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    async def leave(self) -> None:
        """End an unfinished request, as a client does that closes its connection."""
        self._left.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            self._begun.set()
        elif message["type"] == "http.response.body":
            if body := message.get("body"):
                self._chunks.append(bytes(body))
            self._is_over = self._is_whole = not message.get("more_body", False)
            self._changed.set()

    def _note_end(self, task: "asyncio.Future[None]") -> None:
        self._is_over = True
        self._begun.set()
        self._changed.set()
        if not task.cancelled():
            task.exception()  # it is raised by `begin`, or has been logged with a status of 500
