"""The routes in a thread of this process."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from fastapi.dependencies import models as dependency_models
from starlette.types import ASGIApp

from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.engine.memory.process_memory import give_back_memory
from lightwell.server.generation.model_list import ModelList
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.exchange import Exchange
from lightwell.server.lifecycle.app import create_app
from lightwell.server.lifecycle.model_files import load_model_files
from lightwell.server.lifecycle.worker_process import set_spin_count, weight_bytes
from lightwell.server.observability.metrics import Metrics
from lightwell.server.worker.engine_thread import EngineThread

T = TypeVar("T")

CLOSED = "this LLM was closed; make another one"


class Application:
    """A model, its engine and the routes, in threads of this process until `close`. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        """Load the model. Raises ValueErrors of one line."""
        for name in ("devices", "tensor_parallel"):
            if getattr(settings, name) != 1:
                raise SettingsError(f"{name}: 1 is accepted in the caller's process; `lightwell serve` supports more")
        files = load_model_files(settings)
        set_spin_count(weight_bytes(files.folder))
        self.name = files.id
        self.tokenizer = files.tokenizer
        self._pid = os.getpid()
        self._closing = threading.RLock()  # a finalizer may run inside `close`
        self._calling = threading.Lock()
        """Held while a coroutine is given to the loop: after `close` has begun, none is."""
        self.is_closed = False
        self._app: ASGIApp | None = None
        ours, self._engine_end = socket.socketpair()
        self._client = EngineClient(settings, connected=ours)
        self._engine = EngineThread(
            settings.engine_config(files.folder), self._engine_end, files.fingerprint, self._give_up
        )
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="lightwell-routes", daemon=True)
        self._thread.start()
        try:
            metrics = Metrics()
            model = ServedModel.of(files, self._client, metrics.of_model(files.id))
            model.metrics.watch(self._client.metrics)
            self._client.on_step = model.metrics.observe_step
            self._app = create_app(settings, Keyring((), None), ModelList.of(model), _no_lifespan, metrics)
            self.result(self._client.start())
            self._engine.start()
            self._engine.loaded.result()
            self.result(self._until_ready())
        except BaseException:
            self.close()
            raise

    async def _until_ready(self) -> None:
        while not self._client.ready():
            if not self._engine.is_alive():
                raise RuntimeError("the engine ended while it was loading")
            await asyncio.sleep(0.001)  # the message is on its way

    def _give_up(self, error: BaseException) -> None:
        """Refuse requests from now on. The engine's thread calls it when it fails."""
        self._client.end_reason = f"the engine failed ({error}); make another LLM"
        self._client.live = False

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the thread of the routes; `close` cancels it. Raises RuntimeError after `close`, and in a
        process that was forked from this one.
        """
        with self._calling:
            if not self.is_closed and os.getpid() == self._pid:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        if self.is_closed:
            raise RuntimeError(CLOSED)
        raise RuntimeError("an LLM does not work in a forked process; use the start method spawn of multiprocessing")

    def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the thread of the routes. An interrupt of this thread cancels it.

        Raises its exception, and RuntimeError if `close` ended it.
        """
        future = self.call(work)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    async def begin(self, exchange: Exchange) -> None:
        """Send a request to the routes; return when its answer has begun. Raises RuntimeError after `close`."""
        if self._app is None:
            raise RuntimeError(CLOSED)
        await exchange.begin(self._app)

    def leave(self, exchange: Exchange) -> None:
        """End a request that has not ended, without waiting."""
        with contextlib.suppress(RuntimeError):  # `close` has ended it
            self.call(exchange.leave())

    def close(self) -> None:
        """End every request, the engine and both threads, and free the memory. A second call does nothing."""
        if threading.current_thread() in (self._thread, self._engine):  # as a finalizer: these must not wait
            threading.Thread(target=self.close, name="lightwell-close").start()
            return
        with self._closing:
            if self.is_closed or os.getpid() != self._pid:
                return
            with self._calling:
                self.is_closed = True
            try:
                asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
            finally:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join()
                self.loop.close()
                if self._engine.is_alive():
                    self._engine.join()
                self._engine_end.close()  # if the thread was not started
                self._free()

    def _free(self) -> None:
        """Give the memory back."""
        self._app = None
        forget_routes()
        gc.collect()
        give_back_memory()

    async def _stop(self) -> None:
        try:
            self._client.begin_drain()
            await self._client.stop()
            self._client.socket.remove()
        finally:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def forget_routes() -> None:
    """Clear FastAPI's caches of route functions, which hold the application."""
    for cached in vars(dependency_models).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@contextlib.asynccontextmanager
async def _no_lifespan(app: object) -> AsyncIterator[None]:
    yield
