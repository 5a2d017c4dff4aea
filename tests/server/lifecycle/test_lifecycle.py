"""Requests to a real server around the fake engine: answers, limits, clients that disconnect, dumps and log lines.

One server serves all tests: each leaves it as it was.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.bare_server import exchange
from tests.server.fake_engine import BROKEN_TOKEN, FAILING_TOKEN, REFUSED_TOKEN
from tests.server.lifecycle.calls import LONG, dump_with_engines, events, wait_inflight
from tests.server.running import RunningServer, running_server, stream_lines, wait_for


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    with running_server("--max-num-seqs", "2", "--log-format", "json", "--log-level", "debug") as server:
        server.wait_ready()
        yield server


# ---- requests


@pytest.mark.parametrize(
    ("token", "status", "says"),
    [
        (REFUSED_TOKEN, 400, "begin with 67"),
        (FAILING_TOKEN, 500, "a fake failure"),
        (BROKEN_TOKEN, 500, "the server's log has the reason"),
    ],
)
def test_an_engine_error_fails_its_own_request_only(shared: RunningServer, token: int, status: int, says: str) -> None:
    answer = shared.post("/fake", {"prompt": [token], "max_tokens": 1})
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]
    assert shared.post("/fake", {"prompt": [1], "max_tokens": 1}).status_code == 200


def test_clients_that_leave_while_they_wait_or_run_are_forgotten(shared: RunningServer) -> None:
    body = {**LONG, "stream": True}
    with (
        shared.http.stream("POST", shared.url + "/fake", json=body) as first,
        shared.http.stream("POST", shared.url + "/fake", json=body) as second,
    ):
        streams = stream_lines(first), stream_lines(second)  # kept: httpx hangs up when an iterator is dropped
        assert all(next(lines) for lines in streams)
        with shared.http.stream("POST", shared.url + "/fake", json=body):
            wait_inflight(shared, 3)
        wait_inflight(shared, 2)
    wait_inflight(shared, 0)
    wait_for(lambda: shared.state()["stats"]["num_requests_running"] == 0, "the engine has let go of them")


# ---- dumps and log lines


def test_a_dump_shows_requests_in_flight_to_the_worker(shared: RunningServer) -> None:
    headers = {"x-request-id": "long"}
    with shared.http.stream("POST", shared.url + "/fake", json={**LONG, "stream": True}, headers=headers) as it:
        lines = stream_lines(it)  # kept: httpx hangs up when an iterator is dropped
        next(lines)
        state = dump_with_engines(shared)
    wait_inflight(shared, 0)
    (flight,) = state["in_flight"]
    assert (flight["request_id"], flight["path"], flight["worker"]) == ("long", "/fake", 0)
    (worker,) = state["workers"]
    assert worker["engine"]["running"] == [{"uid": flight["uid"], "request_id": "long"}]
    assert worker["engine"]["num_steps"] > 0
    assert state["admission"]["requests"]["used"] == 1
    assert state["http"]["requests"] >= 1
    assert shared.state()["has_torch"] is False, "only workers import torch"


def test_every_line_of_every_process_is_an_object_and_tells_the_request_it_is_about(shared: RunningServer) -> None:
    body, named = {"prompt": [BROKEN_TOKEN], "max_tokens": 1}, {"x-request-id": "the-failing"}
    answer = shared.http.post(shared.url + "/fake", json=body, headers=named)
    shared.get("/nowhere%0Ax")
    wait_for(lambda: any("nowhere" in event.get("path", "") for event in events(shared)), "the requests are logged")
    assert answer.headers["x-request-id"] == "the-failing"

    def about() -> list[dict[str, Any]]:
        return [event for event in events(shared) if event.get("request_id") == "the-failing"]

    wait_for(lambda: len({event["process"] for event in about()}) == 2, "both processes have written their lines")
    about_it = about()
    assert {event["process"] for event in about_it} == {"api", "worker-0"}
    (in_worker,) = (event for event in about_it if event["process"] == "worker-0")
    assert "could not be begun" in in_worker["message"]
    assert "stumbles over prompts that begin with 70" in in_worker["exception"]
    (failed,) = (event for event in about_it if event.get("path") == "/fake")
    assert failed["error"] == "engine_error"


# ---- every answer names its request


ID = b"x-request-id: mine\r\n"


@pytest.mark.parametrize(
    ("status", "request_bytes", "expected"),
    [
        (200, b"GET /state HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n", "mine"),
        (404, b"GET /nowhere HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n", "mine"),
        (405, b"PUT /state HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n", "mine"),
        (500, b"POST /fake HTTP/1.1\r\nhost: x\r\n" + ID + b"content-length: 2\r\n\r\n{}", "mine"),
        (431, b"GET / HTTP/1.1\r\n" + ID + b"a: " + b"x" * 70_000 + b"\r\n\r\n", "mine"),
        (400, b"this is no HTTP\r\n\r\n", "req-"),
    ],
)
async def test_every_answer_names_its_request(
    shared: RunningServer, status: int, request_bytes: bytes, expected: str
) -> None:
    head, _ = await exchange(int(shared.url.rpartition(":")[2]), request_bytes)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    told = re.search(rf"x-request-id: ({expected}\S*)\r\n", head.decode())
    assert told
    said = {"request_id": told[1], "status": status}
    wait_for(lambda: any(event.items() >= said.items() for event in events(shared)), "the log says the same")
