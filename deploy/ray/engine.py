"""One engine replica of the Ray Serve application: the server's own application and workers inside a Serve replica.

It receives a request as the scope and body read by the ingress, and yields the answer in pieces. It binds no port: the
ingress and Ray handle HTTP. It is independent of other replicas.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import serve
from starlette.types import ASGIApp, Message, Scope

from lightwell.server.cli import forget_keys
from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.settings import Settings
from lightwell.server.http.connection import BODY_WRITER
from lightwell.server.lifecycle.app import create_app
from lightwell.server.lifecycle.processes import Lifespan, LightwellServer
from lightwell.server.lifecycle.server_models import ServerModels
from lightwell.server.observability.logs import configure_logging
from lightwell.server.observability.otel import Tracing, is_wanted

logger = logging.getLogger(__name__)

_REAP_TIMEOUT = 5.0
_LOOK_INTERVAL = 0.05
_PIECE_BYTES = 1 << 20
"""Most bytes of an answer at once: each piece is an object in Ray's store until the ingress has it."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: list[tuple[bytes, bytes]]


class Engine:
    """A Serve deployment. `flags` are settings by name, as on the command line; LIGHTWELL_* variables count too.

    It is made once its workers are ready. Raises what `lightwell serve` would end with.
    """

    # Ray awaits it.
    async def __init__(self, flags: Mapping[str, Any], engine_factory: str) -> None:  # type: ignore[misc, unused-ignore]
        settings = Settings.from_sources(flags, os.environ)
        configure_logging(settings.log_level, settings.log_format)
        keys = Keyring(settings.api_key, None if settings.api_key_file is None else Path(settings.api_key_file))
        forget_keys()
        self._models = await asyncio.to_thread(ServerModels, settings, engine_factory)
        self._models.on_end = self._note_end
        self._end_reason = ""
        self._tracing = Tracing(settings.otlp_endpoint) if is_wanted(settings.otlp_endpoint, os.environ) else None
        self._models.make_hosts()

        def make_app(lifespan: Lifespan) -> ASGIApp:
            return create_app(settings, keys, self._models.list, lifespan, self._models.metrics, self._tracing)

        server = LightwellServer(settings, self._models.hosts, make_app, lambda reason: None)  # Ray has the connections
        self._app = make_app(server.lifespan)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lifespan = server.lifespan(self._app)
        for host in self._models.hosts:
            host.supervisor.launch_all()
        await self._lifespan.__aenter__()
        while not all(host.client.ready() for host in self._models.hosts):
            await self.check_health()
            await asyncio.sleep(_LOOK_INTERVAL)

    def _note_end(self, reason: str) -> None:
        self._end_reason = reason

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Head | bytes]:
        """Yield the answer: its head, then its body in pieces. If the reader stops, the application sees its client
        leave.

        Raises RuntimeError if the application fails in the middle of the body.
        """
        exchange = _Exchange(body)
        scope = {**scope, "app": None, "extensions": {BODY_WRITER: {"writer": exchange}}}
        task = asyncio.create_task(exchange.run(self._app, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async for piece in exchange.pieces():
                yield piece
        finally:
            exchange.leave()

    async def state(self) -> dict[str, Any]:
        """Return how this replica is, and its metrics in the Prometheus text format."""
        reasons = [host.client.reason() for host in self._models.hosts if not host.client.ready()]
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "ready": not reasons,
            "reason": reasons[0] if reasons else "ready",
            "metrics": self._models.metrics.render().decode(),
        }

    async def check_health(self) -> None:
        """Raise when the workers were given up, so that Ray makes another replica. A worker that is being restarted
        is the supervisor's task.
        """
        if self._end_reason:
            raise RuntimeError(self._end_reason)

    async def __del__(self) -> None:
        """Stop the application and its worker. Ray calls this after its requests end or the grace period is over."""
        self._models.hosts.begin_drain()
        await self._lifespan.__aexit__(None, None, None)
        for host in self._models.hosts:
            await asyncio.to_thread(host.end, _REAP_TIMEOUT)
        if self._tracing is not None:
            self._tracing.shut_down()


class _Exchange:
    """One request in the application: ASGI's two channels, and a shortcut past `send` for tokens."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._came = asyncio.Event()
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._is_complete = self._is_over = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            # Starlette raises an exception again after answering it with 500.
            logger.exception("%s %s failed", scope["method"], scope["path"])
        finally:
            self._is_over = True
            self._came.set()

    def leave(self) -> None:
        """Record that the client is gone, or has its answer."""
        self._gone.set()

    async def pieces(self) -> AsyncIterator[Head | bytes]:
        is_begun = False
        while True:
            await self._came.wait()
            self._came.clear()
            if self._head is not None and not is_begun:
                is_begun = True
                yield self._head
            data = b"".join(self._pieces)
            self._pieces.clear()
            for start in range(0, len(data), _PIECE_BYTES):
                yield data[start : start + _PIECE_BYTES]
            if self._is_complete and not self._pieces:
                return
            if self._is_over and not self._pieces:
                raise RuntimeError("the application ended in the middle of its answer")

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = Head(message["status"], [(bytes(name), bytes(value)) for name, value in message["headers"]])
        elif message["type"] == "http.response.body":
            self._pieces.append(bytes(message.get("body", b"")))
            self._is_complete = not message.get("more_body", False)
        self._came.set()

    @property
    def is_ready(self) -> bool:
        """Return whether a piece may be written now, as `server.http.connection.BodyWriter` does."""
        return self._head is not None and not self._is_complete and not self._gone.is_set()

    def write(self, piece: bytes) -> None:
        """Write a piece, as `server.http.connection.BodyWriter` does."""
        self._pieces.append(piece)
        self._came.set()
