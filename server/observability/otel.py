"""OpenTelemetry traces: a span for each HTTP request, and one for each phase of its engine requests.

Spans are made from the recorded times when a request has ended, so tracing costs a running request nothing. A thread of
the SDK sends them, and drops them if no collector accepts them. Names follow OpenTelemetry's conventions for HTTP and
for generative AI; `gen_ai.latency.*` are vLLM's, in seconds. Without an endpoint, no OpenTelemetry package is imported.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from lightwell.server.config.setting_types import url
from lightwell.server.config.settings import SettingsError
from lightwell.server.engine.messages.outputs import Timing
from lightwell.server.observability.access_log import RequestRecord
from lightwell.server.observability.version import lightwell_version

logger = logging.getLogger(__name__)

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OPERATIONS = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"), "chat"),
    **dict.fromkeys(("/v1/completions", "/api/generate"), "text_completion"),
    **dict.fromkeys(("/v1/embeddings", "/api/embed", "/api/embeddings"), "embeddings"),
}
_LAST_SPANS = 2.0
"""Seconds that the collector has at the end to take the waiting spans."""


def is_wanted(endpoint: str | None, environ: Mapping[str, str]) -> bool:
    """Return whether to make traces: by our setting, or by OpenTelemetry's own variables."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return endpoint is not None or any(environ.get(name) for name in _VARIABLES)


class Tracing:
    """Makes the spans of one server. `endpoint` is as in `--otlp-endpoint`; None leaves it to the environment."""

    def __init__(self, endpoint: str | None, environ: Mapping[str, str] = os.environ) -> None:
        """Set up tracing. Raises SettingsError if a package is missing, or if the protocol is not HTTP."""
        named = next((name for name in _PROTOCOLS if environ.get(name)), None)  # the variable for traces comes first
        if named is not None and environ[named] != "http/protobuf":
            raise SettingsError(f"{named} {environ[named]!r} is not usable; http/protobuf is accepted")
        for name in _VARIABLES:
            try:
                url().read(environ.get(name) or "http://localhost")
            except ValueError as error:
                raise SettingsError(f"{name}: {error}") from None
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise SettingsError(
                f"traces are enabled (--otlp-endpoint or {_VARIABLES[1]}), but a package is missing: {error}; "
                "pip install 'lightwell[otel]' installs it"
            ) from error
        attributes = {"service.version": lightwell_version()}
        if not environ.get("OTEL_SERVICE_NAME") and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            attributes["service.name"] = "lightwell"
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lightwell", lightwell_version())
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    def record(self, record: RequestRecord) -> dict[str, str]:
        """Make the spans of a request that ended, and return the trace id for its log line. Probes have none."""
        if record.is_probe:
            return {}
        to_epoch = time.time_ns() - time.monotonic_ns()

        def nanoseconds(seconds: float) -> int:
            return int(seconds * 1e9) + to_epoch

        scope = record.scope
        route = getattr(scope.get("route"), "path", None)
        span = self._tracer.start_span(
            f"{scope['method']} {route}" if route else scope["method"],
            context=self._propagator.extract(dict(Headers(scope=scope))),
            kind=self._trace.SpanKind.SERVER,
            attributes=self._attributes(record, route),
            start_time=nanoseconds(record.started),
        )
        if span.is_recording():
            if record.status >= 500 or (record.status == 200 and record.error_code is not None):
                span.set_status(self._trace.StatusCode.ERROR, record.error_code)
            inside = self._trace.set_span_in_context(span)
            for timing in record.timings:
                for name, begin, end in _phases(timing):
                    child = self._tracer.start_span(name, context=inside, start_time=nanoseconds(begin))
                    child.end(nanoseconds(end))
        span.end(nanoseconds(record.ended))
        return {"trace_id": self._trace.format_trace_id(span.get_span_context().trace_id)}

    def _attributes(self, record: RequestRecord, route: str | None) -> dict[str, Any]:
        """Return the span's attributes, without prompts and answers."""
        attributes: dict[str, Any] = {
            "http.request.method": record.scope["method"],
            "http.route": route,
            "http.response.status_code": record.status,
            "url.path": record.path,
            "error.type": record.error_code,
            "gen_ai.request.id": record.request_id,
            "gen_ai.response.id": record.answer_id,
            "lightwell.key": record.key,
        }
        if record.engine_requests or record.finish_reasons:
            attributes |= {
                "gen_ai.operation.name": _OPERATIONS.get(route or "", "look"),
                "gen_ai.provider.name": "lightwell",
                "gen_ai.request.model": record.model,
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.generated_tokens,
                "gen_ai.response.finish_reasons": tuple(record.finish_reasons) or None,
                "gen_ai.latency.e2e": record.ended - record.started,
                **_latencies(record.timings),
            }
        return {name: value for name, value in attributes.items() if value is not None}

    def shut_down(self) -> None:
        """Send the waiting spans, for two seconds at most: a collector that does not answer delays no end."""
        ending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        ending.start()
        ending.join(_LAST_SPANS)
        if ending.is_alive():
            logger.warning("the last spans were not sent: the collector does not take them")


def _phases(timing: Timing) -> list[tuple[str, float, float]]:
    """Return name, begin and end of the phases of a request to the engine, in CLOCK_MONOTONIC seconds."""
    phases = (
        ("queue", timing.arrival, timing.scheduled),
        ("prefill", timing.scheduled, timing.first_token),
        ("decode", timing.first_token, timing.finished),
    )
    return [(name, begin, end) for name, begin, end in phases if begin is not None and end is not None]


def _latencies(timings: list[Timing]) -> dict[str, float]:
    """Return the longest latency of each phase over several engine requests; the first token is the first of all."""
    longest: dict[str, float] = {}
    for timing in timings:
        for name, begin, end in _phases(timing):
            longest[name] = max(longest.get(name, 0.0), end - begin)
    names = {"queue": "time_in_queue", "prefill": "time_in_model_prefill", "decode": "time_in_model_decode"}
    found = {f"gen_ai.latency.{names[name]}": seconds for name, seconds in longest.items()}
    firsts = [timing.first_token - timing.arrival for timing in timings if timing.first_token is not None]
    return found | ({"gen_ai.latency.time_to_first_token": min(firsts)} if firsts else {})
