"""Limits of connections: clients that do not read, that send slowly or after an answer, or that are too many.

No test waits for a timeout: it moves the clock of the event loop. The timeouts are so long that only a moved clock
reaches them.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from lightwell.server.http.connection import MAX_HEAD_BYTES, HttpProtocol
from lightwell.server.http.connection_limits import (
    MIN_BODY_RATE,
    SPARE_CONNECTIONS,
    ConnectionLimits,
    EndReason,
    http_protocol,
)
from tests.server.bare_server import PATIENCE, Clock, app, exchange, serving

TIMEOUT = 1000.0
"""Seconds of `--send-timeout` and `--receive-timeout`."""
STEP = TIMEOUT / 8


class Counts:
    """Numbers of ended connections, by reason."""

    def __init__(self) -> None:
        self.slow = self.refused = 0
        self.clock = Clock()
        self.slow_after = 0.0
        """Seconds by which the clock had been moved when a slow connection was ended."""

    def note(self, reason: EndReason) -> None:
        if reason == "slow":
            self.slow += 1
            self.slow_after = self.clock.moved
        else:
            assert reason == "refused"
            self.refused += 1

    def protocol(self, **limits: Any) -> Callable[..., HttpProtocol]:
        return http_protocol(ConnectionLimits(**limits), self.note)


async def trickle(clock: Clock, port: int, start: bytes, piece: bytes) -> bytes:
    """Send `start`, then `piece` after each `STEP` until the connection ends, and return the bytes received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    writer.write(start)

    def is_answered() -> bool:
        with contextlib.suppress(ConnectionError):
            writer.write(piece)
        return answer.done()

    await clock.move_until(is_answered, STEP, 4 * TIMEOUT)
    writer.close()
    try:
        return await answer
    except ConnectionResetError:
        return b""


POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n", b"x-a: b\r\n"),
        (b"GET /", b"a"),
        (b"", b"\r\n"),
        (POST, b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
    ],
    ids=["headers", "url", "blank lines", "body", "chunks"],
)
async def test_a_request_that_trickles_in_is_ended_with_408(start: bytes, piece: bytes) -> None:
    counts = Counts()
    async with serving(app, counts.protocol(receive_timeout=TIMEOUT)) as port:
        answer = await trickle(counts.clock, port, start, piece)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert counts.slow == 1
    assert TIMEOUT <= counts.slow_after <= 1.5 * TIMEOUT


async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer before the body came."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("application", "start", "piece", "num_answers"),
    [(app, b"", b"", 0), (app, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n", 1), (hasty, POST, b"x", 1)],
    ids=["nothing", "blank lines after an answer", "a body after its answer"],
)
async def test_what_is_no_request_keeps_no_connection_open(
    application: Any, start: bytes, piece: bytes, num_answers: int
) -> None:
    counts = Counts()
    async with serving(application, counts.protocol(receive_timeout=TIMEOUT)) as port:
        answer = await trickle(counts.clock, port, start, piece)
    assert (answer.count(b"HTTP/1.1"), counts.slow) == (num_answers, 1)


async def test_a_large_body_that_comes_steadily_has_more_time() -> None:
    counts = Counts()
    size, num_pieces, step = 1 << 20, 16, TIMEOUT / 8
    received = 0

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        async def counted() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        await app(scope, counted, send)

    assert 1.9 * TIMEOUT < num_pieces * step < TIMEOUT + num_pieces * size / MIN_BODY_RATE
    async with serving(reads, counts.protocol(receive_timeout=TIMEOUT)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (size * num_pieces))
        for sent in range(size, size * num_pieces + 1, size):
            writer.write(bytes(size))
            async with asyncio.timeout(PATIENCE):
                while received < sent:
                    await asyncio.sleep(0)
            if sent < size * num_pieces:
                await counts.clock.move(step)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).startswith(b"HTTP/1.1 200")
        writer.close()
    assert counts.slow == 0


async def test_an_application_that_takes_long_is_not_the_clients_fault() -> None:
    is_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def lazy(scope: Scope, receive: Receive, send: Send) -> None:
        is_begun.set()
        await may_go_on.wait()
        await app(scope, receive, send)

    counts = Counts()
    body = bytes(8 << 20)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with serving(lazy, counts.protocol(receive_timeout=TIMEOUT)) as port:
        for parts in ([b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"], [head, body]):
            is_begun.clear()
            may_go_on.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.writelines(parts)
            await asyncio.wait_for(is_begun.wait(), PATIENCE)
            for _ in range(24):
                await counts.clock.move(STEP)
            may_go_on.set()
            assert (await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)).startswith(b"HTTP/1.1 200")
            writer.close()
    assert counts.slow == 0


class Answering:
    """An application that sends one chunk at once and the last chunk when `may_end` is set."""

    def __init__(self) -> None:
        self.may_end, self.gone = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive()).get("more_body")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        ends = asyncio.create_task(self.may_end.wait())
        leaves = asyncio.ensure_future(receive())
        await asyncio.wait([ends, leaves], return_when=asyncio.FIRST_COMPLETED)
        if leaves.done():
            self.gone.set()
        await send({"type": "http.response.body", "body": b"last"})


async def test_a_request_that_trickles_in_behind_an_answer_is_ended_after_it() -> None:
    counts, answering = Counts(), Answering()
    async with serving(answering, counts.protocol(receive_timeout=TIMEOUT)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /next")
        await asyncio.wait_for(reader.readuntil(b"first\r\n"), PATIENCE)
        for _ in range(24):
            await counts.clock.move(STEP)
        assert counts.slow == 0
        answering.may_end.set()
        answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), PATIENCE)
        ended = asyncio.create_task(reader.read())
        await counts.clock.move_until(ended.done, STEP, 4 * TIMEOUT)
        rest = ended.result()
        writer.close()
    assert answer == b"4\r\nlast\r\n0\r\n\r\n"
    assert rest.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert counts.slow == 1


@pytest.mark.parametrize(
    "behind", [b"EHLO example\r\n\r\n", b"GET /" + b"a" * 2 * MAX_HEAD_BYTES], ids=["no HTTP", "a large head"]
)
async def test_what_is_refused_behind_an_answer_is_not_told_in_the_middle_of_it(behind: bytes) -> None:
    answering = Answering()
    async with serving(answering, HttpProtocol) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"first\r\n"), PATIENCE)
        writer.write(behind)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        await asyncio.wait_for(answering.gone.wait(), PATIENCE)
        writer.close()


async def test_too_many_connections_are_refused_but_for_probes() -> None:
    counts = Counts()
    limits = {"max_connections": 2, "spare_paths": (b"/health",)}
    request = b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serving(app, counts.protocol(**limits)) as port, contextlib.AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(connected(port, request % b"/"))
        head, body = await exchange(port, request % b"/v1/models")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 1\r\n" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        head, body = await exchange(port, request % b"/health/live")
        assert (head[:12], body) == (b"HTTP/1.1 200", b"ok")
        assert b"connection: close" in head
    assert counts.refused == 1


async def test_spare_connections_that_say_nothing_make_room_again() -> None:
    counts = Counts()
    limits = {"max_connections": 1, "spare_paths": (b"/health",)}
    request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serving(app, counts.protocol(**limits)) as port, contextlib.AsyncExitStack() as held:
        silent = [
            await held.enter_async_context(connected(port, request if i == 0 else b""))
            for i in range(1 + SPARE_CONNECTIONS)
        ]
        assert (await exchange(port, request))[0].startswith(b"HTTP/1.1 503")  # not even a spare one is left
        await counts.clock.move(1.0)
        for reader in silent[1:]:
            assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 503")
        async with asyncio.timeout(PATIENCE):  # they stay open for a second, so that clients can read why
            await counts.clock.move(1.0)
            while (await exchange(port, request))[1] != b"ok":
                await asyncio.sleep(0.01)
    assert counts.refused > SPARE_CONNECTIONS


@asynccontextmanager
async def connected(port: int, request: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Open a connection that stays open; with a request, after its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if request:
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    yield reader
    writer.close()
