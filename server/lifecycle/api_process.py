"""One of several API processes: it answers the requests that run a model, and forwards the others to the main process.

Its engine clients are connected to relays in the main process (`server.dispatch.engine_relay`) instead of to workers.
`server.lifecycle.api_processes` starts it.
"""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from starlette.types import ASGIApp

from lightwell.server.config.auth.keys import Keyring, KnownKey
from lightwell.server.config.auth.quotas import LimitReached
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.engine.config import EngineConfig
from lightwell.server.generation.model_list import ModelSlot
from lightwell.server.ipc.questions import Questions
from lightwell.server.lifecycle import processes
from lightwell.server.lifecycle.api_processes import ApiStart, EngineEnd
from lightwell.server.lifecycle.app import create_app
from lightwell.server.lifecycle.model_host import ModelHosts, ServerGaveUp
from lightwell.server.lifecycle.server_models import ServerModels
from lightwell.server.observability.collectors import PREFIX
from lightwell.server.observability.logs import configure_logging
from lightwell.server.observability.otel import Tracing, is_wanted
from lightwell.server.worker.model_fingerprint import Fingerprint

_PUSH_INTERVAL = 1.0
"""Seconds between two copies of the metrics in the main process: a process that is killed loses the rest."""

_OWN_METRICS = tuple(f"{PREFIX}{name}" for name in ("request_failed", "requests_refused"))


def run(start: ApiStart) -> None:
    """Serve until the main process ends this one."""
    gc.disable()  # as in the main process, until `freeze_garbage`
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until `DrainServer` handles it
    configure_logging(start.settings.log_level, start.settings.log_format, start.name)
    _Server(start).serve(start.listener)


class _Server(processes.LightwellServer):
    """The HTTP side of this process."""

    def __init__(self, start: ApiStart) -> None:
        """Read the model's files, without the weights. Raises ServerGaveUp if they have changed."""
        self._start = start
        self._is_ending = False
        answers = {"metrics": self._samples, "drain": self._drain, "serve_adapters": self._serve_adapters}
        self._questions = Questions(answers, self._leave)
        self._models = ServerModels(start.settings, hosts=_RemoteEngines(start.engines))
        self._models.make_hosts()
        metrics = self._models.metrics
        super().__init__(start.settings, self._models.hosts, self._make_app, metrics.observe_connection_end)

    def _make_app(self, lifespan: processes.Lifespan) -> ASGIApp:
        settings, models = self.settings, self._models
        keys = _SharedKeyring(settings, self._questions)
        tracing = Tracing(settings.otlp_endpoint) if is_wanted(settings.otlp_endpoint, os.environ) else None
        return create_app(
            settings, keys, models.list, lifespan, models.metrics, tracing, main_socket=self._start.main_socket
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Keep the connections to the main process while the application runs."""
        await self._questions.start(self._start.questions)
        async with super().lifespan(app):
            await self._serve_adapters(await self._questions.ask("adapters"))
            pushing = asyncio.create_task(self._push())
            try:
                yield
            finally:
                pushing.cancel()
                self._is_ending = True
                self._questions.tell("metrics", self._models.metrics.samples())

    async def _push(self) -> None:
        while True:
            await asyncio.sleep(_PUSH_INTERVAL)
            self._questions.tell("metrics", self._models.metrics.samples())

    async def _samples(self, value: object) -> Any:
        return self._models.metrics.samples()

    async def _drain(self, value: object) -> None:
        self.drain()

    async def _serve_adapters(self, served: Any) -> None:
        for host, adapters in zip(self.hosts, served, strict=True):
            host.client.adapters.replace([ServedAdapter(n, i, Path(f), created) for n, i, f, created in adapters])

    def _leave(self) -> None:
        """End this process: the main process was killed."""
        if not self._is_ending:
            shutil.rmtree(Path(self._start.main_socket).parent, ignore_errors=True)
            os._exit(1)


class _RemoteEngine:
    """The engine client of one model, with the methods of a `ModelHost`: the main process has the workers."""

    def __init__(self, name: str, settings: Settings, end: EngineEnd) -> None:
        # The main process admits every request. One over the limits of all processes is refused here, before its body
        # is read. The waiting time can be estimated only there.
        own = replace(
            settings,
            max_num_queued_requests=settings.max_num_queued_requests + (end.num_workers - 1) * settings.max_num_seqs,
            max_kv_demand=settings.max_kv_demand * end.num_workers,
            max_queue_time=0.0,
            load_timeout=0.0,
        )
        self.name = name
        self.client = EngineClient(own, connected=end.connected)
        self.client.is_relayed = True
        self.supervisor = self

    def launch_all(self) -> None:
        """Start no workers."""

    async def start(self) -> None:
        """Begin to read the connection."""
        await self.client.start()

    async def stop(self) -> None:
        """End every request, and the connection."""
        self.client.begin_drain()
        await self.client.stop()

    def end(self, timeout: float) -> None:
        """Close the connection."""
        self.client.socket.remove()


class _RemoteEngines(ModelHosts):
    """The engines of the main process."""

    def __init__(self, ends: Sequence[EngineEnd]) -> None:
        super().__init__(1, lambda slot, reason: None)
        self._ends = iter(ends)

    def add(self, slot: ModelSlot, config: EngineConfig, model_files: Fingerprint) -> Any:
        """Return the client of the next engine. Raises ServerGaveUp if the main process has read other files."""
        end = next(self._ends)
        if model_files != end.model_files:
            raise ServerGaveUp(f"the files of {slot.id!r} have changed since the server started; restart the server")
        host: Any = _RemoteEngine(slot.id, slot.settings, end)
        self._hosts[slot] = host
        return host

    def metrics(self, slot: ModelSlot) -> Iterator[Metric]:
        """Yield the requests that ended here with an error; the main process has the other metrics."""
        host = self._hosts.get(slot)
        families = () if host is None else host.client.metrics()
        return (each for each in families if each.name in _OWN_METRICS)


class _SharedKeyring(Keyring):
    """The keys. The main process counts their use."""

    def __init__(self, settings: Settings, questions: Questions) -> None:
        """Read the keys. Raises KeyFileError."""
        super().__init__(settings.api_key, None if settings.api_key_file is None else Path(settings.api_key_file))
        self._questions = questions

    async def begin(self, known: KnownKey, *, takes_tokens: bool, is_background: bool = False) -> None:
        """Count a request in. Raises LimitReached."""
        limits = known.key.limits
        value = known.use.name, takes_tokens
        if limits.max_requests is None and limits.tokens_per_minute is None:
            self._questions.tell("begin", value)
        elif (refusal := await self._questions.ask("begin", value)) is not None:
            raise LimitReached(*refusal)

    def end(self, known: KnownKey, *, is_background: bool = False) -> None:
        """Count a request out."""
        self._questions.tell("end", known.use.name)
