"""All metrics of the server: `lightwell_<name>_<unit>`, with vLLM's semantics.

Counters and gauges of the engine are the fields of `EngineStats`, read at scrape time; latencies are observed in the
API process, as clients experience them. Each server has its own registry, so that several can run in one process.
Independent of routes.
"""

from collections import Counter as Counts
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from lightwell.server.config.auth.keys import Keyring
from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats, Timing
from lightwell.server.observability.access_log import RequestRecord, current_record
from lightwell.server.observability.collectors import (
    PREFIX,
    Histogram,
    ReadAtScrape,
    Samples,
    Shown,
    counter,
    gauge,
    samples_of,
)
from lightwell.server.observability.logs import num_dropped_lines
from lightwell.server.observability.version import versions

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TTFT_BUCKETS = (0.001, 0.0025, *_LATENCY_BUCKETS)
# A step of a small model takes well under 10 ms, where vLLM's buckets begin.
_ITL_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1)
_ITL_TAIL = (0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5)
_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

FAILURES = (
    "worker_lost", "worker_hung", "deadline_exceeded", "no_memory", "engine_error", "not_finite", "request_refused",
    "grammar_refused", "shutting_down", "internal_error",
)  # fmt: skip
"""Codes of the errors that a request in the engine can end with; they are shown as 0 before the first."""

REFUSALS = ("queue_full", "queue_time_exceeded", "queue_tokens_full", "queue_blocks_full", "capture_budget_full")
"""Codes of the errors with which the queue refuses a request."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """The reported numbers of one worker slot."""

    is_up: bool
    """Whether the worker's process takes requests."""
    stats: EngineStats
    requests_total: int
    """Number of requests that were sent to the worker."""


def _number(text: str) -> int:
    return field(default=0, metadata={"text": text})


@dataclass(slots=True, kw_only=True)
class ClientCounters:
    """Counters of the engine's client. Each field is the metric `lightwell_<field>_total` with this text; a field with
    reasons has a number for each of them, 0 before the first.
    """

    worker_restarts: int = _number("Workers started again after a loss.")
    integrity_failures: int = _number(
        "Contradictions in the bookkeeping of blocks, queues or admission, found when idle: a bug of the server."
    )
    routed_prefix_tokens: int = _number(
        "Prompt tokens of requests sent to the worker that was expected to have them in its cache."
    )
    requests_submitted: int = _number(
        "Requests submitted to the engine. Each ends once, in request_success (also aborts) or in request_failed."
    )
    request_failed: Counts[str] = field(
        default_factory=Counts,
        metadata={"text": "Requests of the engine that ended with an error, by its code.", "reasons": FAILURES},
    )
    requests_refused: Counts[str] = field(
        default_factory=Counts,
        metadata={
            "text": "Requests rejected with 429 because the queue was full, by the code of the error.",
            "reasons": REFUSALS,
        },
    )


def of_engine(stats: EngineStats, counts: ClientCounters, workers: Sequence[WorkerNumbers]) -> Iterable[Metric]:
    """Return the metrics of the engine, of its client, and of each worker."""
    for each in fields(EngineStats):
        if text := each.metadata.get("text"):
            family = counter if each.name.endswith("_total") else gauge
            yield family(each.name, text, getattr(stats, each.name))
    drafts = [(("accepted",), stats.drafts_accepted_total), (("rejected",), stats.drafts_rejected_total)]
    yield counter(
        "speculation_tokens_total", "Drafts of tokens that were computed, by their result.", drafts, ["result"]
    )
    for each in fields(ClientCounters):
        value = getattr(counts, each.name)
        if reasons := each.metadata.get("reasons"):
            value = [((reason,), count) for reason, count in (dict.fromkeys(reasons, 0) | value).items()]
        yield counter(f"{each.name}_total", each.metadata["text"], value, ["reason"] if reasons else [])
    yield from _of_workers(workers)


def _of_workers(workers: Sequence[WorkerNumbers]) -> Iterable[Metric]:
    """Read each worker's own numbers; the sums over all of them have names without `worker`."""

    def by_worker(values: Iterable[float]) -> list[tuple[Sequence[str], float]]:
        return [((str(worker_id),), value) for worker_id, value in enumerate(values)]

    gauges: dict[str, tuple[str, list[float]]] = {
        "up": ("1 while the worker takes requests, else 0.", [worker.is_up for worker in workers]),
        "requests_running": ("Requests in the worker's batch.", [w.stats.num_requests_running for w in workers]),
        "requests_waiting": ("Requests that wait in the worker.", [w.stats.num_requests_waiting for w in workers]),
        "kv_cache_usage_ratio": (
            "Used part of the worker's KV cache, from 0 to 1.",
            [w.stats.kv_cache_usage_ratio for w in workers],
        ),
    }
    for name, (text, values) in gauges.items():
        yield gauge(f"worker_{name}", text, by_worker(values), ["worker"])
    given = by_worker(worker.requests_total for worker in workers)
    yield counter("worker_requests_total", "Requests given to the worker.", given, ["worker"])


def _of_this_process() -> Iterable[Metric]:
    known = versions()
    text = "Always 1; its labels are the versions of this server, Python and torch."
    yield gauge("build_info", text, [(tuple(known.values()), 1)], tuple(known))
    yield counter(
        "log_lines_dropped_total", "Lines of this process's log that stderr did not take.", num_dropped_lines()
    )


def of_caches(engines: Sequence[EngineInfo]) -> Iterable[Metric]:
    """Describe the KV cache of all workers that have one now, in labels, as vLLM's: it never changes while it is."""
    num_blocks = sum(engine.num_blocks - 1 for engine in engines)  # the first, the null block, holds no tokens
    yield gauge(
        "cache_config_info",
        "Always 1; its labels are the KV cache's tokens per block and number of blocks, on any device.",
        [((str(engines[0].block_size), str(num_blocks)), 1)] if engines else [],
        ["block_size", "num_gpu_blocks"],
    )


def of_keys(keys: Keyring) -> Iterable[Metric]:
    """Read the use of each API key that is known now: labels are names in the operator's file, so they are not many."""
    uses = [known.use for known in keys.known]
    in_flight = [((use.name,), use.num_requests) for use in uses]
    yield gauge("key_requests_in_flight", "HTTP requests of an API key in flight.", in_flight, ["key"])
    admitted = [((use.name,), use.requests_total) for use in uses]
    yield counter("key_requests_total", "HTTP requests of an API key that were let in.", admitted, ["key"])
    tokens = [((use.name,), use.tokens_total) for use in uses]
    yield counter("key_tokens_total", "Tokens of an API key, prompt and generated.", tokens, ["key"])
    refusals = [((use.name, limit), count) for use in uses for limit, count in use.refusals.items()]
    yield counter("key_refusals_total", "Requests over the limit of their API key (429).", refusals, ["key", "limit"])
    yield counter(
        "key_file_errors_total", "Times that the key file could not be used: the keys before stayed.", keys.file_errors
    )


def of_adapters(num_requests: Mapping[str, int]) -> Iterable[Metric]:
    """Return the metrics of the loaded LoRA adapters. Labels are adapter names, at most --max-loras."""
    names = [(name,) for name in num_requests]
    yield gauge("lora_adapter_info", "1 for each LoRA adapter that is loaded.", [(n, 1) for n in names], ["lora_name"])
    counts = [((name,), count) for name, count in num_requests.items()]
    yield counter(
        "lora_requests_total", "Requests of the engine with a LoRA adapter since it was loaded.", counts, ["lora_name"]
    )


class _Registered:
    """Metrics in a registry of their own."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()

    def watch(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Call `read` at each scrape; its metrics are added."""
        self.registry.register(ReadAtScrape(read))

    def _counter(self, name: str, text: str, **labels: Sequence[str]) -> Counter:
        """Define a counter that this process counts up; known values of a label are shown as 0 before the first."""
        made = Counter(PREFIX + name, text, list(labels), registry=self.registry)
        for values in labels.values():
            for value in values:
                made.labels(value)
        return made


class ModelMetrics(_Registered):
    """The metrics of one model. Times are seconds on CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        super().__init__()
        self.request_success = self._counter(
            "request_success_total",
            "Requests of the engine that ended well (stop, length, done) or were aborted, mostly as their client left.",
            finish_reason=("stop", "length", "done", "abort"),
        )
        self.grammars_refused = self._counter(
            "grammars_refused_total",
            "Requests refused for a schema or grammar that is wrong or cannot be honoured.",
        )
        self.capture_rejections = self._counter(
            "capture_rejected_total",
            "Capture requests that were rejected: answer_too_large (413) or budget_full (429).",
            reason=("answer_too_large", "budget_full"),
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token.", _TTFT_BUCKETS
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between one token of a request and the next.", _ITL_BUCKETS + _ITL_TAIL
        )
        self.e2e_request_latency = prometheus_client.Histogram(
            f"{PREFIX}e2e_request_latency_seconds",
            "From a request's arrival to its end, by the route that it came on.",
            ["route"],
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.request_queue_time = self._histogram(
            "request_queue_time_seconds", "From a request's arrival in the engine to its first step.", _TTFT_BUCKETS
        )
        self.request_prefill_time = self._histogram(
            "request_prefill_time_seconds", "From a request's first step to its first token.", _TTFT_BUCKETS
        )
        self.request_decode_time = self._histogram(
            "request_decode_time_seconds", "From a request's first token to its last.", _TTFT_BUCKETS
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request of the engine that ended well.", _TOKEN_BUCKETS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens of a request that generates and ended well.", _TOKEN_BUCKETS
        )
        self.iteration_tokens = self._histogram("iteration_tokens", "Tokens of one engine step.", _TOKEN_BUCKETS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(PREFIX + name, text, buckets)
        self.registry.register(histogram)
        return histogram

    def observe_step(self, stats: EngineStats) -> None:
        """Count the tokens of one engine step; the engine's client calls it for each step, never for a heartbeat."""
        if stats.iteration_tokens > 0:
            self.iteration_tokens.observe(stats.iteration_tokens)

    def observe_end(
        self, finish_reason: str, latency: float, timing: Timing | None, num_prompt: int, num_output: int | None = None
    ) -> None:
        """Count a request of the engine that ended, `latency` seconds after it arrived.

        timing: None for requests that ended before the engine reported when it took them.
        num_prompt: Tokens of its prompt.
        num_output: Tokens that it generated, or None if it generates none.
        """
        self.request_success.labels(finish_reason).inc()
        record = current_record.get()
        if record is not None:
            record.note_end(finish_reason, timing)
        if finish_reason == "abort" or (record is not None and record.is_background):
            return
        self.e2e_request_latency.labels("unmatched" if record is None else record.route).observe(latency)
        self.request_prompt_tokens.observe(num_prompt)
        if num_output is not None:
            self.request_generation_tokens.observe(num_output)
        if timing is None or timing.scheduled is None:
            return
        self.request_queue_time.observe(max(timing.scheduled - timing.arrival, 0.0))
        if timing.first_token is None:
            return
        self.request_prefill_time.observe(max(timing.first_token - timing.scheduled, 0.0))
        if timing.finished is not None:
            self.request_decode_time.observe(max(timing.finished - timing.first_token, 0.0))


class Metrics(_Registered):
    """The metrics of the server and of its models.

    `aliases` are pairs of another name and the metric that it names (`server.config.metric_aliases`).
    """

    def __init__(self, aliases: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self._shown = Shown(aliases)
        self._refresh: Callable[[], Awaitable[None]] | None = None
        self._labels: dict[str, str] = {}
        self._shown.parts.append((self.registry, self._labels))
        ProcessCollector(registry=self.registry)
        self.watch(_of_this_process)
        self.http_requests = self._counter(
            "http_requests_total",
            "HTTP requests; status 499 means that the client disconnected first.",
            route=(), method=(), status=(),
        )  # fmt: skip
        self.stalled_clients = self._counter(
            "stalled_clients_total",
            "Connections closed because the client read nothing for --send-timeout seconds.",
        )
        self.slow_clients = self._counter(
            "slow_clients_total",
            "Connections closed because the client did not send its request in time (--receive-timeout).",
        )
        self.refused_connections = self._counter(
            "refused_connections_total",
            "Connections refused with 503 since --max-connections were open.",
        )

    def name_models(self, names: Sequence[str]) -> None:
        """Give every sample the label `model_name`, as in vLLM; with several models, only the samples of a model."""
        if len(names) == 1:
            self._labels["model_name"] = names[0]

    def of_model(self, name: str = "") -> ModelMetrics:
        """Return the metrics of a model that is now served, with its name as the label `model_name`."""
        made = ModelMetrics()
        self._shown.parts.append((made.registry, {"model_name": name} if name else {}))
        return made

    def observe_connection_end(self, reason: str) -> None:
        """Count a connection that the server ended (`server.http.connection_limits.EndReason`)."""
        counters = {"stalled": self.stalled_clients, "slow": self.slow_clients, "refused": self.refused_connections}
        counters[reason].inc()

    def observe_exchange(self, record: RequestRecord) -> dict[str, str]:
        """Count an HTTP request that is over, by route template, method and status; its log line needs no more."""
        # Templates and known methods only: labels chosen by clients would grow the registry without bound.
        method = record.scope["method"] if record.scope["method"] in _METHODS else "other"
        self.http_requests.labels(record.route, method, str(record.status)).inc()
        return {}

    def samples(self) -> Samples:
        """Return the samples that another process adds to its own. The use of keys is counted there."""
        return [each for each in samples_of(self._shown.collect()) if not each[0].startswith(f"{PREFIX}key_")]

    def add_others(self, refresh: Callable[[], Awaitable[None]], samples: Callable[[], Iterable[Samples]]) -> None:
        """Add the samples of other processes from now on, after `refresh` has collected them."""
        self._refresh, self._shown.others = refresh, samples

    async def read(self) -> bytes:
        """Return the Prometheus text exposition of all processes, as they are now."""
        if self._refresh is not None:
            await self._refresh()
        return self.render()

    def render(self) -> bytes:
        """Return the Prometheus text exposition, with the last known samples of other processes."""
        return generate_latest(self._shown)
