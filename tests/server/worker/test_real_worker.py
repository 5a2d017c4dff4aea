"""One real server for most tests: its worker's kernels and memory, and a model folder that changes under it."""

import os
import re
import resource
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.kernels import library
from lightwell.server.engine.memory.process_memory import data_bytes
from tests.server.running import RunningServer, running_server, wait_for
from tests.support.processes import descendants, proportional_bytes, worker_pid
from tests.support.wire import samples
from tests.support.worker_memory import leave_room

SERVE = ("serve", "--threads", "1")
TEXT = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True, "logprobs": 3}
LOOK = {"input": [list(range(5, 505))], "points": ["attn.hook_pattern", "attn.hook_attn_scores"]}
"""Inspection request that captures 96 MB of attention."""


def text(server: RunningServer) -> Any:
    answer = server.post("/v1/completions", TEXT)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def look(server: RunningServer, body: dict[str, Any] = LOOK) -> httpx.Response:
    accept = {"accept": "application/vnd.safetensors"}
    return server.http.post(server.url + "/v1/trace", json=body, headers=accept)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packaged model, which the last test changes."""
    return Path(shutil.copytree(PACKAGED, tmp_path_factory.mktemp("served") / "model"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    levels = library.levels()
    kernels = ("--kernels", "native", "--kernel-arithmetic", "float32") if levels else ()
    level = {"LIGHTWELL_KERNEL_LEVEL": levels[0]} if levels else {}
    with running_server(
        *SERVE, str(folder), "--kv-cache-memory", "2GiB", *kernels, module="lightwell", **level
    ) as server:
        server.wait_ready()
        yield server


def test_a_cache_that_is_reserved_takes_memory_as_requests_use_it(server: RunningServer) -> None:
    """This test is the first one of this server."""
    worker = worker_pid(server.process.pid)
    assert worker is not None
    assert data_bytes(worker) > 2 << 30, "limits count all of the cache"
    used = [samples(server.get("/metrics").text)["lightwell_kv_cache_committed_bytes"]]
    for first in (100, 400, 700):
        body = {"prompt": list(range(first, first + 200)), "max_tokens": 2, "temperature": 0}
        assert server.post("/v1/completions", body).status_code == 200
        used.append(samples(server.get("/metrics").text)["lightwell_kv_cache_committed_bytes"])
    assert 0 == used[0] < used[1] < used[2] < used[3] < 64 << 20
    assert sum(map(proportional_bytes, descendants(server.process.pid))) < 1_500_000_000


@pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")
def test_a_server_computes_with_the_kernels_and_the_level_that_it_is_told_to_and_says_so(server: RunningServer) -> None:
    told = server.get("/v1/capabilities").json()
    names = ("kernels", "kernel_level", "kernel_arithmetic", "same_bits_across")
    assert [told[name] for name in names] == ["native", library.levels()[0], "float32", "every_level"]
    assert "warning" not in server.output.lower()


def test_a_look_without_memory_gets_503_and_its_neighbours_keep_their_bits(server: RunningServer) -> None:
    """Lower the memory limit of the worker, which it has by default."""
    worker = worker_pid(server.process.pid)
    assert worker is not None
    limit, _ = resource.prlimit(worker, resource.RLIMIT_DATA)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < limit < 2 * machine  # the limit includes memory that is reserved but untouched
    quiet = text(server)
    leave_room(server.process.pid, 64 << 20)
    with ThreadPoolExecutor(4) as pool:
        neighbours = [pool.submit(text, server) for _ in range(3)]
        answers = [look(server) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503] * 3
    assert answers[0].json()["error"]["code"] == "no_memory"
    assert answers[0].headers["retry-after"]
    assert [each.result() for each in neighbours] == [quiet] * 3
    metrics = samples(server.get("/metrics").text)
    assert metrics['lightwell_request_failed_total{reason="no_memory"}'] == 3
    assert metrics["lightwell_worker_restarts_total"] == 0
    assert text(server) == quiet


def test_a_worker_that_would_load_other_weights_is_not_started_again(server: RunningServer, folder: Path) -> None:
    """This test is the last one of the shared server, which ends."""
    body = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
    before = server.post("/v1/completions", body).json()["choices"]
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4096:] = bytes(4096)
    with weights.open("r+b") as file:  # in place: the weights that run were copied when they were read
        file.write(content)
    assert server.post("/v1/completions", body).json()["choices"] == before
    worker = worker_pid(server.process.pid)
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    assert server.wait_exit() == 1
    last = server.output.splitlines()[-1]
    assert last.startswith("lightwell: error: model_changed: ")
    assert "model.safetensors was changed" in last
    wait_for(lambda: not list(server.tmp.glob("lightwell-*")), "nothing is left behind")


@pytest.mark.nightly
def test_looks_that_fit_only_one_by_one_are_asked_to_wait_and_none_is_without_memory() -> None:
    with running_server(*SERVE, "--kv-cache-memory", "8MiB", "--worker-memory", "1", module="lightwell") as server:
        assert server.wait_exit() == 1
        found = re.search(r"--worker-memory 1 \(bytes\) is not enough: (\d+) bytes are needed", server.output)
        assert found, server.output
    small = {**LOOK, "points": ["attn.hook_pattern"], "layers": [0]}  # 8 MB
    room = str(int(found[1]) + (120 << 20))
    with running_server(*SERVE, "--kv-cache-memory", "8MiB", "--worker-memory", room, module="lightwell") as server:
        server.wait_ready()
        quiet = text(server)
        limit = server.get("/v1/capabilities").json()["limits"]["max_capture_bytes"]
        assert 8 << 20 < limit < 20 << 20
        answer = look(server)
        assert answer.status_code == 413
        assert (
            f"at most {limit} are accepted (--max-capture-bytes, --worker-memory)" in answer.json()["error"]["message"]
        )
        with ThreadPoolExecutor(8) as pool:
            neighbours = [pool.submit(text, server) for _ in range(2)]
            answers = list(pool.map(lambda _: look(server, small), range(24)))
        assert {answer.status_code for answer in answers} == {200, 429}
        assert [each.result() for each in neighbours] == [quiet] * 2
        assert samples(server.get("/metrics").text)["lightwell_worker_restarts_total"] == 0
