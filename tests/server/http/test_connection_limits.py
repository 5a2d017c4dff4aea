"""What the server does about clients that do not read, that send slowly or after an answer, or that are too many."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from server.http.connection import MAX_HEAD_BYTES, HttpProtocol
from server.http.connection_limits import SPARE_CONNECTIONS, ConnectionEvents, ConnectionLimits, http_protocol
from tests.server.bare_server import app, exchange, serving

SEND_TIMEOUT = 1.0
LARGE = 32 << 20
"""Bytes of an answer that fits in no socket's buffers."""


class LargeAnswer:
    """An application that notes whether a client was given up, and whether the application itself was notified."""

    def __init__(self) -> None:
        self.count = 0
        self.app_ended = asyncio.Event()

    def note(self) -> None:
        self.count += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send in pieces, or at once for /whole; end early when the client is gone."""
        size = LARGE if scope["path"] == "/whole" else 1 << 18
        gone = asyncio.create_task(self._gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        for sent in range(0, LARGE, size):
            if not gone.done():
                body = {"type": "http.response.body", "body": bytes(size), "more_body": sent + size < LARGE}
                await send(body)
        gone.cancel()
        self.app_ended.set()

    async def _gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def reading_in(seconds: float, on_stalled: Callable[[], None]) -> Callable[..., HttpProtocol]:
    """Return the protocol of a server whose clients have so long to read something."""
    return http_protocol(ConnectionLimits(send_timeout=seconds), ConnectionEvents(on_stalled=on_stalled))


def small_client(port: int, path: bytes) -> socket.socket:
    """Return a client that has requested the path, and holds little of what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    client.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    return client


@pytest.mark.parametrize("path", [b"/pieces", b"/whole"])
async def test_a_client_that_reads_nothing_is_given_up(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    stalls = LargeAnswer()
    with caplog.at_level(logging.WARNING):
        async with serving(stalls, reading_in(SEND_TIMEOUT, stalls.note)) as port:
            client = small_client(port, path)
            async with asyncio.timeout(30):
                await stalls.app_ended.wait()
                while not stalls.count:
                    await asyncio.sleep(0.01)
            address = ":".join(map(str, client.getsockname()))
            client.close()
    assert f"closed the connection of {address}: it took nothing of its answer for 1 s" in caplog.text


async def test_a_client_that_reads_slowly_gets_its_whole_answer() -> None:
    stalls = LargeAnswer()
    async with serving(stalls, reading_in(SEND_TIMEOUT, stalls.note)) as port:
        loop, client = asyncio.get_running_loop(), small_client(port, b"/pieces")
        begun, read = loop.time(), 0
        while read < LARGE:
            if loop.time() - begun < 3 * SEND_TIMEOUT:
                await asyncio.sleep(SEND_TIMEOUT / 10)
            piece = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 30)
            assert piece, f"the answer ended after {read} bytes"
            read += len(piece)
        client.close()
    assert stalls.count == 0


async def test_a_connection_that_waits_for_its_next_request_is_not_stalled() -> None:
    stalls = LargeAnswer()
    async with serving(app, reading_in(0.02, stalls.note)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.1)
        writer.close()
    assert stalls.count == 0


RECEIVE_TIMEOUT = 0.4


class Counts:
    """How many connections were ended, and for what."""

    def __init__(self) -> None:
        self.slow = self.refused = 0

    def note_slow(self) -> None:
        self.slow += 1

    def note_refused(self) -> None:
        self.refused += 1

    def protocol(self, **limits: Any) -> Callable[..., HttpProtocol]:
        events = ConnectionEvents(on_slow=self.note_slow, on_refused=self.note_refused)
        return http_protocol(ConnectionLimits(**limits), events)


async def trickle(port: int, start: bytes, piece: bytes, pause: float) -> bytes:
    """Return what comes back on a connection on which a piece is sent after each pause, until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    writer.write(start)
    async with asyncio.timeout(30):
        while not answer.done():
            with contextlib.suppress(ConnectionError):
                writer.write(piece)
            await asyncio.wait([answer], timeout=pause)
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
    async with serving(app, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        answer = await trickle(port, start, piece, RECEIVE_TIMEOUT / 8)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert counts.slow == 1


async def test_a_connection_that_says_nothing_is_closed() -> None:
    counts = Counts()
    async with serving(app, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        assert await trickle(port, b"", b"", 30) == b""
    assert counts.slow == 1


async def test_blank_lines_between_requests_keep_no_connection_open() -> None:
    counts = Counts()
    async with serving(app, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        answer = await trickle(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n", RECEIVE_TIMEOUT / 8)
    assert answer.startswith(b"HTTP/1.1 200")
    assert counts.slow == 1


async def test_a_body_that_goes_on_after_its_answer_is_ended() -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    counts = Counts()
    async with serving(hasty, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        answer = await trickle(port, POST, b"x", RECEIVE_TIMEOUT / 8)
    assert answer.count(b"HTTP/1.1") == 1
    assert counts.slow == 1


async def test_a_large_body_that_comes_steadily_has_more_time() -> None:
    counts = Counts()
    size, num_pieces = 1 << 16, 16
    async with serving(app, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (size * num_pieces))
        begun = asyncio.get_running_loop().time()
        for _ in range(num_pieces):
            writer.write(bytes(size))
            await asyncio.sleep(RECEIVE_TIMEOUT / 6)
        assert asyncio.get_running_loop().time() - begun > 2 * RECEIVE_TIMEOUT
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).startswith(b"HTTP/1.1 200")
        writer.close()
    assert counts.slow == 0


async def test_an_application_that_takes_long_is_not_the_clients_fault() -> None:
    async def lazy(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(3 * RECEIVE_TIMEOUT)
        await app(scope, receive, send)

    counts = Counts()
    async with serving(lazy, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        assert (await exchange(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"))[1] == b"ok"
        body = bytes(8 << 20)
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        assert (await exchange(port, head, body))[1] == b"ok"
    assert counts.slow == 0


class Answering:
    """An application that answers in chunks, the first of which is written at once and the last when it may end."""

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
    async with serving(answering, counts.protocol(receive_timeout=RECEIVE_TIMEOUT)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /next")
        await asyncio.wait_for(reader.readuntil(b"first\r\n"), 30)
        await asyncio.sleep(3 * RECEIVE_TIMEOUT)
        answering.may_end.set()
        answer, _, rest = (await asyncio.wait_for(reader.read(), 30)).partition(b"0\r\n\r\n")
        writer.close()
    assert answer == b"4\r\nlast\r\n"
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
        await asyncio.wait_for(reader.readuntil(b"first\r\n"), 30)
        writer.write(behind)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        await asyncio.wait_for(answering.gone.wait(), 30)
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
        for reader in silent[1:]:
            assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 503")
        async with asyncio.timeout(30):  # they linger for a moment, so that they can read why
            while (await exchange(port, request))[1] != b"ok":
                await asyncio.sleep(0.05)
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
