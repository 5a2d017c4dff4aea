"""What /metrics counts."""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightwell.server.engine.messages.outputs import EngineStats, Timing
from lightwell.server.observability.access_log import RequestLog
from lightwell.server.observability.collectors import Histogram
from lightwell.server.observability.metrics import ClientCounters, Metrics, ModelMetrics, WorkerNumbers, of_engine
from lightwell.server.observability.version import lightwell_version

COUNTS = ClientCounters(
    worker_restarts=3,
    requests_submitted=9,
    request_failed=Counter(worker_lost=2),
    requests_refused=Counter(queue_full=4),
    routed_prefix_tokens=64,
)
BUSY = EngineStats(num_requests_running=2, num_requests_waiting=1, kv_cache_usage_ratio=0.5)


def engine(stats: EngineStats | None = None) -> Iterable[Metric]:
    workers = [WorkerNumbers(True, BUSY, 7), WorkerNumbers(False, EngineStats(), 2)]
    return of_engine(stats or EngineStats(), COUNTS, workers)


def value(metrics: Metrics | ModelMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_each_field_of_the_statistics_with_a_text_is_a_metric() -> None:
    metrics = Metrics()
    metrics.watch(lambda: engine(EngineStats(**{each.name: 1 for each in fields(EngineStats)})))
    texts = {each.name: each.metadata["text"] for each in fields(EngineStats) if each.metadata}
    assert len(texts) == len(fields(EngineStats)) - 3, "iteration_tokens and the two numbers of drafts are no metrics"
    found = {family.name + "_total" * (family.type == "counter"): family for family in metrics.registry.collect()}
    assert {name: found[f"lightwell_{name}"].documentation for name in texts} == texts
    assert all(value(metrics, f"lightwell_{name}") == 1 for name in texts)
    drafts = [value(metrics, "lightwell_speculation_tokens_total", result=name) for name in ("accepted", "rejected")]
    assert drafts == [1, 1]


def test_failures_refusals_restarts_and_each_workers_numbers_are_told() -> None:
    metrics = Metrics()
    metrics.watch(engine)
    assert value(metrics, "lightwell_worker_restarts_total") == 3
    assert value(metrics, "lightwell_requests_submitted_total") == 9
    assert value(metrics, "lightwell_routed_prefix_tokens_total") == 64
    assert value(metrics, "lightwell_request_failed_total", reason="worker_lost") == 2
    assert value(metrics, "lightwell_request_failed_total", reason="no_memory") == 0
    assert value(metrics, "lightwell_requests_refused_total", reason="queue_full") == 4
    assert value(metrics, "lightwell_requests_refused_total", reason="queue_time_exceeded") == 0
    first = {"up": 1, "requests_running": 2, "requests_waiting": 1, "kv_cache_usage_ratio": 0.5, "requests_total": 7}
    second = {"up": 0, "requests_running": 0, "requests_total": 2}
    for worker, expected in (("0", first), ("1", second)):
        assert {name: value(metrics, f"lightwell_worker_{name}", worker=worker) for name in expected} == expected


def test_phases_come_from_the_workers_clock() -> None:
    metrics = ModelMetrics()
    metrics.observe_end("length", 4.0, Timing(arrival=10.0, scheduled=10.5, first_token=11.5, finished=13.5), 3)
    assert value(metrics, "lightwell_e2e_request_latency_seconds_sum", route="unmatched") == 4.0
    assert value(metrics, "lightwell_request_queue_time_seconds_sum") == 0.5
    assert value(metrics, "lightwell_request_prefill_time_seconds_sum") == 1.0
    assert value(metrics, "lightwell_request_decode_time_seconds_sum") == 2.0


def test_an_abort_is_counted_but_is_no_latency() -> None:
    metrics = ModelMetrics()
    metrics.observe_end("abort", 4.0, None, 3, 2)
    assert value(metrics, "lightwell_request_success_total", finish_reason="abort") == 1
    assert value(metrics, "lightwell_e2e_request_latency_seconds_count", route="unmatched") is None
    assert value(metrics, "lightwell_request_prompt_tokens_count") == 0


def test_tokens_of_requests_are_counted_in_histograms() -> None:
    metrics = ModelMetrics()
    metrics.observe_end("stop", 1.0, None, 3, 20)
    metrics.observe_end("done", 1.0, None, 5)
    for name, count, total in (("prompt", 2, 8), ("generation", 1, 20)):
        assert value(metrics, f"lightwell_request_{name}_tokens_count") == count
        assert value(metrics, f"lightwell_request_{name}_tokens_sum") == total
    assert value(metrics, "lightwell_request_generation_tokens_bucket", le="32.0") == 1


def test_every_sample_of_ours_names_the_model_and_one_the_build() -> None:
    metrics = Metrics()
    metrics.name_models(['a "model"'])
    model = metrics.of_model('a "model"')
    model.watch(engine)
    model.observe_end("stop", 1.0, None, 3, 20)
    families = [*text_string_to_metric_families(metrics.render().decode())]
    assert not any(family.name.endswith("_created") for family in families)
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("lightwell_")]
    assert {sample.labels.get("model_name") for sample in samples} == {'a "model"'}
    (build,) = (sample for sample in samples if sample.name == "lightwell_build_info")
    assert build.value == 1
    assert build.labels["version"] == lightwell_version()
    assert build.labels["torch"].startswith("2.")


def test_several_models_share_families_and_have_their_own_samples() -> None:
    metrics = Metrics([("steps", "iteration_tokens")])
    metrics.name_models(["a", "b"])
    for name, tokens in (("a", 5), ("b", 7)):
        model = metrics.of_model(name)
        model.watch(engine)
        model.observe_step(EngineStats(iteration_tokens=tokens))
    text = metrics.render().decode()
    assert text.count("# TYPE lightwell_iteration_tokens histogram") == 1
    assert 'lightwell_iteration_tokens_sum{model_name="a"} 5.0' in text
    assert 'steps_sum{model_name="b"} 7.0' in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {each.labels["model_name"] for each in families["lightwell_worker_up"].samples} == {"a", "b"}
    assert all("model_name" not in each.labels for each in families["lightwell_log_lines_dropped"].samples)


def test_each_step_is_one_observation_and_an_empty_one_is_none() -> None:
    metrics = ModelMetrics()
    for tokens in (5, 0, 7):
        metrics.observe_step(EngineStats(iteration_tokens=tokens))
    assert value(metrics, "lightwell_iteration_tokens_count") == 2
    assert value(metrics, "lightwell_iteration_tokens_sum") == 12


def test_token_gaps_under_ten_milliseconds_are_told_apart() -> None:
    metrics = ModelMetrics()
    for gap in (0.0015, 0.0045, 0.009):
        metrics.inter_token_latency.observe(gap)
    counts = [
        value(metrics, "lightwell_inter_token_latency_seconds_bucket", le=le) for le in ("0.002", "0.005", "0.01")
    ]
    assert counts == [1, 2, 3]


async def call(metrics: Metrics, app: ASGIApp, method: str = "GET") -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        return None

    scope = {"type": "http", "method": method, "path": "/x", "headers": []}
    await RequestLog(app, metrics.observe_exchange)(scope, receive, send)


async def unknown(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing, as for a client that left before."""


async def crashing(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError


@pytest.mark.parametrize(
    ("app", "status", "method", "label"),
    [(unknown, 404, "BREW", "other"), (silent, 499, "GET", "GET"), (crashing, 500, "GET", "GET")],
)
async def test_an_exchange_is_counted_and_logged_with_its_status_and_adds_no_invented_label(
    app: ASGIApp, status: int, method: str, label: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    with (
        caplog.at_level(logging.INFO, logger="lightwell.server.observability.access_log"),
        contextlib.suppress(RuntimeError),
    ):
        await call(metrics, app, method)
    labels = {"route": "unmatched", "method": label, "status": str(status)}
    assert value(metrics, "lightwell_http_requests_total", **labels) == 1
    assert f" {method} /x {status} " in caplog.text


def test_a_histogram_is_exposed_as_prometheus_clients_own() -> None:
    bounds = (0.001, 0.25, 5.0, 600.0)
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    own = Histogram("lightwell_latency_seconds", "Of something.", bounds)
    ours.register(own)
    prometheus_client.disable_created_metrics()
    other = prometheus_client.Histogram("lightwell_latency_seconds", "Of something.", buckets=bounds, registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
    for value in (0.0, 0.001, 0.0010001, 3.0, 600.0, 601.0, 1e9):
        own.observe(value)
        other.observe(value)
    assert generate_latest(ours) == generate_latest(theirs)
