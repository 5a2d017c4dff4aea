"""What reaches the server before any route: heads without end and bytes that are no HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from server.http_protocol import MAX_HEAD_BYTES, HttpProtocol


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=HttpProtocol, ws="none", lifespan="off", log_config=None, port=0)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.001)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def exchange(port: int, *parts: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to what is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    body = await asyncio.wait_for(reader.readexactly(length), 10)
    writer.close()
    return head, body


async def test_a_plain_request_passes_with_a_body_larger_than_any_head(port: int) -> None:
    body = b"x" * (4 * MAX_HEAD_BYTES)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert (await exchange(port, head, body))[1] == b"ok"
    assert (await exchange(port, head + body))[1] == b"ok"


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["finished", "endless"])
async def test_a_head_that_is_too_large_is_answered_431(port: int, end: bytes) -> None:
    request = b"GET / HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * (MAX_HEAD_BYTES + 1) + end
    head, body = await exchange(port, request)
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "head_too_large"


async def test_a_large_url_is_answered_431(port: int) -> None:
    request = b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    assert (await exchange(port, request))[0].startswith(b"HTTP/1.1 431 ")


async def test_what_is_no_http_is_answered_400_in_the_one_shape(port: int) -> None:
    head, body = await exchange(port, b"EHLO example\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
