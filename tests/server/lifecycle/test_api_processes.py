"""Several API processes on one port: one state, whichever process a client reaches; a killed one is replaced."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.server.config.auth.keys import key_entry, new_key
from lightwell.server.config.settings import Settings, SettingsError
from tests.server.lifecycle.calls import assert_nothing_left, in_background
from tests.server.running import PATIENCE, RunningServer, running_server, wait_for
from tests.support.wire import samples

NUM_PROCESSES = 3
ADMIN, ONE, GONE = "admin-key-0123456789", "one-at-a-time-0123456789", "revoked-key-0123456789"
BODY = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
SUBMITTED = "lightwell_requests_submitted_total"
REASONS = ("stop", "length", "done", "abort")
LONG = {**BODY, "max_tokens": 400, "ignore_eos": True}


@contextmanager
def several(*flags: str) -> Iterator[RunningServer]:
    flags = ("fables", "--api-processes", str(NUM_PROCESSES), "--max-num-seqs", "8", *flags)
    with running_server(*flags, module="tests.server.lightwell_command") as server:
        server.wait_ready()
        wait_for(lambda: len(reached(server)) == NUM_PROCESSES, "each process answers")
        yield server


def post(server: RunningServer, body: dict[str, Any], key: str = ADMIN, name: str = "") -> httpx.Response:
    """Send a request on a connection of its own."""
    headers = {"authorization": f"Bearer {key}"} | ({"x-request-id": name} if name else {})
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)


def reached(server: RunningServer) -> set[int]:
    """Send requests on as many connections, and return the numbers of the processes that have answered any so far."""
    for _ in range(2 * NUM_PROCESSES):
        post(server, BODY)
    return set(map(int, re.findall(r" api-(\d) \S+access_log: \S+ POST /v1/completions", server.output)))


def process_of(server: RunningServer, name: str) -> int:
    """Return the number of the process that has logged a request."""
    found = wait_for(lambda: re.search(rf" api-(\d) \S+access_log: {name} ", server.output), f"{name} is logged")
    return int(found[1])


def pids(server: RunningServer) -> dict[int, int]:
    """Return the last process id of each API process."""
    return {int(i): int(pid) for i, pid in re.findall(r"API process (\d) is process (\d+)", server.output)}


def metric(server: RunningServer, name: str) -> float:
    return samples(httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text)[name]


def ends(server: RunningServer) -> dict[str, float]:
    """Return the numbers of requests that ended, by their finish reason."""
    found = samples(httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text)
    return {reason: found[f'lightwell_request_success_total{{finish_reason="{reason}"}}'] for reason in REASONS}


def worker_pid(server: RunningServer) -> int:
    headers = {"authorization": f"Bearer {ADMIN}"}
    state = httpx.get(f"{server.url}/admin/state", headers=headers, timeout=PATIENCE)
    (worker,) = state.json()["models"]["fables"]["workers"]
    pid: int = worker["pid"]
    return pid


def test_all_processes_share_keys_limits_files_and_metrics(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    kept = key_entry("admin", ADMIN, is_admin=True) + key_entry("one", ONE, is_admin=False) + "max_requests = 1\n"
    file.write_text(kept + key_entry("gone", GONE, is_admin=False))
    (tmp_path / "batches").mkdir(mode=0o700)
    flags = "--api-key-file", str(file), "--batch-dir", str(tmp_path / "batches"), "--worker-timeout", "600"
    with several(*flags) as server:
        admin = {"authorization": f"Bearer {ADMIN}"}
        counted = 'lightwell_http_requests_total{method="POST",route="/v1/completions",status="200"}'
        before = metric(server, SUBMITTED)
        texts = {post(server, BODY).json()["choices"][0]["text"] for _ in range(12)}
        assert len(texts) == 1
        # A process counts a request once its answer is sent.
        wait_for(lambda: metric(server, counted) == before + 12 == metric(server, SUBMITTED), "all are counted")

        files, form = f"{server.url}/v1/files", {"data": {"purpose": "batch"}, "files": {"file": b"{}\n"}}
        sent = httpx.post(files, headers=admin, timeout=PATIENCE, **form).json()
        read = [httpx.get(f"{files}/{sent['id']}", headers=admin, timeout=PATIENCE).json() for _ in range(12)]
        assert read == [sent] * 12

        worker = worker_pid(server)
        os.kill(worker, signal.SIGSTOP)  # so that the first request runs until the others are refused
        first = in_background(lambda: post(server, BODY, ONE))
        name = 'lightwell_key_requests_in_flight{key="one"}'
        wait_for(lambda: metric(server, name) == 1, "the request is counted")
        codes = [post(server, BODY, ONE).json()["error"]["code"] for _ in range(12)]
        os.kill(worker, signal.SIGCONT)
        assert codes == ["key_requests_exceeded"] * 12
        assert first.result().status_code == 200
        wait_for(lambda: metric(server, name) == 0, "the end of the request is counted")
        assert post(server, BODY, ONE).status_code == 200

        assert post(server, BODY, GONE).status_code == 200
        added = new_key()
        file.write_text(kept + key_entry("added", added, is_admin=False) + "tokens_per_minute = 1\n")
        # Each process reads the file itself. By chance, twelve requests miss one of three in one of 40 runs.
        wait_for(lambda: {post(server, BODY, GONE).status_code for _ in range(40)} == {401}, "the key is revoked")
        assert {post(server, BODY, added).status_code for _ in range(12)} == {200, 429}


def test_a_killed_process_ends_only_its_connections_and_is_replaced_and_all_drain(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(key_entry("admin", ADMIN, is_admin=True))
    with several("--api-key-file", str(file), "--worker-timeout", "600", "--shutdown-grace", "600") as server:
        url, worker, before = server.url, worker_pid(server), pids(server)
        ended = metric(server, SUBMITTED)
        os.kill(worker, signal.SIGSTOP)  # so that no request ends before a process is killed
        calls = [in_background(lambda i=i: post(server, LONG, name=f"call-{i}")) for i in range(8)]
        wait_for(lambda: metric(server, SUBMITTED) == ended + 8, "all run")
        os.kill(before[0], signal.SIGKILL)
        wait_for(lambda: pids(server)[0] != before[0], "the process is replaced")
        os.kill(worker, signal.SIGCONT)
        answers = [call.result() for call in calls]
        whole = [each for each in answers if isinstance(each, httpx.Response)]
        assert {each.json()["choices"][0]["text"] for each in whole} == {
            post(server, LONG).json()["choices"][0]["text"]
        }
        served = [process_of(server, f"call-{i}") for i, each in enumerate(answers) if each in whole]
        assert 0 not in served
        wait_for(lambda: sum(ends(server).values()) == ended + 9 == metric(server, SUBMITTED), "all are counted")
        assert ends(server)["abort"] >= 8 - len(whole)

        os.kill(worker, signal.SIGSTOP)
        last = in_background(lambda: post(server, LONG))
        wait_for(lambda: metric(server, SUBMITTED) == ended + 10, "the last request runs")
        os.killpg(server.process.pid, signal.SIGTERM)  # as a terminal and systemd do
        wait_for(lambda: server.output.count("the server drains") == 1 + NUM_PROCESSES, "all drain")
        os.kill(worker, signal.SIGCONT)
        assert last.result().status_code == 200
        assert server.wait_exit() == 0
        assert_nothing_left(server, url)


def test_several_models_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--api-processes 2 excludes --models-dir"):
        Settings.from_sources({"api_processes": "2", "models_dir": "models"}, {})
