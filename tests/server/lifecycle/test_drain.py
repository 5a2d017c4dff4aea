"""How the server ends: it drains on the first signal, ends at once on the second, and leaves no process."""

import os
import signal
from collections.abc import Callable

import httpx
import pytest

from tests.server.fake_engine import (
    STUCK_TOKEN,
    expected_tokens,
)
from tests.server.lifecycle.calls import LONG, in_background, wait_inflight
from tests.server.running import RunningServer, group_members, is_running, running_server, stream_lines, wait_for


def test_the_first_signal_lets_running_requests_finish(server: RunningServer) -> None:
    body = {"prompt": [1, 2], "max_tokens": 400}
    whole = in_background(lambda: server.post("/generate", body))
    wait_inflight(server, 1)
    os.killpg(server.process.pid, signal.SIGTERM)  # as a terminal and systemd do: the workers get it too
    wait_for(lambda: server.status("/health/ready") in (503, 0), "readiness is gone")
    assert whole.result().json() == {"tokens": expected_tokens((1, 2), 400)}
    assert server.wait_exit() == 0
    server.wait_all_gone()


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGTERM), (os.kill, signal.SIGINT), (os.killpg, signal.SIGINT)],
    ids=["SIGTERM", "SIGINT", "SIGINT to the group, as a terminal does"],
)
def test_while_draining_probes_are_answered_and_a_second_signal_ends_the_server_at_once(
    server: RunningServer, send: Callable[[int, int], None], number: int
) -> None:
    with httpx.stream("POST", server.url + "/generate", json={**LONG, "stream": True}, timeout=30) as response:
        lines = stream_lines(response)
        next(lines)
        send(server.process.pid, number)
        wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
        assert server.status("/health/live") == 200
        answer = server.post("/generate", {"prompt": [1], "max_tokens": 1})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "draining"
        send(server.process.pid, number)
        rest = list(lines)
    assert rest[-1]["error"]["code"] == "shutting_down"
    assert server.wait_exit() == 0
    server.wait_all_gone()


def test_requests_over_the_grace_end_with_an_error_event() -> None:
    with running_server("--shutdown-grace", "0.3") as server:
        server.wait_ready()
        with httpx.stream("POST", server.url + "/generate", json={**LONG, "stream": True}, timeout=30) as response:
            lines = stream_lines(response)
            next(lines)
            server.signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2] == "error"
        assert rest[-1]["error"]["code"] == "shutting_down"
        assert server.wait_exit() == 0
        server.wait_all_gone()


def test_a_stopped_worker_does_not_outlive_the_server(server: RunningServer) -> None:
    os.kill(server.worker_pid(), signal.SIGSTOP)
    server.signal(signal.SIGINT)
    assert server.wait_exit() == 0
    server.wait_all_gone()


def test_a_second_signal_that_comes_when_the_http_server_has_ended_changes_nothing(server: RunningServer) -> None:
    os.kill(server.worker_pid(), signal.SIGSTOP)  # which does not see that it is to leave: it is waited for
    server.signal(signal.SIGTERM)
    wait_for(lambda: not list(server.tmp.glob("lightwell-*")), "the server has ended but for its worker")
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    server.wait_all_gone()


def test_the_worker_leaves_when_the_api_process_is_killed(server: RunningServer) -> None:
    worker = server.worker_pid()
    stuck = in_background(lambda: server.post("/generate", {"prompt": [STUCK_TOKEN], "max_tokens": 1}))
    wait_inflight(server, 1)
    server.signal(signal.SIGKILL)
    wait_for(lambda: not is_running(worker), "the worker leaves, even from within a step")
    assert isinstance(stuck.result(), httpx.TransportError)
    wait_for(lambda: not group_members(server.process.pid), "nothing is left")
    assert list(server.tmp.glob("lightwell-*")) == []
