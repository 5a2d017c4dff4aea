"""Processes of one server, with the engines of its models and its drain. Independent of routes.

this process    uvicorn in the main thread, the engine clients, the supervisors; no torch
worker i        of each model: `server.lifecycle.model_host`
"""

import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import uvicorn
from starlette.types import ASGIApp

from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.engine.memory.mapped_libraries import let_go_of_libraries
from lightwell.server.engine.memory.process_memory import freeze_garbage, keep_little_memory
from lightwell.server.http.connection_limits import SPARE_CONNECTIONS, ConnectionLimits, OnEnd, http_protocol
from lightwell.server.lifecycle.api_processes import ApiProcesses
from lightwell.server.lifecycle.drain import DrainServer
from lightwell.server.lifecycle.model_host import ModelHosts, ServerGaveUp
from lightwell.server.lifecycle.worker_process import STOP_SIGNALS

logger = logging.getLogger(__name__)

_LAST_WRITES = 5
"""Seconds that finished answers have at the end to reach slow clients."""
_REAP_TIMEOUT = 2.0

_PROBES = (b"/health", b"/metrics")
"""Paths that are answered even when there are too many connections."""
_OTHER_FILES = 128
"""File descriptors that belong to no client: libraries, sockets, workers, the log."""

Lifespan = Callable[[object], AbstractAsyncContextManager[None]]
AppFactory = Callable[[Lifespan], ASGIApp]


class LightwellServer:
    """One server: its HTTP side in this process, and the engines of its models."""

    def __init__(self, settings: Settings, hosts: ModelHosts, build_app: AppFactory, on_connection_end: OnEnd) -> None:
        self.settings = settings
        self.hosts = hosts
        self._build_app = build_app
        self._http: DrainServer | None = None
        self._end_reason = ""
        self.front: ApiProcesses | None = None
        """The API processes, if they answer on the port instead of this process."""
        limits = ConnectionLimits(
            send_timeout=settings.send_timeout,
            receive_timeout=settings.receive_timeout,
            max_connections=possible_connections(settings.max_connections),
            spare_paths=_PROBES,
        )
        self._protocol = http_protocol(limits, on_connection_end)

    def serve(self, listener: socket.socket) -> None:
        """Serve until a signal. Raises ServerGaveUp if the workers cannot run."""
        try:
            try:
                for host in self.hosts:
                    host.supervisor.launch_all()  # first: the workers take longest to start
                if self.front is not None:
                    self.front.launch_all(listener)
            except OSError as error:
                raise ServerGaveUp(f"no worker could be started: {error}") from error
            self._http = DrainServer(self._http_config(), self.hosts, self.settings.shutdown_grace, self.front)
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is _leave:  # its exception would break an event loop that is starting
                    signal.signal(number, self._http.handle_exit)
            self._http.run(sockets=[listener] if self.front is None else [])
        finally:
            # However the loop ended: the workers end when the link closes.
            timeout = 0.0 if self._http is None or self._http.is_forced else _REAP_TIMEOUT
            end = time.monotonic() + timeout
            if self.front is not None:
                self.front.end()
            for host in self.hosts:
                host.end(max(0.0, end - time.monotonic()))
        if self._end_reason:
            raise ServerGaveUp(self._end_reason)

    def _http_config(self) -> uvicorn.Config:
        app = self._build_app(self.lifespan)
        if self.front is not None:
            self.front.app = app
        return uvicorn.Config(
            app,
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
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Keep the engine clients and the supervisors running while the application does."""
        for host in self.hosts:
            await host.start()
        if self.front is not None:
            await self.front.start()
        keep_little_memory()
        freeze_garbage()
        let_go_of_libraries()
        try:
            yield
        finally:
            if self.front is not None:
                await self.front.stop()
            for host in self.hosts:
                await host.stop()

    def drain(self) -> None:
        """Begin to drain, or end at the next tick if it drains already."""
        if self._http is not None:
            self._http.handle_exit(signal.SIGTERM, None)

    def give_up(self, reason: str) -> None:
        """End the server at the next tick, because no model can be served."""
        self._end_reason = reason
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
        raise SettingsError(f"--host {host!r:.200} is not an address of this machine: {error}") from None
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


def run(settings: Settings, hosts: ModelHosts, make: Callable[[str], LightwellServer], name: str) -> None:
    """Bind, make the server and serve until a signal. Raises SettingsError if the address is not available, and
    ServerGaveUp if the workers cannot run.

    make: called with the server's address, before anything is loaded; it may add to `hosts`. name: of the models that
        are loaded.
    """
    with bind(settings.host, settings.port) as listener:
        # A signal must leave no workers behind.
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # ignored, as by nohup
                signal.signal(number, _leave)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until `DrainServer` handles it; always in the workers
        try:
            server = make(url_of(listener))
        except BaseException as error:
            for host in hosts:
                host.end(0.0)
            if isinstance(error, OSError):
                raise ServerGaveUp(f"the server could not be set up: {error}") from error
            raise
        greeting = f"Lightwell is loading {name}; it will answer on {url_of(listener)}"
        if settings.log_format == "json":  # all output is events then
            logger.info(greeting)
        else:
            _print(greeting)
        server.serve(listener)


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
