"""Ends of the server: it drains on the first signal, ends at once on the second, and leaves no process."""

import os
import signal
from collections.abc import Callable

import httpx
import pytest

from tests.server.fake_engine import expected_tokens
from tests.server.lifecycle.calls import LONG, assert_nothing_left, in_background, wait_inflight
from tests.server.running import PATIENCE, RunningServer, running_server, stream_lines, wait_for

STREAM = {**LONG, "stream": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)])
def test_the_first_signal_lets_running_requests_finish_and_nobody_new_comes_in(number: int) -> None:
    body = {"prompt": [1, 2], "max_tokens": 200}
    with (
        running_server("--worker-timeout", "600", "--shutdown-grace", "600") as server,
        httpx.Client(timeout=PATIENCE) as kept,
    ):
        server.wait_ready()
        url, worker = server.url, server.worker_pid()
        assert kept.get(url + "/health/ready").status_code == 200
        os.kill(worker, signal.SIGSTOP)  # so that no request ends before the test has checked the drain
        calls = [in_background(lambda: server.post("/fake", body)) for _ in range(8)]
        streams = [in_background(lambda: server.post("/fake", {**body, "stream": True})) for _ in range(8)]
        wait_inflight(server, 16)
        os.killpg(server.process.pid, number)  # as a terminal and systemd do: the worker gets it too
        wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
        live = server.get("/health/live")
        assert (live.status_code, live.headers["connection"]) == (200, "close")
        refused = kept.post(url + "/fake", json={"prompt": [1], "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) >= 1
        os.kill(worker, signal.SIGCONT)
        tokens = expected_tokens((1, 2), 200)
        assert [call.result().json() for call in calls] == [{"tokens": tokens}] * 8
        assert [list(stream_lines(each.result())) for each in streams] == [[*map(str, tokens), "[DONE]"]] * 8
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.killpg, signal.SIGINT),  # as a terminal does
        pytest.param(os.kill, signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(os.kill, signal.SIGHUP, marks=pytest.mark.nightly),
    ],
)
def test_while_draining_probes_are_answered_and_a_second_signal_ends_the_server_at_once(
    send: Callable[[int, int], None], number: int
) -> None:
    with running_server("--shutdown-grace", "600") as server:
        server.wait_ready()
        url = server.url
        with server.http.stream("POST", url + "/fake", json=STREAM) as response:
            lines = stream_lines(response)
            next(lines)
            send(server.process.pid, number)
            wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
            assert server.status("/health/live") == 200
            send(server.process.pid, number)
            rest = list(lines)
        assert rest[-1]["error"]["code"] == "shutting_down"
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)


def test_requests_over_the_grace_end_with_an_error_event_and_a_client_that_reads_nothing_is_left() -> None:
    with running_server("--shutdown-grace", "1") as server:
        server.wait_ready()
        url = server.url
        with (
            server.http.stream("GET", url + "/endless"),
            server.http.stream("POST", url + "/fake", json=STREAM) as response,
        ):
            lines = stream_lines(response)
            next(lines)
            server.signal(signal.SIGTERM)
            rest = list(lines)
            assert rest[-2] == "error"
            assert rest[-1]["error"]["code"] == "shutting_down"
            assert server.wait_exit() == 0
        assert "did not end within 1 s" in server.output
        assert_nothing_left(server, url)


def test_a_server_that_nohup_has_started_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; the server inherits it
    try:
        with running_server() as server:
            server.wait_ready()
            server.signal(signal.SIGHUP)
            assert server.post("/fake", {"prompt": [1, 2], "max_tokens": 3}).status_code == 200
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- a signal at any moment


def restarting(server: RunningServer) -> None:
    server.wait_ready()
    os.kill(server.worker_pid(), signal.SIGKILL)
    wait_for(lambda: server.status("/health/ready") == 503, "the loss is noticed")


def in_backoff(server: RunningServer) -> None:
    for _ in range(3):
        restarting(server)
    wait_for(lambda: "started again in" in server.output, "it waits before the next start")


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_signal_where_the_event_loop_begins_ends_the_server_with_status_0(number: int) -> None:
    with running_server(FAKE_SIGNAL=str(int(number))) as server:
        assert server.wait_exit() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("moment", [restarting, in_backoff])
def test_a_signal_while_a_worker_is_replaced_ends_the_server_whole(
    number: int, moment: Callable[[RunningServer], None]
) -> None:
    with running_server() as server:
        url = server.url
        moment(server)
        server.signal(number)
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)
