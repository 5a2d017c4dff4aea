"""The log line of a request: its fields, and text that no client can insert into it."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lightwell.server.engine.messages.outputs import Timing
from lightwell.server.observability.access_log import RequestLog, current_record


async def endpoint(request: Request) -> Response:
    record = current_record.get()
    assert record is not None
    record.prompt_tokens, record.generated_tokens = 3, 5
    return PlainTextResponse(record.request_id)


def client(run: Callable[[Request], Awaitable[Response]] = endpoint) -> httpx.AsyncClient:
    """Return a client of an application that answers every path with `run`."""
    app = RequestLog(Starlette(routes=[Route(path, run) for path in ("/health/ready", "/{rest:path}")]))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def log_of(caplog: pytest.LogCaptureFixture, path: str, **headers: str) -> tuple[httpx.Response, list[str]]:
    with caplog.at_level(logging.INFO, logger="lightwell.server.observability.access_log"):
        async with client() as http:
            response = await http.get(path, headers=headers)
    return response, caplog.messages


async def test_a_request_is_one_line_with_its_tokens(caplog: pytest.LogCaptureFixture) -> None:
    response, lines = await log_of(caplog, "/v1/completions")
    assert len(lines) == 1
    expected = f"{response.text} GET /v1/completions 200 prompt_tokens=3 generated_tokens=5 ms="
    assert lines[0].startswith(expected)
    assert response.headers["x-request-id"] == response.text


@pytest.mark.parametrize("sent", ["mine-1", "a" * 1000, "", "req-1 GET /made/up 200", "\x7f"])
async def test_an_id_of_the_client_is_kept_unless_it_is_overlong_or_no_word(
    caplog: pytest.LogCaptureFixture, sent: str
) -> None:
    response, _ = await log_of(caplog, "/v1/completions", **{"x-request-id": sent})
    assert response.headers["x-request-id"] == response.text
    assert response.text.startswith("mine-1" if sent == "mine-1" else "req-")


async def test_probes_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert (await log_of(caplog, "/health/ready"))[1] == []


async def test_a_path_cannot_begin_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    _, lines = await log_of(caplog, "/a%0AERROR%20made%20up")
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "ERROR made up" not in lines[0]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_left_to_do_is_done_when_the_answer_was_sent(fails: bool) -> None:
    happened: list[str] = []

    async def body() -> AsyncIterator[str]:
        yield "a"
        happened.append("sent")
        if fails:
            raise ValueError

    async def hold(request: Request) -> Response:
        record = current_record.get()
        assert record is not None
        record.at_end.append(lambda: happened.append("end"))
        return StreamingResponse(body())

    async with client(hold) as http:
        await http.get("/")
    assert happened == ["sent", "end"]


async def test_the_line_says_how_the_request_ran_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def run(request: Request) -> Response:
        record = current_record.get()
        assert record is not None
        record.key, record.error_code = "ana phone", "worker_lost"
        record.note_end("stop", Timing(arrival=1.0, scheduled=1.25, first_token=2.0, finished=3.0))
        record.note_end("length", Timing(arrival=1.0, scheduled=1.5, first_token=1.75, finished=3.0))
        record.note_end("stop", None)
        return PlainTextResponse("")

    with caplog.at_level(logging.INFO, logger="lightwell.server.observability.access_log"):
        async with client(run) as http:
            await http.get("/")
    rest = "queue_ms=500.0 first_token_ms=750.0 finish=stop,length error=worker_lost key=ana%20phone client=127.0.0.1"
    assert caplog.messages[0].endswith(rest)
