"""The Ray Serve application on a local cluster of three nodes, over HTTP: same routes, same answers, and a node killed
under load."""

import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import RunningServer, running_server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, on import
    from deploy.ray.app import build, read_scale
    from deploy.ray.gather import merge
from server.settings import SettingsError, setting_names

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
NUM_STREAMS = 6
PROMPT = "Once upon a time"


class RayCluster:
    """The cluster's process, and its address."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self._process = process
        self._log = log
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def expect(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the cluster ended before it wrote {word!r}: {self._log.read_text()[-4000:]}")

    def kill_node(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        self.expect("killed")

    def stream(self, begun: Semaphore) -> tuple[int, str]:
        """A long streamed answer; `begun` is released with its first event."""
        body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": True, "temperature": 0}
        with self.http.stream("POST", "/v1/completions", json=body) as answer:
            text = ""
            for piece in answer.iter_text():
                if not text:
                    begun.release()
                text += piece
            return answer.status_code, text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("ray") / "log"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.deploy.ray_serve_nodes", str(port)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True,
        )  # fmt: skip
    running = RayCluster(process, f"http://127.0.0.1:{port}", log)
    try:
        running.expect("ready")
        yield running
    finally:
        running.http.close()
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    with running_server("serve", "--threads=1", module="server") as server:
        server.wait_ready()
        server.http.timeout = httpx.Timeout(PATIENCE)
        yield server


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def test_routes_and_answers_are_those_of_a_plain_server(cluster: RayCluster, plain: RunningServer) -> None:
    assert cluster.http.get("/openapi.json").json() == plain.get("/openapi.json").json()
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    told = [answer.json()["choices"] for answer in (cluster.http.post("/v1/completions", json=body),
                                                   plain.post("/v1/completions", body))]  # fmt: skip
    assert told[0] == told[1]
    streamed = cluster.http.post("/v1/completions", json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert "".join(event["choices"][0]["text"] for event in events(streamed.text)) == told[1][0]["text"]
    for path, kind in (("/v1/attention", "application/x-npy"), ("/v1/attention", "application/vnd.safetensors"),
                       ("/v1/attention", "application/x-ndjson"), ("/v1/embeddings", "application/json")):  # fmt: skip
        ours, theirs = (
            http.post(url + path, json={"input": "The old king"}, headers={"Accept": kind})
            for http, url in ((cluster.http, ""), (plain.http, plain.url))
        )
        assert ours.headers["content-type"] == theirs.headers["content-type"]
        assert ours.content == theirs.content, (path, kind)


def test_errors_health_and_metrics_are_ours(cluster: RayCluster) -> None:
    refused = cluster.http.post("/v1/completions", json={"prompt": PROMPT, "temperature": -1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
    assert cluster.http.get("/nothing").json()["error"]["code"] == "route_not_found"
    assert cluster.http.get("/health").json() == {"ready": True, "reason": "ready"}
    families = {each.name: each for each in text_string_to_metric_families(cluster.http.get("/metrics").text)}
    replicas = {sample.labels["replica"] for sample in families["lightwell_generation_tokens"].samples}
    assert len(replicas) == 2


def test_a_killed_node_costs_only_what_it_was_running(cluster: RayCluster) -> None:
    begun = Semaphore(0)
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        streams = [threads.submit(cluster.stream, begun) for _ in range(NUM_STREAMS)]
        for _ in streams:
            begun.acquire(timeout=PATIENCE)
        cluster.kill_node()
        later = [cluster.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4}) for _ in range(8)]
        outcomes = [stream.result(PATIENCE) for stream in streams]
    assert {status for status, _ in outcomes} == {200}
    whole = [text for _, text in outcomes if text.endswith("data: [DONE]\n\n")]
    broken = [text for _, text in outcomes if not text.endswith("data: [DONE]\n\n")]
    assert len(set(map(text_of, whole))) <= 1
    for text in broken:
        assert "event: error" in text, text[-200:]
        assert events(text)[-1]["error"]["code"] == "worker_lost"
    assert broken, "no stream ran on the node that was killed"
    for answer in later:  # those that it had just been given are told so; no other is harmed
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 503:
            assert answer.json()["error"]["type"] == "unavailable_error"
            assert answer.headers["retry-after"]
    assert cluster.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4}).status_code == 200


def text_of(stream: str) -> str:
    return "".join(event["choices"][0]["text"] for event in events(stream))


def test_pages_of_metrics_are_merged_family_by_family() -> None:
    pages = {name: f'# HELP a_total x\n# TYPE a_total counter\na_total{{b="c"}} {i}.0\n' for i, name in enumerate("pq")}
    assert merge(pages).splitlines() == [
        "# HELP a_total x", "# TYPE a_total counter",
        'a_total{b="c",replica="p"} 0.0', 'a_total{b="c",replica="q"} 1.0',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"min_replicas": 3}, "max_replicas 1"),
        ({"max_replicas": "many"}, "max_replicas: 'many'"),
        ({"max_replica": 3}, "max_replica is no argument"),
        ({"api_key": "secret"}, "LIGHTWELL_API_KEY"),
        ({"block_size": 0}, "block_size|block-size"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        build(arguments)


def test_the_serve_file_names_the_application_and_its_arguments() -> None:
    (application,) = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())["applications"]
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    assert read_scale(application["args"]).max_replicas == 4
    assert set(application["args"]) <= {*setting_names(), *read_scale({}).__dataclass_fields__}
