"""Processes of one server, with their engine client, supervisor and drain. Independent of routes.

this process    uvicorn in the main thread, the engine client, the supervisor; no torch
worker i        started by `WorkerLauncher`: `EngineWorker.setup`, then `EngineWorker.run`
"""

import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from lightwell.server.config.devices import Places, as_text, places
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.memory.mapped_libraries import let_go_of_libraries
from lightwell.server.engine.memory.process_memory import free_host_memory, freeze_garbage, keep_little_memory
from lightwell.server.http.connection_limits import SPARE_CONNECTIONS, ConnectionLimits, OnEnd, http_protocol
from lightwell.server.lifecycle.drain import DrainServer
from lightwell.server.lifecycle.litserve_adapter import WorkerLauncher
from lightwell.server.lifecycle.supervisor import Process, Supervisor
from lightwell.server.lifecycle.worker_process import STOP_SIGNALS, prepare_environment, weight_bytes
from lightwell.server.worker.engine_worker import ENGINE_FACTORY, EngineWorker
from lightwell.server.worker.model_fingerprint import Fingerprint, difference

logger = logging.getLogger(__name__)

_LAST_WRITES = 5
"""Seconds that finished answers have at the end to reach slow clients."""
_REAP_TIMEOUT = 2.0

_PROBES = (b"/health", b"/metrics")
"""Paths that are answered even when there are too many connections."""
_OTHER_FILES = 128
"""File descriptors that belong to no client: libraries, sockets, workers, the log."""

Lifespan = Callable[[object], AbstractAsyncContextManager[None]]
AppFactory = Callable[[EngineClient, Lifespan], ASGIApp]


class LightwellServer:
    """One server: its HTTP side in this process, and the workers that it starts, watches and ends."""

    def __init__(
        self,
        settings: Settings,
        config: EngineConfig,
        engine_factory: str,
        build_app: AppFactory,
        on_connection_end: OnEnd,
        model_files: Fingerprint,
        places: Places,
    ) -> None:
        """Prepare the server. Raises ServerGaveUp if there is no place for the workers' socket."""
        try:
            self.client = EngineClient(settings, places.num_workers)
        except OSError as error:
            raise ServerGaveUp(f"no place for the workers' socket: {error}; TMPDIR can name another") from error
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(self.client.socket.remove)  # every end, also by a signal, removes the folder
            self.settings = settings
            self._worker = EngineWorker(
                config,
                self.client.socket.path,
                model_files=model_files,
                core_groups=places.core_groups,
                engine_factory=engine_factory,
                log_level=settings.log_level,
                log_format=settings.log_format,
            )
            self._launcher = WorkerLauncher(
                self._worker, accelerator=places.accelerator, cards=places.cards, num_workers=places.num_workers
            )
            self._build_app = build_app
            self.supervisor = Supervisor(
                self.client, self._launch, self._give_up, lambda: difference(model_files, config.model)
            )
            self._http: DrainServer | None = None
            limits = ConnectionLimits(
                send_timeout=settings.send_timeout,
                receive_timeout=settings.receive_timeout,
                max_connections=possible_connections(settings.max_connections),
                spare_paths=_PROBES,
            )
            self._protocol = http_protocol(limits, on_connection_end)
            unless_made.pop_all()

    def serve(self, listener: socket.socket) -> None:
        """Serve until a signal. Raises ServerGaveUp if the workers cannot run."""
        try:
            try:
                prepare_environment(self.settings.threads, weight_bytes(self._worker.config.model))
                self.supervisor.launch_all()  # first: the workers take longest to start
            except OSError as error:
                raise ServerGaveUp(f"no worker could be started: {error}") from error
            self._http = DrainServer(self._http_config(), self.client, self.settings.shutdown_grace)
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is _leave:  # its exception would break an event loop that is starting
                    signal.signal(number, self._http.handle_exit)
            self._http.run(sockets=[listener])
        finally:
            # However the loop ended: the workers end when the link closes.
            self.client.socket.remove()
            self.supervisor.reap(0.0 if self._http is None or self._http.is_forced else _REAP_TIMEOUT)
        if not self.client.live:
            raise ServerGaveUp(self.client.end_reason)

    def _http_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._build_app(self.client, self.client_lifespan),
            http=self._protocol,  # type: ignore[arg-type]  # any callable that makes protocols is accepted
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            root_path=self.settings.root_path,
            timeout_graceful_shutdown=_LAST_WRITES,
        )

    @contextlib.asynccontextmanager
    async def client_lifespan(self, app: object) -> AsyncIterator[None]:
        """Keep the engine client and the supervisor running while the application does."""
        await self.client.start()
        await self.supervisor.start()
        keep_little_memory()
        freeze_garbage()
        let_go_of_libraries()
        try:
            yield
        finally:
            await self.supervisor.stop()
            await self.client.stop()

    def _launch(self, worker_id: int) -> Process:
        self._worker.socket_path = self.client.socket.path  # a new one if the folder disappeared
        return self._launcher.launch(worker_id)

    def _give_up(self, _: str) -> None:
        if self._http is not None:
            self._http.stop_now()


def possible_connections(wanted: int) -> int:
    """Return as many connections as wanted, or as this process may have files open; its limit is raised as far as
    possible.

    Beyond that limit the kernel would give no client a connection, not even probes.
    """
    needed = wanted + SPARE_CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            possible = max(1, soft - SPARE_CONNECTIONS - _OTHER_FILES)
            logger.warning(
                "--max-connections %d is lowered to %d: this process may have %d files open (ulimit -n)",
                wanted,
                possible,
                soft,
            )
            return possible
    return wanted


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; port 0 picks a free one. Raises SettingsError in one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: no valid name for DNS
        raise SettingsError(f"--host {host!r:.200} is no address of this machine: {error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        remedy = "; choose another with --port, 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise SettingsError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}{remedy}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    settings: Settings,
    config: EngineConfig,
    build_app: AppFactory,
    *,
    name: str,
    on_connection_end: OnEnd,
    model_files: Fingerprint,
    engine_factory: str = ENGINE_FACTORY,
    on_address: Callable[[str], None] | None = None,
) -> None:
    """Bind, start the workers and serve until a signal. Raises SettingsError if the address or the devices
    are not available, ServerGaveUp if the workers cannot run.

    `on_connection_end` is called for each connection that the server ends. `model_files` is the fingerprint of the
    model that this process has read: workers that find other files do not start. `on_address` is called with the
    server's address, before anything is loaded.
    """
    with bind(settings.host, settings.port) as listener:
        # A signal must leave no workers behind.
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # ignored, as by nohup
                signal.signal(number, _leave)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until `DrainServer` handles it; always in the workers
        try:
            found = places(settings.devices, config.device)
        except ValueError as error:
            raise SettingsError(f"--devices {as_text(settings.devices)}: {error}") from None
        try:
            server = LightwellServer(
                settings, at_places(config, found), engine_factory, build_app, on_connection_end, model_files, found
            )
        except OSError as error:
            raise ServerGaveUp(f"the server could not be set up: {error}") from error
        if on_address is not None:
            on_address(url_of(listener))
        greeting = f"Lightwell is loading {name}; it will answer on {url_of(listener)}"
        if settings.log_format == "json":  # all output is events then
            logger.info(greeting)
        else:
            _print(greeting)
        server.serve(listener)


def at_places(config: EngineConfig, found: Places) -> EngineConfig:
    """Return the workers' configuration. Several workers share the CPU quota and the memory that is free now."""
    free = free_host_memory() if found.num_workers > 1 else None
    return replace(
        config,
        device="cuda" if found.cards else "cpu" if found.core_groups else config.device,
        memory_share=None if free is None else free // found.num_workers,
        num_workers=found.num_workers,
    )


class ServerGaveUp(RuntimeError):
    """Raised when the workers cannot run; the message is one line for the operator."""


def _print(line: str) -> None:
    try:
        # In one write: `print` writes the end of an unbuffered line separately, and a log line may come in between.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        logger.warning("stdout takes nothing: %s", error)
        # Python flushes stdout again at its end: the rest must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
