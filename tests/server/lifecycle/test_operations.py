"""Requests of several inputs and traces, through the whole application of a real server around the fake engine."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.lifecycle.calls import assert_nothing_left, dump, events, metric
from tests.server.observability.collector import Collector, collector
from tests.server.running import RunningServer, running_server, stream_lines, wait_for


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced(traces: Collector) -> Iterator[RunningServer]:
    """A server that sends its traces to `traces`."""
    patient = ("--worker-timeout", "600", "--shutdown-grace", "600")
    options = ("--max-num-seqs", "2", "--max-num-queued-tokens", "500", *patient)
    tracing = ("--otlp-endpoint", traces.url, "--log-format", "json")
    with running_server(*options, *tracing, module="tests.server.fake_lightwell", FAKE_STEP_SECONDS="0.05") as server:
        server.wait_ready()
        yield server


def test_an_http_request_of_many_inputs_that_is_refused_is_counted_once(traced: RunningServer) -> None:
    body = {"prompt": [1, 2], "max_tokens": 490, "ignore_eos": True, "stream": True}
    with traced.http.stream("POST", traced.url + "/v1/completions", json=body) as response:
        lines = stream_lines(response)  # kept: httpx hangs up when an iterator is dropped
        next(lines)
        answer = traced.post("/v1/embeddings", {"input": [[token] * 10 for token in range(1, 9)]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_tokens_full")
        assert metric(traced, 'lightwell_requests_refused_total{reason="queue_tokens_full"}') == 1


def test_a_drain_answers_a_request_of_many_inputs_whole_and_sends_the_last_traces(
    traced: RunningServer, traces: Collector
) -> None:
    """Most inputs are not submitted yet when the drain begins. This test ends the server, and is its last one."""
    answer = traced.post("/v1/completions", {"prompt": "hello", "max_tokens": 3})
    submitted = metric(traced, "lightwell_requests_submitted_total")
    inputs = [[token] for token in range(1, 13)]
    (worker,) = (each["pid"] for each in dump(traced)["workers"])
    url = traced.url
    os.kill(worker, signal.SIGSTOP)  # so that no request ends before the drain
    with ThreadPoolExecutor(1) as background:
        embeddings = background.submit(traced.post, "/v1/embeddings", {"input": inputs})
        wait_for(lambda: metric(traced, "lightwell_requests_submitted_total") == submitted + 2, "two of its inputs run")
        traced.signal(signal.SIGTERM)
        wait_for(lambda: traced.status("/health/ready") == 503, "readiness is gone")
        assert traced.post("/v1/embeddings", {"input": "new"}).json()["error"]["code"] == "draining"
        os.kill(worker, signal.SIGCONT)
        assert embeddings.result().status_code == 200, embeddings.result().text
    assert len(embeddings.result().json()["data"]) == len(inputs)
    assert traced.wait_exit() == 0
    assert_nothing_left(traced, url)

    (root,) = (span for span in traces.spans if span["attributes"].get("gen_ai.response.id") == answer.json()["id"])
    assert (root["name"], root["attributes"]["http.response.status_code"]) == ("POST /v1/completions", 200)
    phases = {span["name"] for span in traces.spans if span["parent"] == root["id"]}
    assert phases == {"queue", "prefill", "decode"}
    (logged,) = (event for event in events(traced) if event.get("trace_id") == root["trace"])
    assert logged["path"] == "/v1/completions"
    assert "POST /v1/embeddings" in {span["name"] for span in traces.spans}
