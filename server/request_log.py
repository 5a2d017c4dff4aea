"""One log line per HTTP request (id, route, status, tokens, milliseconds) and the set-up of logging, text or JSON.

Pure ASGI, so that `receive` stays the server's own. Knows nothing of what a route does: whoever runs a model on
behalf of the request finds its record in `current_record`.
"""

import json
import logging
import sys
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_MAX_ID_LENGTH = 128


@dataclass(slots=True)
class RequestRecord:
    """What the log line of one request will say, and what is left to do when it is over."""

    request_id: str
    prompt_tokens: int = 0
    generated_tokens: int = 0
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called once the answer is sent, or its client gone."""


current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)
"""The record of the HTTP request that the running task belongs to."""


class RequestLog:
    """Wraps an ASGI application: gives each request an id (`x-request-id`, taken over when sent) and logs its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope))
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault("x-request-id", record.request_id)
            await send(message)

        token = current_record.set(record)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            current_record.reset(token)
            for call in record.at_end:
                call()
            _log_end(scope, record, status, time.monotonic() - started)


def _request_id(scope: Scope) -> str:
    sent = Headers(scope=scope).get("x-request-id", "")
    if sent and len(sent) <= _MAX_ID_LENGTH and sent.isascii() and sent.isprintable():
        return sent
    return f"req-{uuid.uuid4().hex}"


def _log_end(scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    path = path if path.isprintable() else ascii(path)  # "%0A" in a URL must not begin a line of the log
    is_probe = path.startswith("/health") or path == "/metrics"
    logger.log(
        logging.DEBUG if is_probe else logging.INFO,
        "%s %s %s %d prompt_tokens=%d generated_tokens=%d ms=%.1f",
        record.request_id,
        scope["method"],
        path,
        status,
        record.prompt_tokens,
        record.generated_tokens,
        seconds * 1000,
        extra={
            "fields": {
                "request_id": record.request_id,
                "method": scope["method"],
                "path": path,
                "status": status,
                "prompt_tokens": record.prompt_tokens,
                "generated_tokens": record.generated_tokens,
                "ms": round(seconds * 1000, 1),
            }
        },
    )


class JsonFormatter(logging.Formatter):
    """One JSON object per record; `fields` given with it stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        event.update(fields if isinstance(fields, dict) else {"message": record.getMessage()})
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)


def configure_logging(level: str, style: str) -> None:
    """Send every log record of this process to stderr, from `level` on, as `text` or `json` lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if style == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "litserve"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # our own line says more
    if level != "debug":
        for name in ("uvicorn", "uvicorn.error", "litserve", "asyncio"):
            logging.getLogger(name).setLevel(logging.WARNING)
