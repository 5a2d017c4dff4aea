"""A server of our HTTP protocol around a bare application, and one exchange with it over a socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import Receive, Scope, Send

from server.http.connection import HttpProtocol


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(app: Callable[..., Awaitable[None]], protocol: Callable[..., HttpProtocol]) -> AsyncIterator[int]:
    """Run a server on a free port, and yield the port."""
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None, port=0)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.001)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def exchange(port: int, *parts: bytes) -> tuple[bytes, bytes]:
    """Return head and body of the answer to what is sent; a body without a length ends with the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    body = await asyncio.wait_for(reader.readexactly(int(length)) if length else reader.read(), 10)
    writer.close()
    return head, body
