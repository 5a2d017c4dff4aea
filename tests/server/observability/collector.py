"""An OTLP receiver over HTTP, which keeps the spans that a server sends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PARENT = "00f067aa0ba902b7"
"""Span of the client that some tests send."""


def plain(value: Any) -> Any:
    found = getattr(value, value.WhichOneof("value"))
    return [plain(each) for each in found.values] if hasattr(found, "values") else found


class Collector:
    """An OTLP receiver over HTTP. `spans` holds the received spans as plain data."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resource: dict[str, str] = {}
        outer = self

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Drop the message, which would go to stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.resource = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {each.key: plain(each.value) for each in span.attributes}
                    self.spans.append(
                        {
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "begin": span.start_time_unix_nano,
                            "end": span.end_time_unix_nano,
                            "is_error": span.status.code == span.status.STATUS_CODE_ERROR,
                            "attributes": values,
                        }
                    )

    @property
    def root(self) -> dict[str, Any]:
        return next(span for span in self.spans if span["parent"] in ("", PARENT))


@contextmanager
def collector() -> Iterator[Collector]:
    receiver = Collector()
    threading.Thread(target=receiver.server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
