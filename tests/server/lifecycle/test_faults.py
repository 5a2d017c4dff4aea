"""Failures of the workers and the surroundings of a real server around the fake engine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.server.lifecycle.processes import bind
from tests.server.fake_engine import CRASH_TOKEN, MISCOUNTING_TOKEN, STUCK_TOKEN, expected_tokens
from tests.server.fake_server import HELD_BYTES
from tests.server.lifecycle.calls import LONG, assert_nothing_left, dump, events, in_background, wait_inflight
from tests.server.running import ROOT, RunningServer, is_running, running_server, stream_lines, wait_for
from tests.support.processes import LOOPBACK, free_port

SHORT = {"prompt": [1, 2, 3], "max_tokens": 5}


def kill_worker(server: RunningServer) -> None:
    os.kill(server.worker_pid(), signal.SIGKILL)


def wait_restarts(server: RunningServer, count: int) -> None:
    wait_for(lambda: server.state()["restarts"] == count, "another worker is started")


def answers(server: RunningServer) -> bool:
    return bool(server.post("/fake", SHORT).json().get("tokens") == expected_tokens((1, 2, 3), 5))


# ---- one server that loses worker after worker (five within a minute end it)


@pytest.fixture(scope="module")
def battered() -> Iterator[RunningServer]:
    with running_server("--log-format", "json") as server:
        server.wait_ready()
        yield server


def test_a_killed_worker_fails_its_requests_and_is_replaced(battered: RunningServer) -> None:
    whole = in_background(lambda: battered.post("/fake", LONG))
    before = battered.worker_pid()
    restarts = battered.state()["restarts"]
    wait_inflight(battered, 1)
    with battered.http.stream("POST", battered.url + "/fake", json={**LONG, "stream": True}) as response:
        lines = stream_lines(response)
        next(lines)
        os.kill(before, signal.SIGKILL)
        rest = list(lines)
    assert rest[-2] == "error"
    assert rest[-1]["error"]["code"] == "worker_lost"
    answer = whole.result()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert battered.status("/health/live") == 200
    battered.wait_ready()
    assert battered.worker_pid() != before
    assert battered.state()["restarts"] == restarts + 1
    assert answers(battered)


def test_an_engine_that_raises_costs_the_worker_and_no_counter_goes_back(battered: RunningServer) -> None:
    before = battered.state()
    battered.post("/fake", {"prompt": [1, 2], "max_tokens": 9})
    assert battered.post("/fake", {"prompt": [CRASH_TOKEN], "max_tokens": 1}).status_code == 503
    wait_restarts(battered, before["restarts"] + 1)
    battered.wait_ready()
    assert "the fake engine crashes" in battered.output
    assert battered.post("/fake", {"prompt": [1, 2, 3], "max_tokens": 1}).status_code == 200
    stats = battered.state()["stats"]
    assert stats["generation_tokens_total"] == before["stats"]["generation_tokens_total"] + 10
    assert stats["prompt_tokens_total"] == before["stats"]["prompt_tokens_total"] + 5


def test_books_that_contradict_each_other_cost_the_worker_and_are_counted(battered: RunningServer) -> None:
    before, restarts = battered.worker_pid(), battered.state()["restarts"]
    assert battered.post("/fake", {"prompt": [MISCOUNTING_TOKEN], "max_tokens": 1}).status_code == 200
    wait_restarts(battered, restarts + 1)
    battered.wait_ready()
    assert battered.worker_pid() != before
    assert battered.state()["integrity_failures"] == 1
    said = [event["message"] for event in events(battered)]
    assert any("lost: {3: 1}, as the fake engine was told to say" in message for message in said)


def test_a_worker_that_is_killed_again_and_again_ends_the_server_with_the_reason(battered: RunningServer) -> None:
    """This test is the last one of this server. Losses of those before it count if they were less than a minute ago."""
    while battered.process.poll() is None:
        num_ready = battered.output.count("worker 0 is ready")
        assert num_ready < 10, "the server does not give up"
        kill_worker(battered)
        wait_for(
            lambda seen=num_ready: (
                battered.process.poll() is not None or battered.output.count("worker 0 is ready") > seen
            ),
            "another worker is ready, or the server has ended",
        )
    assert battered.wait_exit() == 1
    assert "worker 0 is started again in 2.0 s" in battered.output
    assert battered.output.splitlines()[-1] == "lightwell: error: the worker ended 5 times, last by SIGKILL"
    battered.wait_all_gone()


# ---- workers that load, are silent, or never come


def test_a_worker_that_is_lost_while_it_loads_is_replaced_and_a_signal_then_ends_the_server(tmp_path: Path) -> None:
    """The worker is lost before and after the server was ready, and once without the folder of its socket."""
    hangs = tmp_path / "the next load hangs"
    hangs.touch()
    with running_server("--load-timeout", "600", FAKE_LOAD_HANGS=str(hangs)) as server:
        wait_for(lambda: server.status("/health/live") == 200, "the server is alive")
        wait_for(lambda: server.get("/health/ready").text.endswith("loading the model: 50 %"), "progress is told")
        assert server.status("/health/ready") == 503
        refused = server.post("/fake", SHORT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        kill_worker(server)
        wait_restarts(server, 1)
        server.wait_ready()
        for folder in server.tmp.glob("lightwell-*"):
            shutil.rmtree(folder)
        assert answers(server), "a worker needs the folder of its socket only to connect"
        lose_worker_and_wait_for_the_next_to_hang(server, hangs)
        wait_for(lambda: "is gone: listening again" in server.output, "the log tells of the lost folder")
        kill_worker(server)
        wait_restarts(server, 3)
        server.wait_ready()
        assert answers(server)
        lose_worker_and_wait_for_the_next_to_hang(server, hangs)
        worker, url = server.worker_pid(), server.url
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        wait_for(lambda: not is_running(worker), "the worker leaves in the middle of loading")
        assert_nothing_left(server, url)


def lose_worker_and_wait_for_the_next_to_hang(server: RunningServer, hangs: Path) -> None:
    hangs.touch()
    last = server.worker_pid()
    os.kill(last, signal.SIGKILL)
    wait_for(lambda: not hangs.exists(), "the next worker loads")
    wait_for(lambda: server.state()["pids"][0] not in (None, last), "it is connected")
    assert server.status("/health/ready") == 503


def test_a_silent_worker_makes_the_server_unready_and_one_that_is_stuck_is_replaced() -> None:
    with running_server("--worker-timeout", "5") as server:
        server.wait_ready()
        pid = server.worker_pid()
        waiting = in_background(lambda: server.post("/fake", LONG))
        wait_inflight(server, 1)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: server.status("/health/ready") == 503, "the silence is noticed")
        assert server.status("/health/live") == 200
        assert waiting.result().status_code == 503
        with contextlib.suppress(ProcessLookupError):  # on a slow machine it may have been killed meanwhile
            os.kill(pid, signal.SIGCONT)
        server.wait_ready()
        assert answers(server)
        before, restarts = server.worker_pid(), server.state()["restarts"]
        assert server.post("/fake", {"prompt": [STUCK_TOKEN], "max_tokens": 1}).status_code == 503
        wait_for(lambda: server.state()["restarts"] > restarts, "the stuck worker is killed")
        server.wait_ready()
        assert server.worker_pid() != before
        url = server.url
        os.kill(server.worker_pid(), signal.SIGSTOP)  # it does not see the request to end: the server waits for it
        server.signal(signal.SIGTERM)
        wait_for(lambda: not list(server.tmp.glob("lightwell-*")), "the server has ended but for its worker")
        with contextlib.suppress(ProcessLookupError):
            server.signal(signal.SIGTERM)  # changes nothing
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)


def test_the_worker_leaves_when_the_api_process_is_killed_and_the_port_is_free() -> None:
    with running_server("--log-format", "json", "--worker-timeout", "600") as server:
        server.wait_ready()
        worker, url = server.worker_pid(), server.url
        stuck = in_background(lambda: server.post("/fake", {"prompt": [STUCK_TOKEN], "max_tokens": 1}))
        wait_inflight(server, 1)
        assert_dumps_show_where_it_is_stuck(server, worker)
        server.signal(signal.SIGKILL)
        wait_for(lambda: not is_running(worker), "the worker leaves, even from within a step")
        assert isinstance(stuck.result(), httpx.TransportError)
        server.wait_exit()
        assert_nothing_left(server, url)
        bind(LOOPBACK, int(url.rpartition(":")[2])).close()


def assert_dumps_show_where_it_is_stuck(server: RunningServer, worker: int) -> None:
    """Check the dump after SIGUSR1 for a worker within a step, and for a worker that is stopped."""

    def within_step() -> dict[str, Any] | None:
        (shown,) = dump(server)["workers"]
        return shown if "in step" in (shown.get("stacks") or "") else None

    shown = wait_for(within_step, "the worker has begun the step")
    assert shown is not None
    assert shown["engine"] is None
    assert "fake_engine.py" in shown["stacks"]
    os.kill(worker, signal.SIGSTOP)
    (stopped,) = dump(server)["workers"]
    assert stopped["process_state"].startswith("T")
    assert stopped["stacks"] is None
    os.kill(worker, signal.SIGCONT)
    assert server.worker_pid() == worker


def test_a_worker_that_fails_just_before_it_is_ready_ends_the_server_with_the_reason() -> None:
    with running_server(FAKE_READY_ERROR="can't start new thread") as server:
        assert server.wait_exit() == 1
        last = server.output.splitlines()[-1]
        assert last == "lightwell: error: the worker could not start: can't start new thread"
        assert "is ready" not in server.output
        assert "started again" not in server.output
        server.wait_all_gone()


class Elsewhere(RunningServer):
    """A server with a known address, so that its output is not read."""

    address = ""

    @property
    def url(self) -> str:
        return self.address


@pytest.mark.nightly
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_under_the_log_stops_nothing(tmp_path: Path, log_format: str) -> None:
    port = free_port()
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.fake_server", "--port", str(port), "--log-format", log_format],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
            stdout=full,
            stderr=full,
            start_new_session=True,
        )
        server = Elsewhere(process, tmp_path / "none", tmp_path)
        server.address = f"http://{LOOPBACK}:{port}"
        try:
            server.wait_ready()
            assert answers(server)
            kill_worker(server)
            wait_restarts(server, 1)
            server.wait_ready()
            assert answers(server)
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0
        finally:
            server.http.close()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.nightly
def test_a_client_that_reads_nothing_gives_its_captured_bytes_back() -> None:
    with running_server("--send-timeout", "0.3") as server:
        server.wait_ready()
        with server.http.stream("GET", server.url + "/endless") as answer:
            assert answer.status_code == 200
            assert server.state()["stats"]["inflight_capture_bytes"] == HELD_BYTES
            wait_for(lambda: not server.state()["stats"]["inflight_capture_bytes"], "the bytes are free again")
        wait_for(lambda: "it took nothing of its answer for 0.3 s" in server.output, "the log names the client")
