"""What an operator can ask of a running server, and how it ends: dumps, integrity, signals at any moment."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.fake_engine import MISCOUNTING_TOKEN, STUCK_TOKEN
from tests.server.running import RunningServer, running_server, stream_lines, wait_for

LONG = {"prompt": [1, 2], "max_tokens": 1_000_000}


def events(server: RunningServer) -> Iterator[dict[str, Any]]:
    """Yield what the server has logged so far."""
    for line in server.output.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def dump(server: RunningServer) -> dict[str, Any]:
    """Return the state that SIGUSR1 makes it write."""

    def states() -> list[dict[str, Any]]:
        return [event["state"] for event in events(server) if "state" in event]

    before = len(states())
    server.signal(signal.SIGUSR1)
    return wait_for(lambda: states()[before:], "the state is logged")[0]


def test_a_dump_shows_requests_in_flight_to_the_worker() -> None:
    with running_server("--log-format", "json") as server:
        server.wait_ready()
        headers = {"x-request-id": "mine"}
        with server.http.stream("POST", server.url + "/generate", json={**LONG, "stream": True}, headers=headers) as it:
            lines = stream_lines(it)  # kept: httpx hangs up when an iterator is dropped
            next(lines)
            state = dump(server)
    (flight,) = state["in_flight"]
    assert (flight["request_id"], flight["path"], flight["worker"]) == ("mine", "/generate", 0)
    (worker,) = state["workers"]
    assert worker["engine"]["running"] == [{"uid": flight["uid"], "request_id": "mine"}]
    assert worker["engine"]["num_steps"] > 0
    assert state["admission"]["requests"]["used"] == 1
    assert state["http"]["requests"] >= 1


def test_a_dump_shows_where_a_stuck_worker_stands_and_leaves_it_running() -> None:
    with running_server("--log-format", "json") as server:
        server.wait_ready()
        pid = server.worker_pid()
        body = {"prompt": [STUCK_TOKEN], "max_tokens": 1, "stream": True}
        with server.http.stream("POST", server.url + "/generate", json=body):
            (worker,) = dump(server)["workers"]
            assert worker["engine"] is None
            assert "in step" in worker["stacks"]
            assert "fake_engine.py" in worker["stacks"]
            os.kill(pid, signal.SIGSTOP)
            (stopped,) = dump(server)["workers"]
            assert stopped["process_state"].startswith("T")
            assert stopped["stacks"] is None
            os.kill(pid, signal.SIGCONT)
        assert server.worker_pid() == pid


def test_books_that_contradict_each_other_cost_the_worker_and_are_counted() -> None:
    with running_server("--log-format", "json") as server:
        server.wait_ready()
        before = server.worker_pid()
        assert server.post("/generate", {"prompt": [MISCOUNTING_TOKEN], "max_tokens": 1}).status_code == 200
        wait_for(lambda: server.state()["restarts"] == 1, "the worker is replaced")
        server.wait_ready()
        assert server.worker_pid() != before
        assert server.state()["integrity_failures"] == 1
        said = [event["message"] for event in events(server)]
        assert any("lost: {3: 1}, as the fake engine was told to say" in message for message in said)


# ---- the end, at any moment


def refused(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def assert_nothing_left(server: RunningServer, url: str) -> None:
    server.wait_all_gone()
    assert refused(url), "the port is still taken"
    assert list(server.tmp.glob("lightwell-*")) == [], "a socket folder is left"


def loading(server: RunningServer) -> None:
    wait_for(lambda: server.status("/health/live") == 200, "the server is alive")
    server.worker_pid()


def restarting(server: RunningServer) -> None:
    server.wait_ready()
    os.kill(server.worker_pid(), signal.SIGKILL)
    wait_for(lambda: server.status("/health/ready") == 503, "the loss is noticed")


def in_backoff(server: RunningServer) -> None:
    for _ in range(3):
        server.wait_ready()
        os.kill(server.worker_pid(), signal.SIGKILL)
        wait_for(lambda: server.status("/health/ready") == 503, "the loss is noticed")
    wait_for(lambda: "started again in" in server.output, "it waits before the next start")


def hung(server: RunningServer) -> None:
    server.wait_ready()
    os.kill(server.worker_pid(), signal.SIGSTOP)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize(
    ("moment", "env"),
    [
        (lambda server: None, {}),
        (loading, {"FAKE_LOAD_SECONDS": "3600"}),
        (RunningServer.wait_ready, {}),
        (restarting, {}),
        (in_backoff, {}),
        (hung, {}),
    ],
    ids=["starting", "loading", "idle", "restarting", "backoff", "hung"],
)
def test_a_signal_ends_the_server_whole(
    number: int, to_group: bool, moment: Callable[[RunningServer], None], env: dict[str, str]
) -> None:
    with running_server(**env) as server:  # type: ignore[arg-type]  # no variable is named stderr
        url = server.url
        moment(server)
        os.killpg(server.process.pid, number) if to_group else server.signal(number)
        assert server.wait_exit() in ((0, 128 + number) if moment.__name__ == "<lambda>" else (0,))
        assert_nothing_left(server, url)


def test_while_draining_every_connection_is_told_to_close() -> None:
    with running_server() as server:
        server.wait_ready()
        with httpx.stream("POST", server.url + "/generate", json={**LONG, "stream": True}, timeout=30) as response:
            lines = stream_lines(response)
            next(lines)
            url = server.url
            with httpx.Client() as kept:
                assert kept.get(url + "/health/ready").status_code == 200
                server.signal(signal.SIGTERM)
                wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
                answer = kept.post(url + "/generate", json={"prompt": [1], "max_tokens": 1})
            assert answer.status_code == 503
            assert answer.headers["connection"] == "close"
            assert int(answer.headers["retry-after"]) >= 1
            assert server.get("/health/live").headers["connection"] == "close"
            server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0


def test_many_streams_finish_and_nobody_new_comes_in() -> None:
    body = {"prompt": [1, 2], "max_tokens": 200, "stream": True}
    with running_server(FAKE_STEP_SECONDS="0.01") as server, httpx.Client(timeout=60) as http:
        server.wait_ready()
        url = server.url
        streams = [http.send(http.build_request("POST", url + "/generate", json=body), stream=True) for _ in range(32)]
        server.signal(signal.SIGTERM)
        wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
        assert server.post("/generate", {"prompt": [1], "max_tokens": 1}).status_code == 503
        whole = [list(stream_lines(stream)) for stream in streams]
        assert all(len(lines) == 201 and lines[-1] == "[DONE]" for lines in whole)
        assert all(lines == whole[0] for lines in whole)
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)


def metric(server: RunningServer, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    (value,) = (line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} "))
    return float(value)


def test_a_request_of_many_inputs_that_has_begun_is_answered_whole_though_most_are_not_submitted_yet() -> None:
    inputs = [[token] for token in range(1, 13)]
    options = ("--max-num-seqs", "2", "--log-format", "json")
    with running_server(*options, module="tests.server.fake_lightwell", FAKE_STEP_SECONDS="0.1") as server:
        server.wait_ready()
        (worker,) = (each["pid"] for each in dump(server)["workers"])
        url = server.url
        os.kill(worker, signal.SIGSTOP)  # so that nothing ends before the drain
        with ThreadPoolExecutor(1) as background:
            answer = background.submit(httpx.post, url + "/v1/embeddings", json={"input": inputs}, timeout=60)
            wait_for(lambda: metric(server, "lightwell_requests_submitted_total") == 2, "two of its inputs run")
            server.signal(signal.SIGTERM)
            wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
            assert server.post("/v1/embeddings", {"input": "new"}).json()["error"]["code"] == "draining"
            os.kill(worker, signal.SIGCONT)
            assert answer.result().status_code == 200, answer.result().text
        assert len(answer.result().json()["data"]) == len(inputs)
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)


def test_an_http_request_of_many_inputs_that_is_refused_is_counted_once() -> None:
    options = ("--max-num-seqs", "8", "--max-num-queued-tokens", "500")
    with running_server(*options, module="tests.server.fake_lightwell", FAKE_STEP_SECONDS="0.1") as server:
        server.wait_ready()
        body = {"prompt": [1, 2], "max_tokens": 490, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as response:
            lines = stream_lines(response)  # kept: httpx hangs up when an iterator is dropped
            next(lines)
            answer = server.post("/v1/embeddings", {"input": [[token] * 10 for token in range(1, 9)]})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_tokens_full")
            assert metric(server, 'lightwell_requests_refused_total{reason="queue_tokens_full"}') == 1


def test_a_client_that_reads_nothing_holds_the_end_up_no_longer_than_the_grace() -> None:
    with running_server("--shutdown-grace", "1") as server:
        server.wait_ready()
        url = server.url
        with httpx.stream("GET", url + "/endless", timeout=30):
            started = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0
            assert time.monotonic() - started < 20
        assert_nothing_left(server, url)


# ---- every answer names its request


def answer_to(server: RunningServer, request: bytes) -> tuple[str, dict[str, str]]:
    """Return status line and headers of the answer to raw bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := connection.recv(65536)):
            answer += piece
    status, *lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return status, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


ID = b"x-request-id: mine\r\n"


@pytest.mark.parametrize(
    ("status", "request_bytes", "expected"),
    [
        (200, b"GET /state HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n", "mine"),
        (404, b"GET /nowhere HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n", "mine"),
        (405, b"PUT /state HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n", "mine"),
        (500, b"POST /generate HTTP/1.1\r\nhost: x\r\n" + ID + b"content-length: 2\r\n\r\n{}", "mine"),
        (431, b"GET / HTTP/1.1\r\n" + ID + b"a: " + b"x" * 70_000 + b"\r\n\r\n", "mine"),
        (400, b"this is no HTTP\r\n\r\n", "req-"),
    ],
)
def test_every_answer_names_its_request(
    any_server: RunningServer, status: int, request_bytes: bytes, expected: str
) -> None:
    line, headers = answer_to(any_server, request_bytes)
    assert line.startswith(f"HTTP/1.1 {status} ")
    assert headers["x-request-id"].startswith(expected)
    said = {"request_id": headers["x-request-id"], "status": status}
    wait_for(lambda: any(event.items() >= said.items() for event in events(any_server)), "the log says the same")


@pytest.fixture(scope="module")
def any_server() -> Iterator[RunningServer]:
    """A server for tests that leave it as it was."""
    with running_server("--log-format", "json") as server:
        server.wait_ready()
        yield server
