"""Several models in one real server: the bits of single-model servers, lost workers, loading, unloading and memory."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from tests.e2e.checkpoints import folder_of
from tests.server.running import running_server, wait_for
from tests.support.processes import Server, descendants, is_worker, serve
from tests.support.shared import once
from tests.tiny import make_classifier

pytestmark = pytest.mark.nightly

MIB = 1 << 20
FLAGS = ("--threads", "1", "--log-level", "warning")
NO_MODEL = {"LIGHTWELL_MODEL": ""}
"""Without this variable, which names a model in tests."""
WORDS = ("Once upon a time", "The king", "A fox and a crow", "Nobody")
TEXT = [{"prompt": each, "max_tokens": 24, "temperature": 1, "seed": 7, "logprobs": 3} for each in WORDS]
LONG = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 1, "seed": 1, "ignore_eos": True}


def classifier() -> Path:
    return once("a cross-encoder", lambda folder: make_classifier("bert", folder, num_labels=1))


def models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the models: a source and own settings of each."""
    return {
        "plain": ("fables", {}),
        "fast": ("fables", {"quantize": "int8", "activations": "int8"}),
        "vectors": (str(folder_of("bert")), {}),
        "ranks": (str(classifier()), {}),
    }


def requests_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return requests for a model: path and body."""
    if name == "vectors":
        return [("/v1/embeddings", {"input": list(WORDS), "encoding_format": "base64"})]
    if name == "ranks":
        return [("/v1/rerank", {"query": word, "documents": list(WORDS)}) for word in WORDS]
    looks = [("/v1/attention", {"input": word}) for word in WORDS]
    return [*(("/v1/completions", body) for body in TEXT), *looks]


def bits_of(url: str, name: str | None, path: str, body: Mapping[str, Any]) -> Any:
    """Return an answer without its id, time, name and number of cached tokens."""
    answer = httpx.post(url + path, json={**body, "model": name}, timeout=120)
    assert answer.status_code == 200, answer.text
    return {key: value for key, value in answer.json().items() if key not in ("id", "created", "model", "usage")}


def workers(server: Server) -> set[int]:
    return {pid for pid in descendants(server.pid) if is_worker(pid)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("config") / "lightwell.yaml"
    named = {name: {"model": source, **settings} for name, (source, settings) in models().items()}
    file.write_text(json.dumps({"models": named}))  # which is YAML too
    with serve([*FLAGS, "--config", str(file)], environment=NO_MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def single() -> tuple[dict[str, list[Any]], dict[str, tuple[int, int]]]:
    """Answers of a single-model server of each model, and the memory of its API process and of all its processes."""
    answers, memory = {}, {}
    for name, (source, settings) in models().items():
        flags = [text for key, value in settings.items() for text in (f"--{key}", value)]
        with serve([*FLAGS, source, *flags]) as alone:
            answers[name] = [bits_of(alone.url, None, *each) for each in requests_of(name)]
            used = alone.resident_bytes()
            memory[name] = used[alone.pid], sum(used.values())
    return answers, memory


def test_answers_have_the_bits_of_single_model_servers(server: Server, single: Any) -> None:
    answers, _ = single
    jobs = [(name, number, each) for name in models() for number, each in enumerate(requests_of(name))]
    jobs = [jobs[i * 7 % len(jobs)] for i in range(2 * len(jobs))]  # mixed, and each twice
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: bits_of(server.url, job[0], *job[2]), jobs))
    for (name, number, _), bits in zip(jobs, found, strict=True):
        assert bits == answers[name][number], (name, number)


def test_the_memory_is_that_of_single_servers_without_their_api_processes(server: Server, single: Any) -> None:
    _, memory = single
    whole = sum(server.resident_bytes().values())
    allowed = sum(total for _, total in memory.values()) - sum(sorted(api for api, _ in memory.values())[1:])
    assert whole <= allowed + 60 * MIB


def streamed(url: str, first: Any = lambda: None) -> str:
    """Return the text of a long streamed answer; `first` is called after its first part."""
    text = []
    body = {**LONG, "model": "plain", "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                if len(text) == 1:
                    first()
    return "".join(text)


def test_a_lost_worker_changes_no_bit_of_another_models_stream(server: Server, single: Any) -> None:
    answers, _ = single
    expected = streamed(server.url)
    path, body = requests_of("fast")[0]
    bits_of(server.url, "fast", path, body)
    before = workers(server)
    httpx.post(f"{server.url}/models/unload", json={"model": "fast"}, timeout=60).raise_for_status()
    gone = before - workers(server)
    assert len(gone) == 1, "the worker of the unloaded model has ended"
    others = before - gone
    assert bits_of(server.url, "fast", path, body) == answers["fast"][0], "a request loads it"
    (worker,) = workers(server) - others

    assert streamed(server.url, lambda: os.kill(worker, signal.SIGKILL)) == expected
    wait_for(lambda: len(workers(server)) == 4 and worker not in workers(server), "another worker starts")
    wait_for(lambda: httpx.get(f"{server.url}/health/ready", timeout=60).status_code == 200, "the worker is ready")
    assert bits_of(server.url, "fast", path, body) == answers["fast"][0]
    assert others < workers(server)

    def count(name: str) -> float:
        found = re.findall(rf'^lightwell_{name}\{{(?=.*model_name="fast").*\}} (.*)$', metrics, re.MULTILINE)
        return sum(map(float, found))

    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    assert count("requests_submitted_total") >= 3, "counters go on when a model is loaded again"
    assert count("requests_submitted_total") == count("request_success_total") + count("request_failed_total")


def test_a_stream_goes_on_while_its_model_is_unloaded(server: Server) -> None:
    expected = streamed(server.url)
    with ThreadPoolExecutor(1) as pool, ExitStack() as after:

        def unload() -> None:
            future = pool.submit(httpx.post, f"{server.url}/models/unload", json={"model": "plain"}, timeout=120)
            after.callback(lambda: future.result().raise_for_status())

        assert streamed(server.url, unload) == expected
    assert httpx.get(f"{server.url}/health/ready", timeout=60).json()["models"]["plain"] == "unloaded"
    assert streamed(server.url) == expected


def test_models_of_a_folder_are_loaded_repaired_and_removed(tmp_path: Path) -> None:
    """A damaged model fails with its reason, and does not affect others; a repaired one is loaded by an operator."""
    for name in ("good", "bad"):
        shutil.copytree(folder_of("bert"), tmp_path / name)
    weights = tmp_path / "bad" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    asked = ("/v1/embeddings", {"input": "a"})
    with serve([*FLAGS, "--models-dir", str(tmp_path), "--max-loaded-models", "1"], environment=NO_MODEL) as server:
        assert workers(server) == set()
        answer = httpx.post(server.url + asked[0], json={"model": "bad", **asked[1]}, timeout=60)
        assert (answer.status_code, "model.safetensors" in answer.text) == (503, True), answer.text
        expected = bits_of(server.url, "good", *asked)
        again = httpx.post(server.url + asked[0], json={"model": "bad", **asked[1]}, timeout=60)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "model_not_loaded")
        assert httpx.get(f"{server.url}/health/ready", timeout=60).json()["models"] == {
            "bad": "failed",
            "good": "loaded",
        }

        weights.write_bytes(whole)
        httpx.post(f"{server.url}/models/load", json={"model": "bad"}, timeout=60).raise_for_status()
        assert bits_of(server.url, "bad", *asked) == expected
        assert len(workers(server)) == 1, "the other was unloaded"

        shutil.rmtree(tmp_path / "good")
        removed = httpx.post(server.url + asked[0], json={"model": "good", **asked[1]}, timeout=60)
        assert (removed.status_code, "no such folder" in removed.text) == (503, True), removed.text
        assert bits_of(server.url, "bad", *asked) == expected


def test_a_stop_during_a_load_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    shutil.copytree(PACKAGED, tmp_path / "fables")
    flags = ("serve", *FLAGS, "--models-dir", str(tmp_path))
    with ThreadPoolExecutor(1) as pool, running_server(*flags, module="lightwell", **NO_MODEL) as server:
        server.wait_ready()
        waiting = pool.submit(server.post, "/v1/completions", {"prompt": "a"})
        wait_for(lambda: any(map(is_worker, descendants(server.process.pid))), "a worker starts")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert (waiting.result().status_code, waiting.result().json()["error"]["code"]) == (503, "draining")
        server.wait_all_gone()
        assert list(server.tmp.glob("lightwell-*")) == []
