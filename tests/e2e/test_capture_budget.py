"""Many clients trace more than the server may hold: refused clients get a Retry-After header, and memory is bounded.

One server has a capture budget that holds two of the traces that are requested, by twelve clients at once.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.running import wait_for
from tests.support.processes import Server, descendants, serve
from tests.support.wire import samples

NUM_LAYERS, NUM_HEADS = 6, 8  # of the default model
LENGTH = 300
TRACE_BYTES = NUM_LAYERS * NUM_HEADS * LENGTH * LENGTH * 4
BUDGET = 2 * TRACE_BYTES + (4 << 20)
AT_ONCE = 12
BINARY = {"accept": "application/vnd.safetensors"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that cannot import Triton, which torch for CUDA brings and torch for the CPU does not."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "triton.py").write_text("raise ModuleNotFoundError(\"No module named 'triton'\", name='triton')\n")
    flags = ["--dtype", "float32", "--max-capture-bytes", str(BUDGET)]
    with serve(flags, environment={"PYTHONPATH": str(folder)}) as running:
        yield running


def test_a_server_on_a_cpu_needs_no_triton(server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0, "attention": {}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False).json()
    assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["attention"]["attention"][0][0]) == 3


def trace(server: Server, first_token: int) -> httpx.Response:
    prompt = [first_token + i % 97 for i in range(LENGTH)]
    body = {"input": prompt, "points": ["attn.hook_pattern"], "layers": "all"}
    return httpx.post(f"{server.url}/v1/trace", json=body, headers=BINARY, timeout=120, trust_env=False)


def held_bytes(server: Server) -> float:
    metrics = httpx.get(f"{server.url}/metrics", timeout=60, trust_env=False).text
    return samples(metrics)["lightwell_inflight_capture_bytes"]


def most_memory(server: Server) -> int:
    """Return the peak memory of each of the server's processes, summed, in bytes."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in descendants(server.pid)]
    return sum(1024 * int(text.partition("VmHWM:")[2].split()[0]) for text in statuses if "VmHWM:" in text)


def test_over_the_budget_clients_are_told_when_to_come_back_and_memory_stays_bounded(server: Server) -> None:
    warm = trace(server, 99)
    assert warm.status_code == 200, warm.text
    before = most_memory(server)
    together = threading.Barrier(AT_ONCE)

    def ask(first_token: int) -> httpx.Response:
        together.wait()
        return trace(server, first_token)

    tokens = range(100, 100 + AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = dict(zip(tokens, pool.map(ask, tokens), strict=True))
    refused = [answer for answer in answers.values() if answer.status_code == 429]
    taken = {token: answer.content for token, answer in answers.items() if answer.status_code == 200}
    assert refused
    assert taken
    assert len(refused) + len(taken) == AT_ONCE
    for answer in refused:
        assert answer.json()["error"]["code"] == "capture_budget_full"
        assert int(answer.headers["retry-after"]) >= 1
    wait_for(lambda: held_bytes(server) == 0, "all captured bytes are given back")
    # The two traces within the budget, and copies on their way to clients: how many depends on how fast each process
    # runs. Without the budget, worker and API process would each hold all twelve.
    assert most_memory(server) - before < AT_ONCE * TRACE_BYTES
    assert taken == {token: trace(server, token).content for token in taken}
