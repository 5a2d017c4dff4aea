"""Connections of any route: large heads, bytes that are no HTTP, and chunks that bypass the application."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from lightwell.server.http.connection import BODY_WRITER, MAX_HEAD_BYTES, HttpProtocol
from tests.server.bare_server import PATIENCE, app, connection, exchange, serving


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving(app, HttpProtocol) as port:
        yield port


async def test_a_plain_request_passes_with_a_body_larger_than_any_head(port: int) -> None:
    body = b"x" * (4 * MAX_HEAD_BYTES)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert (await exchange(port, head, body))[1] == b"ok"
    assert (await exchange(port, head + body))[1] == b"ok"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * (MAX_HEAD_BYTES + 1),
        b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["finished", "endless", "URL"],
)
async def test_a_head_that_is_too_large_is_answered_431(port: int, request_bytes: bytes) -> None:
    head, body = await exchange(port, request_bytes)
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "head_too_large"


@pytest.mark.parametrize(
    ("request_line", "hosts", "status"),
    [
        (b"GET / HTTP/1.1", (), 400),
        (b"GET http://x/ HTTP/1.1", (), 400),
        (b"GET / HTTP/1.1", (b"Host: x", b"host: x"), 400),
        (b"GET / HTTP/1.0", (b"HOST: x", b"host: y"), 400),
        (b"GET / HTTP/1.1", (b"HOST: x",), 200),
        (b"GET / HTTP/1.1", (b"host:",), 200),
        (b"GET / HTTP/1.0", (), 200),
    ],
)
async def test_a_request_has_one_host_header(
    port: int, request_line: bytes, hosts: tuple[bytes, ...], status: int
) -> None:
    head, body = await exchange(port, b"\r\n".join([request_line, *hosts, b"", b""]))
    assert head.startswith(b"HTTP/1.1 %d " % status)
    if status == 400:
        error = json.loads(body)["error"]
        assert (error["code"], f"has {len(hosts)} Host headers" in error["message"]) == ("http_invalid", True)


async def test_a_client_that_closes_its_sending_half_counts_as_gone() -> None:
    """Check that such a client ends its request. Until the server writes to it, it looks the same as a client that
    closed both halves.
    """
    asked, gone = asyncio.Event(), asyncio.Event()

    async def long_work(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        await app(scope, receive, send)

    async with serving(long_work, HttpProtocol) as port, connection(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asked.wait()
        writer.write_eof()
        await gone.wait()
        assert await reader.read() == b""


@pytest.mark.parametrize("connection", ["", "connection: keep-alive\r\n"])
async def test_an_http_1_0_client_gets_a_stream_as_it_is_and_its_end_with_the_connections(connection: str) -> None:
    """Check that such a client gets no chunked encoding: it would read the chunk sizes as a part of the answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        assert not scope["extensions"][BODY_WRITER]["writer"].is_ready
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    async with serving(answer, HttpProtocol) as port:
        head, body = await exchange(port, f"GET / HTTP/1.0\r\n{connection}\r\n".encode())
        assert body == b"one two"
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head


async def test_an_http_1_0_client_is_told_a_length_that_is_known(port: int) -> None:
    head, body = await exchange(port, b"POST / HTTP/1.0\r\ncontent-length: 1\r\n\r\nx")
    assert (b"content-length: 2" in head, b"transfer-encoding" in head, body) == (True, False, b"ok")


async def test_pieces_written_past_the_application_stand_between_its_own() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        writer = scope["extensions"][BODY_WRITER]["writer"]
        assert not writer.is_ready  # there is no head yet
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        assert writer.is_ready
        writer.write(b"tw")
        writer.write(b"o ")
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"three", "more_body": False})
        assert not writer.is_ready

    async with serving(answer, HttpProtocol) as port, httpx.AsyncClient(timeout=PATIENCE) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "one two three"


async def test_no_more_is_written_past_the_application_than_the_client_takes() -> None:
    paused = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        writer = scope["extensions"][BODY_WRITER]["writer"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while writer.is_ready:
            writer.write(bytes(1 << 16))
            await asyncio.sleep(0)
        paused.set()
        await send({"type": "http.response.body", "body": b"the end", "more_body": False})  # waits for the client

    async with serving(answer, HttpProtocol) as port, connection(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await paused.wait()
        assert (await reader.read()).endswith(b"7\r\nthe end\r\n0\r\n\r\n")


async def test_what_is_no_http_is_answered_400_in_the_one_shape(port: int) -> None:
    head, body = await exchange(port, b"EHLO example\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


async def test_a_body_in_chunks_of_one_byte_passes(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    pieces = [b"1\r\nx\r\n" * MAX_HEAD_BYTES] * 4  # more than the server reads at once
    assert (await exchange(port, head, *pieces, b"0\r\nx-end: 1\r\n\r\n"))[1] == b"ok"


@pytest.mark.parametrize(
    "flood", [b"1;" + b"x" * 999 + b"\r\ny\r\n", b"0\r\n" + b"x-a: b\r\n" * 9999], ids=["chunks", "end"]
)
async def test_a_chunked_body_that_is_mostly_no_body_is_answered_400(flood: bytes, port: int) -> None:
    async with connection(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        answer = asyncio.create_task(reader.readuntil(b"}}"))
        writer.write(flood)
        while not answer.done():
            writer.write(flood if flood[:1] == b"1" else b"x-a: b\r\n" * 999)
            await asyncio.sleep(0)
        assert (await answer).startswith(b"HTTP/1.1 400 ")


async def test_a_body_and_half_of_the_next_head_may_come_together(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    async with connection(port) as (reader, writer):
        for size in (70_000, 300_000):
            writer.write(head % size + b"x" * size + b"GET / HTTP/1.1\r\n")
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
            writer.write(b"host: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")


async def test_many_requests_in_one_segment_are_all_answered(port: int) -> None:
    answered = b""
    async with connection(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 5000)
        while answered.count(b"\r\n\r\nok") < 5000:
            piece = await reader.read(1 << 16)
            assert piece, f"it ended after {answered.count(b'ok')} answers"
            answered += piece


async def test_a_head_behind_another_request_is_bounded_too(port: int) -> None:
    async with connection(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\r\nx-large: ")
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"a" * 2 * MAX_HEAD_BYTES)
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 431 ")


async def test_what_comes_together_is_parsed_in_pieces() -> None:
    """Read many chunks in pieces: sixty thousand chunks in one read would delay all other clients."""
    sizes: list[int] = []

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        async def counted() -> Message:
            message = await receive()
            sizes.append(len(message["body"]))
            return message

        await app(scope, counted, send)

    async with serving(counting, HttpProtocol) as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await exchange(port, head + b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n")
    assert answer[1] == b"ok"
    assert sum(sizes) >= 50_000
    assert max(sizes) < 12_000
