"""The front of the Ray Serve application: forwards raw requests to engine replicas and converts Ray's exceptions to the
server's errors.

If a replica or its node dies, the answer is a 503 with Retry-After, or an `error` event if the stream had begun.
`/health` and `/metrics` report for all replicas. The ingress handles no other route, and checks only a body's length.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import orjson
from ray import exceptions as ray_errors
from ray import serve
from ray.serve import exceptions as serve_errors
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.ray.engine import Head
from deploy.ray.gather import merge
from lightwell.server.http.error_shapes import error_response
from lightwell.server.http.errors import ApiError, EngineError, PayloadTooLarge, QueueFull, Unavailable, WorkerLost
from lightwell.server.http.sse import error_event
from lightwell.server.observability.metrics import CONTENT_TYPE

logger = logging.getLogger(__name__)

_SCOPE = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
          "headers", "client", "server")  # fmt: skip
"""The parts of a scope that are sent on."""
_STATE_PATIENCE = 2.0
"""Seconds that replicas have to report their state; replicas that do not answer in time are left out."""
_LOOK_INTERVAL = 1.0
"""Seconds between two checks whether any replica may answer, for requests that have received nothing yet."""
_UNABLE = frozenset({"STARTING", "STOPPED"})
"""States of a replica that cannot answer. A replica in another state may answer: one that is stopping first finishes
its requests.
"""
_LOST = (
    ray_errors.RayActorError, ray_errors.NodeDiedError, ray_errors.WorkerCrashedError, ray_errors.ObjectLostError,
    serve_errors.ReplicaUnavailableError,
)  # fmt: skip


class Ingress:
    """A Serve deployment. A body of more than `max_body_bytes` is refused with 413."""

    def __init__(self, engines: DeploymentHandle[Any], max_body_bytes: int) -> None:
        self._engines = engines
        self._answers = engines.options(method_name="answer", stream=True)
        self._max_body_bytes = max_body_bytes
        self._looks = _Looks(engines)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(scope, receive, send)

        return application  # a function: uvicorn takes a bound method for ASGI 2

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] in ("GET", "HEAD") and path == "/metrics":
            await self._tell_metrics(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD") and path in ("/health", "/health/ready"):
            await self._tell_health(send)
        elif scope["method"] in ("GET", "HEAD") and path == "/health/live":
            await _respond(send, 200, "application/json", b'{"live":true}')
        else:
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _read(receive, self._max_body_bytes)
        except PayloadTooLarge as error:
            await error_response(error, path=scope["path"])(scope, receive, send)
            return
        if body is None:
            return
        response = self._answers.remote({name: scope[name] for name in _SCOPE if name in scope}, body)
        head: Head | None = None
        is_begun = False
        try:
            async for piece in self._pieces(response):
                if isinstance(piece, Head):  # kept until there is a body: a replica lost in between is a 503 yet
                    head = piece
                    continue
                if head is not None and not is_begun:
                    is_begun = True
                    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if head is not None and not is_begun:
                await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:  # the client left
            _abandon(response)
            raise
        except Exception as error:
            _abandon(response)
            told = explain(error)
            logger.warning("%s %s: %s (%s)", scope["method"], scope["path"], told.message, type(error).__name__)
            if head is None or not is_begun:
                await error_response(told, path=scope["path"])(scope, receive, send)
            elif any(value.startswith(b"text/event-stream") for _, value in head.headers):
                await send({"type": "http.response.body", "body": error_event(told), "more_body": False})
            else:
                raise  # the connection ends in the middle of the body, which cannot pass for a whole one

    async def _pieces(self, response: Any) -> AsyncIterator[Head | bytes]:
        """Yield the replica's answer. Raises Unavailable if no replica is left that could begin."""
        first = asyncio.ensure_future(anext(response))
        try:
            while not (await asyncio.wait({first}, timeout=_LOOK_INTERVAL))[0]:
                look = self._looks.last()
                await asyncio.wait({first, look}, return_when=asyncio.FIRST_COMPLETED)
                if not first.done() and look.result() == 0:
                    raise Unavailable("No engine replica is ready.", code="not_ready", retry_after=5)
        finally:
            if not first.done():
                first.cancel()
        yield first.result()
        async for piece in response:
            yield piece

    async def _states(self) -> list[dict[str, Any]]:
        try:
            asked = self._engines.broadcast("state")
            # The public results_async has one limit for all: a replica that has just died would silence the others.
            answers = await asyncio.wait_for(asked._fetch_replica_results_async(), _STATE_PATIENCE)
        except Exception as error:
            logger.warning("no replica could report its state: %r", error)
            return []
        tasks = [asyncio.ensure_future(answer.get_async()) for answer in answers]  # type: ignore[no-untyped-call, unused-ignore]
        done, late = await asyncio.wait(tasks, timeout=_STATE_PATIENCE)
        for task in late:
            task.cancel()
        states = [task.result() for task in done if not task.cancelled() and task.exception() is None]
        if len(states) < len(tasks):
            logger.warning("%d of %d replicas did not report their state", len(tasks) - len(states), len(tasks))
        return states

    async def _tell_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the metrics, or 503 if no replica reports any: an empty page would look like an idle server."""
        states = await self._states()
        if not states:
            error = Unavailable("No engine replica reports its metrics.", code="not_ready", retry_after=1)
            await error_response(error)(scope, receive, send)
            return
        page = merge({state["replica"]: state["metrics"] for state in states})
        await _respond(send, 200, CONTENT_TYPE, page.encode())

    async def _tell_health(self, send: Send) -> None:
        """Send the health: ready while one replica is."""
        states = await self._states()
        if any(state["ready"] for state in states):
            await _respond(send, 200, "application/json", b'{"ready":true,"reason":"ready"}')
            return
        reason = states[0]["reason"] if states else "no engine replica is ready"
        body = orjson.dumps({"ready": False, "reason": reason})
        await _respond(send, 503, "application/json", body, (b"retry-after", b"1"))


class _Looks:
    """Checks how many engine replicas may answer, as Ray's controller reports: one check for all requests that wait."""

    def __init__(self, engines: DeploymentHandle[Any]) -> None:
        self._engines = engines
        self._look: asyncio.Task[int | None] | None = None
        self._ended = 0.0
        """When the last check ended, on the monotonic clock."""

    def last(self) -> asyncio.Task[int | None]:
        """Return the check that is in progress, or one of the last second; its result is None if Ray does not say."""
        if self._look is None or (self._look.done() and time.monotonic() - self._ended >= _LOOK_INTERVAL):
            self._look = asyncio.create_task(self._count())
        return self._look

    async def _count(self) -> int | None:
        try:
            return await asyncio.to_thread(_num_able, self._engines)
        except Exception as error:  # for example during a restart of the controller; replicas continue without it
            logger.warning("Ray does not report the running replicas: %s", error)
            return None
        finally:
            self._ended = time.monotonic()


def explain(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, _LOST):
        return WorkerLost("The replica that ran this request ended; send it again.", code="worker_lost", retry_after=1)
    if isinstance(error, serve_errors.BackPressureError):
        return QueueFull("Every engine replica has as much waiting work as it takes.", code="queue_full", retry_after=1)
    if isinstance(error, serve_errors.DeploymentUnavailableError):
        return Unavailable(
            "The engine could not be deployed; Ray's log has the reason.", code="not_ready", retry_after=10
        )
    return EngineError("The server failed on this request; see its log.", code="internal_error")


def _abandon(response: Any) -> None:
    """Make the replica abort the request."""
    with suppress(Exception):  # of one that reached no replica it raises again why
        response.cancel()


def _num_able(engines: DeploymentHandle[Any]) -> int | None:
    """Return the number of engine replicas that may answer a request, or None if Ray has no such deployment (yet)."""
    application = serve.status().applications.get(engines.app_name)
    deployment = None if application is None else application.deployments.get(engines.deployment_name)
    if deployment is None:
        return None
    able: list[int] = [count for state, count in deployment.replica_states.items() if state not in _UNABLE]
    return sum(able)


async def _read(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body, or None if the client left. Raises PayloadTooLarge."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_bytes:
            raise PayloadTooLarge(
                f"The body has {size} bytes or more; at most {max_bytes} are accepted (max_body_bytes).",
                code="body_too_large",
            )
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _respond(send: Send, status: int, kind: str, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    fields = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message: Message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
