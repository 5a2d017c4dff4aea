"""Access log: one line for each HTTP request with its id, route, status, cost and end, never its contents.

It is pure ASGI, so that `receive` remains the server's own. The code that runs a model for the request notes the cost
in its `RequestRecord`.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightwell.server.config.auth.quotas import KeyUse
from lightwell.server.engine.messages.outputs import Timing

logger = logging.getLogger(__name__)

_TAKEN_IDS = re.compile(r"[!-~]{1,128}")
"""Request ids of clients that are logged. They contain no space, so a client cannot forge the fields after its id."""
CLIENT_CLOSED_REQUEST = 499
"""Status for the log and the metrics of a request without an answer, since its client left, as in nginx."""
_MAX_SHOWN_PATH = 200


@dataclass(slots=True)
class RequestRecord:
    """Facts for the log line of one request, and calls for its end."""

    request_id: str
    path: str = ""
    scope: Scope = field(default_factory=dict, repr=False)
    started: float = field(default_factory=time.monotonic)
    """Start in CLOCK_MONOTONIC seconds, as all times of requests."""
    model: str | None = None
    """Name of the model: from the request, or of the model that answers it."""
    engine_requests: int = 0
    """Number of engine requests of this HTTP request."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    answer_id: str | None = None
    """The id in the body of a completion, in OpenAI's form; it differs from the request's id."""
    finish_reasons: list[str] = field(default_factory=list)
    """Finish reasons of its requests to the engine, in the order in which they ended."""
    timings: list[Timing] = field(default_factory=list)
    """Times of its engine requests, as far as they are known."""
    error_code: str | None = None
    key: str | None = None
    """Name of the API key, never the key itself."""
    use: KeyUse | None = None
    """The use of the key to which tokens are charged, or None if the server is open to all."""
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called once the answer is sent, or its client is gone."""
    is_background: bool = False
    """True for a row of a batch. Its waiting time is no sign of a slow server."""
    status: int = CLIENT_CLOSED_REQUEST
    """Status of the answer, set at the end: of one that was not begun 500 if the application raised, or this."""
    ended: float = 0.0
    """End in CLOCK_MONOTONIC seconds."""

    @property
    def is_probe(self) -> bool:
        """Return whether it is a request for the server's state, which monitoring sends every few seconds."""
        return self.path.startswith("/health") or self.path == "/metrics"

    @property
    def route(self) -> str:
        """Return the template of the route that answers, or "unmatched": a label that no client can invent."""
        return getattr(self.scope.get("route"), "path", "unmatched")

    def count_prompt(self, num_tokens: int) -> None:
        """Count a prompt of this length that was admitted to the engine."""
        self.engine_requests += 1
        self.prompt_tokens += num_tokens
        if self.use is not None:
            self.use.charge(num_tokens)

    def count_generated(self, num_tokens: int = 1) -> None:
        """Count more generated tokens."""
        self.generated_tokens += num_tokens
        if self.use is not None:
            self.use.charge(num_tokens)

    def note_end(self, finish_reason: str, timing: Timing | None) -> None:
        """Record that one of its requests to the engine ended."""
        self.finish_reasons.append(finish_reason)
        if timing is not None:
            self.timings.append(timing)


current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)
"""The record of the HTTP request that the running task belongs to."""


def current_key() -> str | None:
    """Return the name of the API key of the current request, or None if it has none."""
    record = current_record.get()
    return None if record is None else record.key


RECORD_IN_SCOPE = "lightwell.record"
"""Where an ASGI scope holds the request's RequestRecord."""


class RequestLog:
    """ASGI wrapper: gives each request an id, and logs its end.

    The id is in `x-request-id` (the client's own, if it sent one) and in `request-id`, which Anthropic's clients read.
    Each of `on_end` is called with the record of each request at its end, and returns further fields of the line.
    """

    def __init__(
        self, app: ASGIApp, *on_end: Callable[[RequestRecord], dict[str, str]], is_background: bool = False
    ) -> None:
        """is_background: whether the requests are rows of batches: their lines are for debugging only."""
        self._app = app
        self._is_background = is_background
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))[:_MAX_SHOWN_PATH]
        record = RequestRecord(request_id(Headers(scope=scope).get("x-request-id", "")), _in_text(path), scope)
        record.is_background = self._is_background
        status: int | None = None
        without_answer = CLIENT_CLOSED_REQUEST

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = record.request_id
            await send(message)

        scope[RECORD_IN_SCOPE] = record
        current_record.set(record)  # and not reset: later lines of uvicorn in this task belong to the request too
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            without_answer = 500  # the answer of the HTTP server
            raise
        finally:
            for call in record.at_end:
                call()
            record.status, record.ended = without_answer if status is None else status, time.monotonic()
            level = logging.DEBUG if record.is_probe or record.is_background else logging.INFO
            _log_end(level, record, {name: value for call in self._on_end for name, value in call(record).items()})


def request_id(sent: str) -> str:
    """Return the id that a client sent, if it can be kept, or else a new one."""
    return sent if _TAKEN_IDS.fullmatch(sent) else f"req-{uuid.uuid4().hex}"


def _log_end(level: int, record: RequestRecord, more: dict[str, str]) -> None:
    if not logger.isEnabledFor(level):
        return
    line = {
        "request_id": record.request_id,
        "method": record.scope["method"],
        "path": record.path,
        "status": record.status,
    }
    details = _details(record) | more
    logger.log(
        level,
        "%s %s",
        " ".join(map(str, line.values())),
        " ".join(f"{name}={_in_text(value)}" for name, value in details.items()),
        extra={"fields": line | details},
    )


def _details(record: RequestRecord) -> dict[str, object]:
    """Return the fields after the request's and the answer's first line, without those that do not apply."""
    timings, client = record.timings, record.scope.get("client")
    queues = [timing.scheduled - timing.arrival for timing in timings if timing.scheduled is not None]
    firsts = [timing.first_token - timing.arrival for timing in timings if timing.first_token is not None]
    details: dict[str, object | None] = {
        "prompt_tokens": record.prompt_tokens,
        "generated_tokens": record.generated_tokens,
        "ms": _milliseconds(record.ended - record.started),
        "engine_requests": record.engine_requests,
        "queue_ms": _milliseconds(max(queues)) if queues else None,
        "first_token_ms": _milliseconds(min(firsts)) if firsts else None,
        "finish": ",".join(dict.fromkeys(record.finish_reasons)) or None,
        "error": record.error_code,
        "answer_id": record.answer_id,
        "key": record.key,
        "client": client[0] if client else None,
    }
    return {name: value for name, value in details.items() if value is not None}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _in_text(value: object) -> str:
    """Return a value as one word, so that it cannot look like a further field."""
    return quote(str(value), "/:@,+")
