"""Servers that refuse, drop, stall and break off: which requests are retried, and which errors are raised."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lightwell_client import (
    ApiError,
    AsyncClient,
    AuthenticationFailed,
    Client,
    ConnectionFailed,
    InvalidResponse,
    LightwellError,
    NotFound,
    RateLimited,
    ServerError,
    StreamInterrupted,
    TimedOut,
    TooLarge,
    Unavailable,
)
from tests.client.conftest import Asker
from tests.client.wire_server import TEXT, Reply, WireServer, completion_chunk, error, event_stream, events
from tests.server.running import wait_for

NOW = {"Retry-After": "0"}


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port without a listener, held so that no other process begins to listen on it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """The event that held handlers wait on; it is set at the end at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("method", ["generate", "stream"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_asked_again_and_the_answer_is_whole(
    ask: Asker, server: WireServer, method: str, status: int
) -> None:
    server.will(error(status, "full", NOW), error(status, "full", NOW))
    if method == "generate":
        assert ask.call("generate", "Once").text == TEXT
    else:
        assert "".join(chunk.text for chunk in ask.collect("stream", "Once")) == TEXT
    assert len(server.seen) == 3
    assert server.seen[0].body == server.seen[2].body


@pytest.mark.parametrize(
    ("refusal", "error_type", "retry_after", "num_requests"),
    [
        (error(429, "full", NOW), RateLimited, 0, 3),
        (error(503, "loading", {"Retry-After": "3600"}), Unavailable, 3600, 1),
    ],
)
def test_after_the_last_retry_or_a_long_wait_the_refusal_is_raised(
    ask: Asker, server: WireServer, refusal: Reply, error_type: type[ApiError], retry_after: int, num_requests: int
) -> None:
    server.will(*[refusal] * num_requests)
    with pytest.raises(error_type) as caught:
        ask.call("generate", "Once")
    assert caught.value.retry_after == retry_after
    assert len(server.seen) == num_requests


@pytest.mark.parametrize(
    ("status", "error_type"),
    [
        (400, ApiError),
        (401, AuthenticationFailed),
        (404, NotFound),
        (413, TooLarge),
        (500, ServerError),
        (418, ApiError),
    ],
)
def test_other_statuses_are_raised_at_once(
    ask: Asker, server: WireServer, status: int, error_type: type[ApiError]
) -> None:
    server.will(error(status, "no", NOW))
    with pytest.raises(error_type) as caught:
        ask.call("generate", "Once")
    assert caught.value.status == status
    assert len(server.seen) == 1


def test_a_connection_dropped_before_any_answer_is_tried_again(ask: Asker, server: WireServer) -> None:
    server.will(Reply(drop=True))
    assert ask.call("generate", "Once").text == TEXT
    assert len(server.seen) == 2


def test_an_answer_that_breaks_off_is_not_asked_for_again(ask: Asker, server: WireServer) -> None:
    server.will(Reply(body=completion_chunk(TEXT), drop=True))
    with pytest.raises(ConnectionFailed):
        ask.call("generate", "Once")
    assert len(server.seen) == 1


def test_a_server_that_is_not_there_is_a_failed_connection(kind: str, closed_port: int) -> None:
    asker = Asker(kind, f"http://127.0.0.1:{closed_port}", max_retries=1)
    with pytest.raises(ConnectionFailed, match=str(closed_port)):
        asker.call("generate", "Once")
    asker.close()


def test_a_silent_server_times_out_and_is_not_asked_again(
    ask: Asker, server: WireServer, release: threading.Event
) -> None:
    ask.call("version")  # the connection is open then: only the answer can be late
    server.will(Reply(pieces=[b"{}"], before_piece=lambda _: _wait(release)))
    with pytest.raises(TimedOut):
        ask.call("generate", "Once", timeout=0.05)
    wait_for(lambda: not server.script, "the server has taken the request")
    ask.call("version")
    assert [seen.path for seen in server.seen] == ["/version", "/v1/completions", "/version"]


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (b"", "before its end mark"),
        (b'event: error\ndata: {"error": {"message": "worker lost", "type": "t", "code": "c"}}\n\n', "worker lost"),
        (b'data: {"error": {"message": "worker lost"}}\n\ndata: [DONE]\n\n', "worker lost"),
        (b'event: error\ndata: {"message": "worker lost"}\n\n', "worker lost"),
        (b"event: error\ndata: worker lost\n\n", "worker lost"),
        (None, None),  # the connection drops
    ],
)
def test_a_stream_that_ends_badly_is_interrupted_after_what_it_brought(
    ask: Asker, server: WireServer, ending: bytes | None, message: str | None
) -> None:
    pieces = events(completion_chunk("Once"), done=False)
    server.will(event_stream([*pieces, ending] if ending else pieces, drop=ending is None))
    chunks: list[Any] = []
    with pytest.raises(StreamInterrupted, match=message):
        ask.collect("stream", "x", into=chunks)
    assert [chunk.text for chunk in chunks] == ["Once"]
    assert len(server.seen) == 1, "a request that has begun to stream is never repeated"


def test_a_stream_that_falls_silent_times_out(ask: Asker, server: WireServer, release: threading.Event) -> None:
    pieces = events(completion_chunk("Once"))
    chunks: list[Any] = []
    for attempt, timeout in enumerate((1.0, 10.0, 60.0), 1):  # a busy machine may send the first chunk late
        server.will(event_stream(pieces, before_piece=lambda index: _wait(release) if index else None))
        with pytest.raises(TimedOut):
            ask.collect("stream", "x", into=chunks, timeout=timeout)
        wait_for(lambda: not server.script, "the server has taken the request")
        assert len(server.seen) == attempt
        if chunks:
            break
    assert [chunk.text for chunk in chunks] == ["Once"]


def test_a_text_that_speaks_of_errors_is_no_error(ask: Asker, server: WireServer) -> None:
    server.will(event_stream(events(completion_chunk('{"error": "no"}') | {"error": None})))
    assert [chunk.text for chunk in ask.collect("stream", "x")] == ['{"error": "no"}']


@pytest.mark.parametrize("content", [b"data: {\n\n", b"data: \xff\n\n", b"data: {}{}\n\n", b'data: {"choices": 1}\n\n'])
def test_an_event_that_is_no_chunk_is_an_invalid_response(ask: Asker, server: WireServer, content: bytes) -> None:
    server.will(event_stream([content]))
    with pytest.raises(InvalidResponse):
        ask.collect("stream", "x")


def test_a_server_that_does_not_stream_is_an_invalid_response(ask: Asker, server: WireServer) -> None:
    server.will(Reply(body=completion_chunk(TEXT)))
    with pytest.raises(InvalidResponse, match="event-stream"):
        ask.collect("stream", "x")


def test_a_refused_stream_raises_as_an_unstreamed_request_would(ask: Asker, server: WireServer) -> None:
    server.will(error(404, "no model 'x'"))
    with pytest.raises(NotFound, match="no model"):
        ask.collect("stream", "x", model="x")


def test_every_failure_is_a_lightwell_error(server: WireServer) -> None:
    with Client(server.url, api_key="two\nlines") as client, pytest.raises(LightwellError):
        client.generate("Once")


def test_closing_a_stream_or_letting_go_of_it_closes_the_connection(
    server: WireServer, release: threading.Event
) -> None:
    server.will(_endless(release), _endless(release))
    with Client(server.url) as client:
        for chunk in client.stream("x"):
            assert chunk.text == "Once"
            break
        with client.stream("x") as stream:
            assert next(stream).text == "Once"
            stream.close()
            assert list(stream) == []
            stream.close()
            release.set()
            for _ in range(2):
                assert server.broken_pipes.acquire(timeout=600), "the server never saw the client leave"


async def test_leaving_the_async_with_block_early_closes_the_connection(
    server: WireServer, release: threading.Event
) -> None:
    server.will(_endless(release))
    async with AsyncClient(server.url) as client:
        async with client.stream("x") as stream:
            assert (await anext(stream)).text == "Once"
        release.set()
        assert server.broken_pipes.acquire(timeout=600)


def test_a_stream_that_is_never_read_sends_nothing(client: Client, server: WireServer) -> None:
    with client.stream("x"):
        pass
    assert server.seen == []


def test_after_a_stream_the_connection_is_used_again(server: WireServer) -> None:
    with Client(server.url) as client:
        list(client.stream("x"))
        client.generate("x")
    assert (len(server.seen), server.num_connections) == (2, 1)


def test_a_client_of_ones_own_is_used_as_it_is_and_left_open(server: WireServer) -> None:
    with httpx.Client(headers={"X-Mine": "yes"}, timeout=77) as http:
        with Client(server.url, http_client=http) as client:
            client.generate("Once")
        assert server.seen[0].headers["x-mine"] == "yes"
        assert not http.is_closed


def _endless(release: threading.Event) -> Reply:
    """Return one chunk, then after `release` far more than the sockets' buffers hold, so that a client that left is
    noticed.
    """
    first, filler = events(completion_chunk("Once"), done=False), b": " + b"x" * 1_000_000 + b"\n\n"
    return event_stream([*first, *[filler] * 50], before_piece=lambda index: _wait(release) if index == 1 else None)


def _wait(release: threading.Event) -> None:
    release.wait(120)
