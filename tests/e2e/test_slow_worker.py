"""A worker that is slowed 50 times answers everything; one that is stopped is noticed."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.model.kernels import library
from tests import tiny
from tests.server.lifecycle.calls import in_background
from tests.server.running import LOAD_PATIENCE, RunningServer, running_server, wait_for
from tests.support.processes import worker_pid

TIMEOUT = 3.0
"""Seconds for `--worker-timeout`, shorter than a step through all layers."""

pytestmark = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")


FLAGS = ("--threads", "1", "--kv-cache-memory", "256MiB", "--request-timeout", "0")


@contextmanager
def slowed(folder: Path, num_tokens: int, *flags: str) -> Iterator[RunningServer]:
    """Run a server with a slowed worker, which has answered a prompt of this number of tokens and two texts."""
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": [2 + i % 90 for i in range(num_tokens)], "max_tokens": 1},
        "/v1/embeddings": {"input": ["a b c", "d e"]},
    }
    breakable = "tests.support.breakable_server"
    with running_server(str(folder), *FLAGS, *flags, module=breakable, SLOWDOWN="50") as server:
        server.http.timeout = httpx.Timeout(20 * LOAD_PATIENCE)
        server.wait_ready()
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = dict(zip(asked, pool.map(server.post, asked, asked.values()), strict=True))
        assert {path: answer.text for path, answer in answers.items() if answer.status_code != 200} == {}
        assert answers["/v1/completions"].json()["usage"]["prompt_tokens"] == num_tokens
        assert "no progress" not in server.output
        yield server


def test_a_worker_slowed_50_times_answers_and_a_stopped_one_is_noticed(tmp_path: Path) -> None:
    folder = tiny.make("gpt2", tmp_path, n_layer=8, n_positions=512)
    with slowed(folder, 300, "--worker-timeout", str(TIMEOUT)) as server:
        worker = worker_pid(server.process.pid)
        assert worker is not None
        os.kill(worker, signal.SIGSTOP)
        waiting = in_background(lambda: server.post("/v1/completions", {"prompt": [1], "max_tokens": 1}))
        wait_for(lambda: server.status("/health/ready") == 503, "it is noticed")
        assert waiting.result().status_code == 503


@pytest.mark.nightly
def test_a_worker_slowed_50_times_answers_prompts_of_4096_tokens_with_the_default_timeout(tmp_path: Path) -> None:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    folder = tiny.make("llama", tmp_path, num_hidden_layers=2, head_dim=64, max_position_embeddings=8192, **sizes)
    with slowed(folder, 4096):
        pass
