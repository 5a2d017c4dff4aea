"""A worker that is slowed 50 times answers everything; one that is stopped is noticed."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.model.kernels import library
from tests import tiny
from tests.server.lifecycle.calls import in_background
from tests.server.running import LOAD_PATIENCE, running_server, wait_for
from tests.support.processes import worker_pid

TIMEOUT = 3.0
"""Seconds for `--worker-timeout`, shorter than a step through all layers."""
DETECTION = 5.0
"""Seconds after the timeout within which a stopped worker is noticed."""

pytestmark = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")


def test_a_worker_slowed_50_times_answers_and_a_stopped_one_is_noticed(tmp_path: Path) -> None:
    folder = tiny.make("gpt2", tmp_path, n_layer=8, n_positions=512)
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": [2 + i % 90 for i in range(300)], "max_tokens": 1},
        "/v1/embeddings": {"input": ["a b c", "d e"]},
    }
    flags = (
        "--threads",
        "1",
        "--kv-cache-memory",
        "256MiB",
        "--request-timeout",
        "0",
        "--worker-timeout",
        str(TIMEOUT),
    )
    with running_server(str(folder), *flags, module="tests.support.breakable_server", SLOWDOWN="50") as server:
        server.http.timeout = httpx.Timeout(20 * LOAD_PATIENCE)
        server.wait_ready()
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = dict(zip(asked, pool.map(server.post, asked, asked.values()), strict=True))
        assert {path: answer.text for path, answer in answers.items() if answer.status_code != 200} == {}
        assert answers["/v1/completions"].json()["usage"]["prompt_tokens"] == 300
        assert "no progress" not in server.output
        worker = worker_pid(server.process.pid)
        assert worker is not None
        os.kill(worker, signal.SIGSTOP)
        waiting = in_background(lambda: server.post("/v1/completions", {"prompt": [1], "max_tokens": 1}))
        wait_for(lambda: server.status("/health/ready") == 503, "it is noticed", patience=TIMEOUT + DETECTION)
        assert waiting.result().status_code == 503
