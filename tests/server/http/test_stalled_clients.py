"""Clients that read nothing of an answer, or read it slowly. The tests move the clock of the event loop."""

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest
from starlette.types import Receive, Scope, Send

from lightwell.server.http.connection import HttpProtocol
from lightwell.server.http.connection_limits import ConnectionLimits, EndReason, OnEnd, http_protocol
from tests.server.bare_server import PATIENCE, Clock, app, serving

TIMEOUT = 1000.0
"""Seconds of `--send-timeout` and `--receive-timeout`."""
STEP = TIMEOUT / 8
LARGE = 32 << 20
"""Bytes of an answer that fits in no socket's buffers."""


class LargeAnswer:
    """An application that notes whether a client was given up, and whether the application itself was notified."""

    def __init__(self) -> None:
        self.count = 0
        self.app_ended = asyncio.Event()

    def note(self, reason: EndReason) -> None:
        assert reason == "stalled"
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


def reading(on_end: OnEnd) -> Callable[..., HttpProtocol]:
    """Return the protocol of a server that gives clients `TIMEOUT` seconds to read something."""
    return http_protocol(ConnectionLimits(send_timeout=TIMEOUT), on_end)


def small_client(port: int, path: bytes) -> socket.socket:
    """Return a client that has requested the path, with a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    client.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    return client


@pytest.mark.parametrize("path", [b"/pieces", b"/whole"])
async def test_a_client_that_reads_nothing_is_given_up(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    stalls, clock = LargeAnswer(), Clock()
    with caplog.at_level(logging.WARNING):
        async with serving(stalls, reading(stalls.note)) as port:
            client = small_client(port, path)
            await clock.move_until(lambda: stalls.count, STEP, 4 * TIMEOUT)
            assert clock.moved >= TIMEOUT
            await asyncio.wait_for(stalls.app_ended.wait(), PATIENCE)
            address = ":".join(map(str, client.getsockname()))
            client.close()
    assert f"closed the connection of {address}: it took nothing of its answer for 1000 s" in caplog.text


async def test_a_client_that_reads_slowly_gets_its_whole_answer() -> None:
    stalls, clock = LargeAnswer(), Clock()
    async with serving(stalls, reading(stalls.note)) as port:
        loop, client = asyncio.get_running_loop(), small_client(port, b"/pieces")
        read = read_since_move = 0
        while read < LARGE:
            piece = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), PATIENCE)
            assert piece, f"the answer ended after {read} bytes"
            read += len(piece)
            read_since_move += len(piece)
            if read_since_move > LARGE / 16:
                read_since_move = 0
                await clock.move(TIMEOUT / 2)
        client.close()
    assert clock.moved > 3 * TIMEOUT
    assert stalls.count == 0


async def test_a_connection_that_waits_for_its_next_request_is_not_stalled() -> None:
    stalls, clock = LargeAnswer(), Clock()
    async with serving(app, reading(stalls.note)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nok"), PATIENCE)
            assert answer.startswith(b"HTTP/1.1 200")
            for _ in range(8):
                await clock.move(TIMEOUT / 2)
        writer.close()
    assert stalls.count == 0
