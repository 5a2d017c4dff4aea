"""The routes in a thread of this process, and the requests that callers exchange with them."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message

from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.generation.served_model import ModelFiles
from lightwell.server.lifecycle.app import create_app, load_model_files
from lightwell.server.lifecycle.worker_process import set_spin_count, weight_bytes
from lightwell.server.observability.metrics import Metrics
from lightwell.server.worker.engine_thread import EngineThread

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The parts of a request before its body."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]


class Application:
    """A model, its engine and the routes, in threads of this process until `close`."""

    def __init__(self, settings: Settings) -> None:
        """Load the model. Raises ValueErrors of one line."""
        for name in ("devices", "tensor_parallel"):
            if getattr(settings, name) != 1:
                raise SettingsError(f"{name}: 1 is accepted in the caller's process; `lightwell serve` has more")
        files = load_model_files(settings)
        set_spin_count(weight_bytes(files.folder))
        self.name = files.id
        self.tokenizer = files.tokenizer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lightwell-routes", daemon=True)
        self._thread.start()
        self._is_closed = False
        try:
            self._client = EngineClient(settings, 1)
            self._app = self._create_app(settings, files)
            self._engine = EngineThread(
                settings.engine_config(files.folder), self._client.socket.path, files.fingerprint
            )
            self.call(self._client.start()).result()
            self._engine.start()
            self._engine.loaded.result()
            self.call(self._until_ready()).result()
        except BaseException:
            self.close()
            raise

    def _create_app(self, settings: Settings, files: ModelFiles) -> ASGIApp:
        return create_app(settings, Keyring((), None), files, self._client, _no_lifespan, Metrics())

    async def _until_ready(self) -> None:
        while not self._client.ready() and self._engine.is_alive():
            await asyncio.sleep(0.001)  # the message is on its way

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the thread of the routes. Raises RuntimeError after `close`."""
        if self._is_closed:
            work.close()
            raise RuntimeError("this LLM was closed; make another one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def open(self, head: RequestHead, body: bytes) -> "Exchange":
        """Send a request to the routes, and return the exchange when its answer has begun."""
        exchange = Exchange(body)
        await exchange.begin(self._app, head)
        return exchange

    def close(self) -> None:
        """End every request, the engine and both threads, and free the memory. A second call does nothing."""
        if self._is_closed:
            return
        with contextlib.suppress(AttributeError):  # a start that failed early
            self._client.begin_drain()
            self.call(self._client.stop()).result()
            self._client.socket.remove()
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        engine: EngineThread | None = getattr(self, "_engine", None)
        if engine is not None and engine.is_alive():
            engine.join()


@contextlib.asynccontextmanager
async def _no_lifespan(app: object) -> AsyncIterator[None]:
    yield


class Exchange:
    """One request and its answer. All methods run in the thread of the routes."""

    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | None = body
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()
        self._chunks: list[bytes] = []
        self._is_over = False
        self._left = asyncio.Event()
        self._running: asyncio.Future[None] | None = None

    async def begin(self, app: ASGIApp, head: RequestHead) -> None:
        """Run the application until the answer's status is known. Raises its exception if there is none."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": head.method,
            "scheme": "http",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": None,
            "server": ("lightwell", 80),
        }
        self._running = asyncio.ensure_future(app(scope, self._receive, self._send))
        self._running.add_done_callback(self._note_end)
        try:
            await self._begun.wait()
        except asyncio.CancelledError:  # the caller was interrupted
            self.close()
            raise
        if not self.status:
            self._running.result()
            raise RuntimeError("the route ended without an answer")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    async def read(self) -> bytes:
        """Return the bytes of the answer that have come since the last call, after waiting for the first, or b"" at
        its end.
        """
        while not self._chunks and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    def close(self) -> None:
        """Leave, as a client that closes its connection: an unfinished request ends."""
        self._left.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            self._begun.set()
        elif message["type"] == "http.response.body":
            if body := message.get("body"):
                self._chunks.append(bytes(body))
            self._is_over = not message.get("more_body", False)
            self._changed.set()

    def _note_end(self, task: "asyncio.Future[None]") -> None:
        self._is_over = True
        self._begun.set()
        self._changed.set()
        if not task.cancelled():
            task.exception()  # it is raised by `begin`, or has been logged with a status of 500
