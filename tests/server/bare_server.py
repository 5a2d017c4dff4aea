"""A server of our HTTP protocol around a bare application, one exchange over a socket, and a clock that tests move."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import Receive, Scope, Send

from lightwell.server.http.connection import HttpProtocol

PATIENCE = 300.0
"""Seconds after which an answer is taken to never come; only a failure waits that long."""
_ROUNDS = 3
"""Rounds of the event loop after each move of the clock: sockets are read, timers become due, their callbacks run."""


class Clock:
    """Clock of the running event loop, which a test can move forward so that timers become due at once.

    A test of a timeout then needs no wait and does not depend on the speed of the machine. Timers of the test itself
    (`asyncio.sleep`, `asyncio.timeout`) move too.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._ahead = 0.0
        loop.time = lambda: real() + self._ahead

    @property
    def moved(self) -> float:
        """Seconds by which the clock was moved."""
        return self._ahead

    async def move(self, seconds: float) -> None:
        """Move the time forward by `seconds`, and run the loop until the callbacks that are due have run."""
        self._ahead += seconds
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)

    async def move_until(self, condition: Callable[[], object], step: float, most: float) -> None:
        """Move the time step by step until the condition is true, by `most` seconds at most.

        After each step the loop waits for a real millisecond, and after the last one for `PATIENCE` seconds at most:
        bytes on their way between two sockets arrive.
        """
        end, give_up = self._ahead + most, time.monotonic() + PATIENCE
        while not condition():
            assert self._ahead < end or time.monotonic() < give_up, f"it did not happen within {most} s"
            await self.move(step if self._ahead < end else 0.0)
            time.sleep(0.001)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole request, and answer "ok"."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(app: Callable[..., Awaitable[None]], protocol: Callable[..., HttpProtocol]) -> AsyncIterator[int]:
    """Run a server on a free port, and yield the port."""
    config = uvicorn.Config(
        app, port=0, http=protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1_000_000
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE):
        while not server.started:
            await asyncio.sleep(0.001)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a server; all that is done with the connection may take `PATIENCE` seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE):
        yield reader, writer
    writer.close()


async def exchange(port: int, *parts: bytes) -> tuple[bytes, bytes]:
    """Send the parts, and return head and body of the answer; a body without a length ends with the connection."""
    async with connection(port) as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        body = await (reader.readexactly(int(length)) if length else reader.read())
    return head, body
