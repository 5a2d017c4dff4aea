"""Several workers behind one API process give the numbers of one worker and share the work. The loss of a worker
affects only its own requests.
"""

import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.server.config.devices import Places, places
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.memory.kv_cache_size import CPU_SHARE, num_cache_blocks
from lightwell.server.engine.memory.process_memory import free_in_share
from lightwell.server.engine.messages.outputs import RequestOutput
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.ipc.messages import Ready
from lightwell.server.lifecycle.model_host import at_places
from tests.server.fake_engine import expected_tokens
from tests.server.lifecycle.calls import dump_with_engines
from tests.server.narrow_client import two_workers
from tests.server.played_worker import INFO, PlayedWorker, generate, until
from tests.server.running import PATIENCE, Client, RunningServer, running_server, stream_lines, wait_for
from tests.support.shared import shared_server


def metric(server: RunningServer, name: str) -> list[float]:
    """Return the values of a metric, in the order of its lines: one for each worker if it has them."""
    lines = server.get("/metrics").text.splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]


def hits(server: RunningServer) -> np.ndarray:
    """Return the numbers of prompt tokens that were found in the caches, and that the API process expected there."""
    names = ("lightwell_prefix_cache_hits_total", "lightwell_routed_prefix_tokens_total")
    return np.array([metric(server, name)[0] for name in names])


def given(server: RunningServer) -> np.ndarray:
    return np.array(metric(server, "lightwell_worker_requests_total"))


# ---- the client, against played workers


@pytest.fixture
async def played() -> AsyncIterator[list[PlayedWorker]]:
    async with two_workers() as workers:
        yield workers


async def test_what_is_left_to_do_shrinks_with_every_token_and_ends_at_nothing(played: list[PlayedWorker]) -> None:
    client = played[0].client
    first, second = [
        await client.submit(EngineRequest(prompt_token_ids=(1,) * length, task=generate(8)), RequestContext())
        for length in (20, 10)
    ]
    assert [worker.num_tokens_left for worker in client.workers] == [28, 18]
    played[0].step(RequestOutput(uid=first.uid, token_id=1), stepped=False)  # a grammar forces it
    await until(lambda: client.workers[0].num_tokens_left == 27)
    assert not first.was_read
    played[0].step(RequestOutput(uid=first.uid, token_id=1))
    await until(lambda: client.workers[0].num_tokens_left == 6)  # the prompt is read, and a token was written
    played[0].step(RequestOutput(uid=first.uid, token_id=1))
    await until(lambda: client.workers[0].num_tokens_left == 5)
    third = await client.submit(EngineRequest(prompt_token_ids=(2,) * 5, task=generate(3)), RequestContext())
    assert [worker.num_tokens_left for worker in client.workers] == [13, 18]
    played[0].step(RequestOutput(uid=first.uid, token_id=1, finish_reason="stop"))
    await until(lambda: client.workers[0].num_tokens_left == 8)
    second.close()
    third.close()
    assert [worker.num_tokens_left for worker in client.workers] == [0, 0]
    assert [worker.requests_total for worker in client.workers] == [2, 1]


async def test_a_prefix_is_known_until_its_worker_ends(played: list[PlayedWorker]) -> None:
    client = played[0].client

    async def routed(cache_salt: str = "") -> tuple[int, int]:
        """Return the worker that gets the prompt, and how many of its tokens it had cached."""
        before = client.counts.routed_prefix_tokens
        context = RequestContext(cache_salt=cache_salt)
        handle = await client.submit(EngineRequest(prompt_token_ids=tuple(range(40)), task=generate(4)), context)
        chosen = next(worker.worker_id for worker in client.workers if worker.requests)
        handle.close()
        return chosen, client.counts.routed_prefix_tokens - before

    async def left_of_a_request_with_the_prefix(chosen: int) -> list[int]:
        """Return the tokens left for the worker: after the request is sent, after its first token, and at its end."""
        worker = client.workers[chosen]
        handle = await client.submit(
            EngineRequest(prompt_token_ids=tuple(range(40)), task=generate(4)), RequestContext()
        )
        left = [worker.num_tokens_left]
        played[chosen].step(RequestOutput(uid=handle.uid, token_id=1))
        await until(lambda: handle.was_read)
        left.append(worker.num_tokens_left)
        played[chosen].step(RequestOutput(uid=handle.uid, token_id=1, finish_reason="stop"))
        await until(lambda: not worker.requests)
        return [*left, worker.num_tokens_left]

    first, _ = await routed()
    assert [await routed() for _ in range(2)] == [(first, 2 * INFO.block_size)] * 2
    assert [(await routed("a salt"))[1] for _ in range(2)] == [0, 2 * INFO.block_size]
    assert await left_of_a_request_with_the_prefix(first) == [40 - 2 * INFO.block_size + 4, 3, 0]
    played[first].link.close()
    await until(lambda: not client.workers[first].is_ready)
    assert not client.ready(), "one of two workers is not enough"
    assert await routed() == (1 - first, 0)
    played[first] = PlayedWorker(client, first)
    played[first].say(Ready(INFO))
    await until(lambda: client.workers[first].is_ready)
    assert await routed() == (1 - first, 2 * INFO.block_size)


# ---- memory


FREE = 1 << 36
"""Bytes of free memory in these tests. They are fixed, since the real free memory changes while tests run."""


def test_several_workers_share_what_is_free_and_one_has_it_all() -> None:
    config = EngineConfig(model=PACKAGED)
    assert at_places(config, Places("cpu"), FREE, 1) == config
    shared = at_places(config, places(4, "cpu"), FREE, 1)
    assert (shared.device, shared.memory_share) == ("cpu", FREE // 4)


def test_several_models_share_what_is_free_and_a_gpu() -> None:
    config = EngineConfig(model=PACKAGED, gpu_memory_utilization=0.9)
    shared = at_places(config, Places("cpu"), FREE, 3)
    assert (shared.memory_share, shared.gpu_memory_utilization) == (FREE // 3, pytest.approx(0.3))
    assert at_places(config, places(2, "cpu"), FREE, 3).memory_share == FREE // 6
    assert at_places(config, Places("cpu"), None, 3).memory_share is None


def test_a_worker_chooses_its_cache_from_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightwell.server.engine.memory.process_memory.free_host_memory", lambda: FREE)
    model, dtype, cpu = read_config(PACKAGED), torch.bfloat16, torch.device("cpu")
    config = EngineConfig(model=PACKAGED, max_num_seqs=1 << 20)  # more contexts than fit

    def cache_bytes(share: int | None) -> int:
        blocks = num_cache_blocks(replace(config, memory_share=share), model, dtype, cpu, 512)
        return blocks * KVCache.bytes_per_block(model, config.block_size, dtype)

    taken = next(share for share in range(0, FREE, 1 << 22) if free_in_share(share))  # the first that leaves anything
    assert cache_bytes(taken + (256 << 20)) == pytest.approx(CPU_SHARE * (256 << 20), rel=0.1)
    assert cache_bytes(None) == pytest.approx(CPU_SHARE * FREE, rel=0.1)


# ---- the same numbers

INPUTS = ["Once upon a time there was a king who had three sons", "In the forest lived an old fox, who"] * 4
"""As many as are shared out among the workers."""
COMPLETION = {"prompt": INPUTS, "max_tokens": 16, "logprobs": 3, "ignore_eos": True, "temperature": 0}
ZERO = [{"point": "attn.hook_z", "layer": 2, "head": 1, "op": "zero"}]
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", COMPLETION),
    ("/v1/completions", COMPLETION | {"prompt": INPUTS[:2], "n": 4, "temperature": 1, "seed": 7}),
    ("/v1/completions", COMPLETION | {"interventions": ZERO}),
    ("/v1/attention", {"input": INPUTS}),
    ("/v1/embeddings", {"input": INPUTS}),
    ("/v1/trace", {"input": INPUTS, "points": ["attn.hook_q", "hook_resid_post"], "layers": 2}),
]


def answer(server: Client, path: str, body: dict[str, Any]) -> Any:
    """Return the numbers of an answer, without its id and time."""
    is_text = path == "/v1/completions"
    accept = "application/json" if is_text else "application/vnd.safetensors"
    got = server.http.post(server.url + path, json=body, headers={"accept": accept})
    assert got.status_code == 200, got.text
    if is_text:
        return got.json()["choices"]
    return {name: (array.shape, array.tobytes()) for name, array in load(got.content).items()}


def test_two_workers_give_the_bits_of_one_and_prompts_go_where_their_beginnings_lie() -> None:
    flags = ("--served-model-name", "fables", "--dtype", "float32")
    one = Client(shared_server(*flags).url)
    places = ("--device", "cpu", "--devices", "2", "--threads", "1")
    with one.http, running_server(*flags, *places, module="tests.server.lightwell_command") as two:
        two.wait_ready()
        for path, body in QUESTIONS:
            expected, before = answer(one, path, body), given(two)
            assert answer(two, path, body) == expected, body
            assert (given(two) > before).all(), f"{body} was not answered by every worker"
        capabilities = [each.get("/v1/capabilities").json() for each in (one, two)]
        for each in capabilities:
            del each["limits"]["max_capture_bytes"]  # at most half of the memory that was free when the server started
        assert capabilities[0] == capabilities[1]
        for group in range(4):  # one after the other, so that no load decides
            beginning = [10 + group] * 200
            before = hits(two)
            for i in range(4):
                prompt = [*beginning, 50 + i]
                assert two.post("/v1/completions", {"prompt": prompt, "max_tokens": 2}).status_code == 200
            found, foretold = (hits(two) - before).tolist()
            assert foretold == 3 * 192
            assert foretold <= found < foretold + 3 * 32  # plus the equal beginning of a partly equal block


# ---- load and loss, around the fake engine


def test_one_worker_lost_costs_its_own_requests_alone(tmp_path: Path) -> None:
    hang, is_over = tmp_path / "hang", Event()
    ends: list[list[Any]] = [[] for _ in range(8)]

    def stream(server: RunningServer, lines: list[Any]) -> None:
        # Each takes about 1,000 s: none ends by itself, even on a slow machine.
        body = {"prompt": [1, 2], "max_tokens": 100_000, "stream": True}
        with httpx.stream("POST", server.url + "/fake", json=body, timeout=PATIENCE) as answer:
            for line in stream_lines(answer):
                lines.append(line)
                if is_over.is_set():
                    return

    command = ("--device", "cpu", "--devices", "2", "--log-format", "json")
    env = {"FAKE_LOAD_HANGS": str(hang), "FAKE_STEP_SECONDS": "0.01"}
    with ExitStack() as stack:
        server = stack.enter_context(running_server(*command, **env))
        pool = stack.enter_context(ThreadPoolExecutor(8))
        stack.callback(is_over.set)  # first of all at the end: the pool waits for its threads
        server.wait_ready()
        pids = server.state()["pids"]
        streams = [pool.submit(stream, server, lines) for lines in ends]
        wait_for(lambda: server.state()["stats"]["num_requests_running"] == 8, "eight streams run")
        state = dump_with_engines(server)
        assert [len(worker["engine"]["running"]) for worker in state["workers"]] == [4, 4]
        assert sorted(flight["worker"] for flight in state["in_flight"]) == [0, 0, 0, 0, 1, 1, 1, 1]
        hang.touch()  # the next worker that starts stays where it is
        os.kill(pids[0], signal.SIGKILL)
        wait_for(lambda: not hang.exists(), "another is started in its place")
        assert server.get("/health/ready").text == "worker 0 was lost and is being restarted"
        answers = [server.post("/fake", {"prompt": [i], "max_tokens": 3}) for i in range(4)]
        assert [answer.json() for answer in answers] == [{"tokens": expected_tokens((i,), 3)} for i in range(4)]
        wait_for(lambda: sum(each.done() for each in streams) == 4, "the requests of the lost worker end")
        lost = [lines for each, lines in zip(streams, ends, strict=True) if each.done()]
        assert [(lines[-2], lines[-1]["error"]["code"]) for lines in lost] == [("error", "worker_lost")] * 4
        others = [lines for each, lines in zip(streams, ends, strict=True) if not each.done()]
        enough = max(map(len, others)) + 50
        wait_for(lambda: min(map(len, others)) >= enough, "the others go on")
        is_over.set()
        assert [each.exception() for each in streams] == [None] * 8
        assert others == [[*map(str, expected_tokens((1, 2), len(lines)))] for lines in others]
        os.kill(wait_for(lambda: server.state()["pids"][0], "the one that hangs is connected"), signal.SIGKILL)
        server.wait_ready()
        assert server.state()["pids"][1] == pids[1]
        assert server.state()["restarts"] == 2
