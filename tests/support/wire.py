"""A small HTTP/1.1 client over asyncio streams: one connection that can leave at any moment, gently or with a reset.

It has the details that load generators need and httpx hides: the time of the head, each piece of a body, a small
receive buffer, RST. It works with any route.
"""

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

_MODEL_NAME = re.compile(r'model_name="[^"]*",?')


class WireError(RuntimeError):
    """The connection ended where an answer should have gone on."""


@dataclass(frozen=True)
class Head:
    """Status line and headers of an answer, the headers' names in lower case."""

    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    head: Head
    body: bytes


class Wire:
    """One connection: `send`, then `read_head`, then `pieces` or `read_body`; it can be used again after that."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, host: str, port: int, receive_buffer: int | None = None) -> "Wire":
        """Open a connection; one with a small `receive_buffer` (bytes) makes the server wait for a slow reader soon."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
        except BaseException:
            connection.close()
            raise
        return cls(*await asyncio.open_connection(sock=connection, limit=receive_buffer or 1 << 16))

    async def ask(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and read its answer."""
        await self.send(method, path, content, headers)
        head = await self.read_head()
        return Answer(head, await self.read_body(head))

    async def send(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the whole request, its length announced."""
        self.writer.write(_request_head(method, path, content, headers) + content)
        await self.writer.drain()

    async def send_part(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str] | None, part: float
    ) -> None:
        """Send the head, and only the first `part` (below 1) of the body."""
        self.writer.write(_request_head(method, path, content, headers) + content[: int(part * len(content))])
        await self.writer.drain()

    async def read_head(self) -> Head:
        """Read the head. Raises WireError for an end before the head's."""
        try:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError as error:
            raise WireError(f"the connection ended in the head of an answer, after {error.partial!r:.80}") from error
        pairs = [line.partition(":") for line in lines[1:] if line]
        return Head(int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs})

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """Return the body as it comes. Raises WireError for an end before the body's."""
        try:
            if head.headers.get("transfer-encoding") == "chunked":
                while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                    yield (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readuntil(b"\r\n")
                return
            left = int(head.headers.get("content-length", "0"))
            while left:
                piece = await self.reader.read(min(left, 1 << 16))
                if not piece:
                    raise WireError(f"the connection ended {left} bytes before the answer")
                left -= len(piece)
                yield piece
        except asyncio.IncompleteReadError as error:
            raise WireError("the connection ended between two chunks of an answer, or within one") from error

    async def read_body(self, head: Head) -> bytes:
        """Read the whole body."""
        return b"".join([piece async for piece in self.pieces(head)])

    def close(self) -> None:
        """Close with FIN; RST instead where data came that was not read."""
        self.writer.close()

    def reset(self) -> None:
        """Close with RST, as a client does when its process or machine fails."""
        connection = self.writer.get_extra_info("socket")
        if connection.fileno() >= 0:  # not closed already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def _request_head(method: str, path: str, content: bytes, headers: Mapping[str, str] | None) -> bytes:
    own = {"Host": "lightwell", "Content-Length": str(len(content))}
    lines = [f"{name}: {value}\r\n" for name, value in {**own, **(headers or {})}.items()]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


JSON_HEADERS = {"Content-Type": "application/json"}


def json_content(body: Any) -> bytes:
    """Return a body as JSON in UTF-8."""
    return json.dumps(body).encode()


def samples(text: str) -> dict[str, float]:
    """Return a Prometheus exposition as values by name and labels, in its own notation without the label of the model's
    name, which every sample has: `a_total{b="c"}`.
    """
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {_MODEL_NAME.sub("", name).replace("{}", "").replace(",}", "}"): float(value) for name, _, value in lines}


async def scrape(host: str, port: int) -> dict[str, float]:
    """Return `samples` of a server's /metrics, over a connection of its own."""
    wire = await Wire.open(host, port)
    values = samples((await wire.ask("GET", "/metrics")).body.decode())
    wire.close()
    return values
