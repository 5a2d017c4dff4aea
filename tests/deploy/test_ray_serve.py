"""The Ray Serve application on a local cluster of three nodes, over HTTP: same routes, same answers, a replica that a
load brings, a node killed and a new version deployed under load."""

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest
import yaml

pytest.importorskip("ray", reason="Ray is not installed (the extra nightly)")

from tests.server.running import RunningServer, is_running, running_server, wait_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, on import
    from deploy.ray.app import build, read_flags, read_scale
    from deploy.ray.gather import merge
from lightwell.server.config.settings import SettingsError, setting_names
from tests.deploy.ray_cluster import PATIENCE, PAUSE, PROMPT, ROOT, RUNNING, RayCluster, process_parents

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

NUM_CLIENTS = 6
NUM_STREAMS = 8
NUM_CHOICES = 16
NUM_LONG = 64
"""Choices that take some seconds."""
MAX_BODY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def cluster(only_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("ray") / "log"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
                   "LIGHTWELL_MAX_BODY_BYTES": str(MAX_BODY_BYTES)}  # fmt: skip
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.deploy.ray_nodes", str(port)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True,
            start_new_session=True,
        )  # fmt: skip
    running = RayCluster(process, f"http://127.0.0.1:{port}", log)
    try:
        running.expect("ready")
        check_that_load_brings_a_replica(running)
        yield running
    finally:
        running.end()


def check_that_load_brings_a_replica(cluster: RayCluster) -> None:
    """Check that one replica becomes two, and that meanwhile every request is answered."""
    wait_for(lambda: len(cluster.replicas()) == 1, "the replica tells its metrics", PATIENCE, PAUSE)
    are_two = Event()

    def client() -> list[int]:
        answers = []
        while not are_two.is_set():
            body = {"prompt": PROMPT, "max_tokens": 100, "ignore_eos": True}
            answers.append(cluster.http.post("/v1/completions", json=body).status_code)
        return answers

    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        clients = [threads.submit(client) for _ in range(NUM_CLIENTS)]
        try:
            wait_for(lambda: len(cluster.replicas()) == 2, "the load brings another replica", PATIENCE, PAUSE)
        finally:
            are_two.set()
        assert {status for each in clients for status in each.result(PATIENCE)} == {200}


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    with running_server("serve", "--threads=1", module="lightwell") as server:
        server.wait_ready()
        server.http.timeout = httpx.Timeout(PATIENCE)
        yield server


def send_signal(processes: list[int], number: int) -> None:
    """Send a signal to the processes that have not ended."""
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


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

    def health() -> Any:
        answer = cluster.http.get("/health")
        return answer.status_code == 200 and answer.json()

    assert wait_for(health, "a replica says that it is ready", PATIENCE, PAUSE) == {"ready": True, "reason": "ready"}
    wait_for(lambda: len(cluster.replicas()) == 2, "both replicas tell their metrics", PATIENCE, PAUSE)


def test_a_replica_that_does_not_answer_is_left_out(cluster: RayCluster) -> None:
    replica, _ = cluster.engine_processes()
    os.kill(replica, signal.SIGSTOP)
    try:
        wait_for(lambda: len(cluster.replicas()) == 1, "the other replica tells its metrics", PATIENCE, PAUSE)
        wait_for(lambda: cluster.http.get("/health").status_code == 200, "the other is ready", PATIENCE, PAUSE)
    finally:
        os.kill(replica, signal.SIGCONT)
    wait_for(lambda: len(cluster.replicas()) == 2, "both replicas tell their metrics", PATIENCE, PAUSE)


def test_a_body_over_the_limit_is_refused_as_by_a_plain_server(cluster: RayCluster) -> None:
    refused = cluster.http.post("/v1/completions", json={"prompt": "a" * MAX_BODY_BYTES})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    assert str(MAX_BODY_BYTES) in refused.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_request_in_the_engine(cluster: RayCluster) -> None:
    body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": True, "n": NUM_CHOICES}
    with cluster.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_bytes())

    def aborted() -> float:
        return cluster.total("lightwell_request_success_total", finish_reason="abort")

    wait_for(lambda: aborted() == NUM_CHOICES, "all choices are aborted", PATIENCE, PAUSE)
    wait_for(lambda: cluster.total(RUNNING) == 0, "nothing runs", PATIENCE, PAUSE)


def test_a_killed_node_costs_only_what_it_was_running(cluster: RayCluster) -> None:
    begun, streams = Semaphore(0), list[Future[tuple[int, str]]]()
    replicas = cluster.engine_processes()
    workers = [pid for pid, parent in process_parents().items() if parent in replicas]
    assert len(workers) >= 2

    def stop_both() -> dict[str, float]:
        """Send streams and stop the workers. Return the number of running requests of each replica, or nothing if a
        replica had ended its own.
        """
        send_signal(workers, signal.SIGCONT)
        streams.extend(threads.submit(cluster.stream, begun) for _ in range(NUM_STREAMS))
        for _ in range(NUM_STREAMS):
            assert begun.acquire(timeout=PATIENCE)
        send_signal(workers, signal.SIGSTOP)
        ran = cluster.num_running()
        return ran if len(ran) == 2 and all(ran.values()) else {}

    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        try:
            ran = wait_for(stop_both, "both replicas run streams", PATIENCE)
            cluster.tell("kill")
            wait_for(lambda: not all(map(is_running, replicas)), "one of them is killed", PATIENCE, PAUSE)
        finally:
            send_signal(workers, signal.SIGCONT)
        cluster.expect("killed")
        later = [cluster.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4}) for _ in range(8)]
        outcomes = [stream.result(PATIENCE) for stream in streams]
    assert {status for status, _ in outcomes} == {200}
    whole = [text for _, text in outcomes if text.endswith("data: [DONE]\n\n")]
    broken = [text for _, text in outcomes if not text.endswith("data: [DONE]\n\n")]
    assert len(set(map(text_of, whole))) <= 1
    for text in broken:
        assert "event: error" in text, text[-200:]
        assert events(text)[-1]["error"]["code"] == "worker_lost"
    wait_for(lambda: len(cluster.replicas()) == 1, "one replica is left", PATIENCE, PAUSE)
    (left,) = cluster.replicas()
    assert len(whole) >= ran.pop(left)
    assert len(broken) >= sum(ran.values()) > 0  # running requests of the workers, and requests on their way to them
    for answer in later:  # requests that the killed replica had just received fail with this error; no other fails
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 503:
            assert answer.json()["error"]["type"] == "unavailable_error"
            assert answer.headers["retry-after"]
    assert cluster.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4}).status_code == 200


def test_a_new_version_lets_the_old_one_answer_what_it_was_given(cluster: RayCluster) -> None:
    """Check on the one node that is left; no other request runs while the old replica ends."""
    body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "n": NUM_LONG, "temperature": 1, "seed": 1}
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(cluster.http.post, "/v1/completions", json=body)
        wait_for(lambda: cluster.total(RUNNING) == NUM_LONG, "the request runs", PATIENCE, PAUSE)
        cluster.tell("deploy")
        cluster.expect("deployed")
        answer = long.result(PATIENCE)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == NUM_LONG


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
        ({"min_replicas": 0}, "min_replicas: 0 .* at least 1"),
        ({"max_replicas_per_node": 0}, "max_replicas_per_node: 0 "),
        ({"ingress_replicas": 1.5}, "ingress_replicas: 1.5 .* whole number"),
        ({"target_ongoing_requests": 0}, "target_ongoing_requests: 0 .* above 0"),
        ({"target_ongoing_requests": "nan"}, "target_ongoing_requests: 'nan'"),
        ({"look_back_period_s": 10}, "look_back_period_s: 10 .* above 10"),
        ({"num_cpus": -1}, "num_cpus: -1 .* at least 0"),
        ({"num_cpus": None}, "num_cpus: null"),
        ({"model": None}, "model: null"),
        ({"max_replica": 3}, "max_replica is no argument"),
        ({"api_key": "secret"}, "api_key_file"),
        ({"block_size": 0}, "block_size|block-size"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        build(arguments)


def test_what_the_ingress_knows_too_is_told_to_the_replicas() -> None:
    environ = {"LIGHTWELL_MAX_BODY_BYTES": "2MiB", "LIGHTWELL_SHUTDOWN_GRACE": "5", "LIGHTWELL_MAX_NUM_SEQS": "none"}
    assert read_flags({"threads": 1}, {}) == {"threads": "1", "shutdown_grace": "30.0", "max_body_bytes": "33554432"}
    assert read_flags({}, environ) == {"shutdown_grace": "5.0", "max_body_bytes": "2097152"}
    assert read_flags({"max_body_bytes": "1KiB"}, environ)["max_body_bytes"] == "1024"


def test_the_serve_file_names_the_application_and_its_arguments() -> None:
    (application,) = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())["applications"]
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    assert read_scale(application["args"]).max_replicas == 4
    assert set(application["args"]) <= {*setting_names(), *read_scale({}).__dataclass_fields__}
