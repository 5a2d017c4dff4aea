"""The processes of a real server around the fake engine: signals, lost workers, limits, clients that disconnect."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.fake_engine import (
    BROKEN_TOKEN,
    CRASH_TOKEN,
    FAILING_TOKEN,
    REFUSED_TOKEN,
    STUCK_TOKEN,
    expected_tokens,
)
from tests.server.fake_server import HELD_BYTES
from tests.server.lifecycle.calls import LONG, in_background, wait_inflight
from tests.server.running import RunningServer, is_running, running_server, stream_lines, wait_for


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    """One server for the tests that leave it as it was."""
    with running_server("--max-num-seqs", "2", "--max-num-queued-requests", "2") as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def battered() -> Iterator[RunningServer]:
    """One server for the tests that cost it a worker (five within a minute would end it)."""
    with running_server() as server:
        server.wait_ready()
        yield server


# ---- requests


def test_tokens_come_as_the_engine_makes_them(shared: RunningServer) -> None:
    answer = shared.post("/generate", {"prompt": [1, 2, 3], "max_tokens": 5})
    assert answer.json() == {"tokens": expected_tokens((1, 2, 3), 5)}


def test_a_stream_brings_the_same_tokens(shared: RunningServer) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 5, "stream": True}
    with shared.http.stream("POST", shared.url + "/generate", json=body) as response:
        lines = list(stream_lines(response))
    assert lines == [*map(str, expected_tokens((1, 2, 3), 5)), "[DONE]"]


def test_a_large_tensor_arrives_whole(shared: RunningServer) -> None:
    answer = shared.post("/attention", {"prompt": list(range(100)), "heads": 300})
    assert answer.json() == {"shape": [300, 100, 100], "bytes": 12_000_000}


def test_the_api_process_never_imports_torch(shared: RunningServer) -> None:
    assert shared.state()["has_torch"] is False


def test_what_the_engine_refuses_is_a_bad_request(shared: RunningServer) -> None:
    answer = shared.post("/generate", {"prompt": [REFUSED_TOKEN], "max_tokens": 1})
    assert answer.status_code == 400
    assert "begin with 67" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("token", "says"), [(FAILING_TOKEN, "a fake failure"), (BROKEN_TOKEN, "KeyError")])
def test_an_engine_error_fails_its_own_request_only(shared: RunningServer, token: int, says: str) -> None:
    answer = shared.post("/generate", {"prompt": [token], "max_tokens": 1})
    assert answer.status_code == 500
    assert says in answer.json()["error"]["message"]
    assert shared.post("/generate", {"prompt": [1], "max_tokens": 1}).status_code == 200


def test_over_the_queue_limit_requests_get_429_and_the_rest_answers(shared: RunningServer) -> None:
    body = {"prompt": [1, 2], "max_tokens": 50}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: httpx.post(shared.url + "/generate", json=body, timeout=30), range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(refused) + len(served) == 12
    assert len(served) >= 4
    assert refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.json()["tokens"] == expected_tokens((1, 2), 50) for answer in served)


def test_a_client_that_leaves_frees_its_slot(shared: RunningServer) -> None:
    with shared.http.stream("POST", shared.url + "/generate", json={**LONG, "stream": True}) as response:
        next(stream_lines(response))
    wait_inflight(shared, 0)
    wait_for(lambda: shared.state()["stats"]["num_requests_running"] == 0, "the engine has let go of it")


def test_a_client_that_leaves_while_it_waits_in_the_queue_is_forgotten(shared: RunningServer) -> None:
    body = {**LONG, "stream": True}
    with (
        shared.http.stream("POST", shared.url + "/generate", json=body) as first,
        shared.http.stream("POST", shared.url + "/generate", json=body) as second,
    ):
        streams = stream_lines(first), stream_lines(second)  # kept: httpx hangs up when an iterator is dropped
        assert all(next(lines) for lines in streams)
        with shared.http.stream("POST", shared.url + "/generate", json=body):
            wait_inflight(shared, 3)
        wait_inflight(shared, 2)
    wait_inflight(shared, 0)


def test_a_capture_over_the_budget_is_refused(shared: RunningServer) -> None:
    answer = shared.post("/generate", {"prompt": [1], "max_tokens": 1, "capture_bytes": 1 << 40})
    assert answer.status_code == 413


# ---- workers


def test_a_client_that_reads_nothing_gives_its_captured_bytes_back() -> None:
    with running_server("--send-timeout", "0.3") as server:
        server.wait_ready()
        with server.http.stream("GET", server.url + "/endless") as answer:
            assert answer.status_code == 200
            assert server.state()["stats"]["inflight_capture_bytes"] == HELD_BYTES
            wait_for(lambda: not server.state()["stats"]["inflight_capture_bytes"], "the bytes are free again")
        wait_for(lambda: "a client stalled" in server.output, "the stalled client is counted")
        assert "it took nothing of its answer for 0.3 s" in server.output


def test_a_killed_worker_fails_its_requests_and_is_replaced(battered: RunningServer) -> None:
    whole = in_background(lambda: battered.post("/generate", LONG))
    before = battered.worker_pid()
    restarts = battered.state()["restarts"]
    wait_inflight(battered, 1)
    with httpx.stream("POST", battered.url + "/generate", json={**LONG, "stream": True}, timeout=30) as response:
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
    assert battered.post("/generate", {"prompt": [3], "max_tokens": 2}).status_code == 200


def test_counters_do_not_go_back_when_a_worker_dies(battered: RunningServer) -> None:
    before = battered.state()
    battered.post("/generate", {"prompt": [1, 2], "max_tokens": 9})
    os.kill(battered.worker_pid(), signal.SIGKILL)
    wait_for(lambda: battered.state()["restarts"] > before["restarts"], "the worker is replaced")
    battered.wait_ready()
    battered.post("/generate", {"prompt": [1, 2, 3], "max_tokens": 1})
    stats = battered.state()["stats"]
    assert stats["generation_tokens_total"] == before["stats"]["generation_tokens_total"] + 10
    assert stats["prompt_tokens_total"] == before["stats"]["prompt_tokens_total"] + 5


def test_an_engine_that_raises_costs_the_worker_and_not_the_server(battered: RunningServer) -> None:
    assert battered.post("/generate", {"prompt": [CRASH_TOKEN], "max_tokens": 1}).status_code == 503
    battered.wait_ready()
    assert "the fake engine crashes" in battered.output
    assert battered.post("/generate", {"prompt": [1], "max_tokens": 1}).status_code == 200


def test_a_stopped_worker_makes_the_server_unready_until_it_goes_on() -> None:
    with running_server("--worker-timeout", "1.5") as server:
        server.wait_ready()
        pid = server.worker_pid()
        waiting = in_background(lambda: server.post("/generate", LONG))
        wait_inflight(server, 1)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: server.status("/health/ready") == 503, "the silence is noticed")
        assert server.status("/health/live") == 200
        assert waiting.result().status_code == 503
        os.kill(pid, signal.SIGCONT)
        server.wait_ready()
        assert server.post("/generate", {"prompt": [1], "max_tokens": 1}).status_code == 200


def test_a_stuck_step_gets_the_worker_killed_and_replaced() -> None:
    with running_server("--worker-timeout", "1") as server:
        server.wait_ready()
        before = server.worker_pid()
        answer = server.post("/generate", {"prompt": [STUCK_TOKEN], "max_tokens": 1})
        assert answer.status_code == 503
        wait_for(lambda: server.state()["restarts"] == 1, "the stuck worker is killed")
        server.wait_ready()
        assert server.worker_pid() != before


def test_a_request_over_its_time_gets_504_although_the_worker_is_stuck() -> None:
    with running_server("--request-timeout", "0.2") as server:
        server.wait_ready()
        assert server.post("/generate", LONG).status_code == 504
        assert server.post("/generate", {"prompt": [STUCK_TOKEN], "max_tokens": 1}).status_code == 504


def test_a_worker_that_never_starts_ends_the_server() -> None:
    with running_server(FAKE_LOAD_EXIT="9") as server:
        assert server.wait_exit() == 1
        last = server.output.splitlines()[-1]
        assert last.startswith("lightwell: error: the worker ended 5 times")
        server.wait_all_gone()


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line() -> None:
    with running_server(FAKE_LOAD_ERROR="model.safetensors is truncated: 12 of 4096 bytes") as server:
        assert server.wait_exit() == 1
        lines = server.output.splitlines()
        assert lines[1:] == ["lightwell: error: model.safetensors is truncated: 12 of 4096 bytes"]
        server.wait_all_gone()


def test_the_server_is_alive_and_not_ready_while_the_model_loads() -> None:
    with running_server(FAKE_LOAD_SECONDS="3600") as server:
        wait_for(lambda: server.status("/health/live") == 200, "the server is alive")
        wait_for(lambda: server.get("/health/ready").text.endswith("loading the model: 50 %"), "progress is told")
        assert server.status("/health/ready") == 503
        assert server.post("/generate", {"prompt": [1], "max_tokens": 1}).status_code == 503
        worker = server.worker_pid()
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        wait_for(lambda: not is_running(worker), "the worker leaves in the middle of loading")


def test_a_worker_that_is_killed_while_it_loads_is_replaced_before_and_after_the_server_was_ready() -> None:
    with running_server(FAKE_LOAD_SECONDS="3") as server:
        wait_for(lambda: server.status("/health/live") == 200, "the server is alive")
        wait_for(lambda: server.get("/health/ready").text.endswith("loading the model: 50 %"), "the first worker loads")
        os.kill(server.worker_pid(), signal.SIGKILL)
        wait_for(lambda: server.state()["restarts"] == 1, "another worker is started")
        server.wait_ready()
        last = server.worker_pid()
        os.kill(last, signal.SIGKILL)
        wait_for(lambda: server.state()["pids"][0] not in (None, last), "the next worker has connected, and loads")
        assert server.status("/health/ready") == 503
        os.kill(server.worker_pid(), signal.SIGKILL)
        wait_for(lambda: server.state()["restarts"] == 3, "yet another worker is started")
        server.wait_ready()
        assert server.post("/generate", {"prompt": [1, 2], "max_tokens": 3}).json() == {
            "tokens": expected_tokens((1, 2), 3)
        }


# ---- the end
