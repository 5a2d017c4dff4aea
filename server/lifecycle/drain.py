"""Signals and the end of the HTTP server: the first stop signal lets running requests finish, the second does not.

While draining, the port stays open: probes are answered, new requests get 503. SIGUSR1 writes the state of the server
to the log.
"""

import asyncio
import logging
import signal
import socket
import threading
import time
from types import FrameType

import uvicorn

from lightwell.server.dispatch.debug_report import admission_state
from lightwell.server.http.errors import Unavailable
from lightwell.server.lifecycle.api_processes import ApiProcesses
from lightwell.server.lifecycle.model_host import ModelHosts

logger = logging.getLogger(__name__)

_TICKS_PER_CHECK = 20
"""Ticks, of a tenth of a second, between two checks of the counters of a server without requests."""
_CLOSE = (b"connection", b"close")
_LAST_ANSWERS = 0.05
"""Seconds in which to write the answers of requests that were just failed."""
_FORCED_WRITES = 1
"""Seconds, at a forced end, for clients that do not read."""


class DrainServer(uvicorn.Server):
    """A uvicorn server that ends when nothing is in flight or `grace` seconds are over."""

    def __init__(
        self, config: uvicorn.Config, hosts: ModelHosts, grace: float, front: ApiProcesses | None = None
    ) -> None:
        """front: the API processes, which drain with this server."""
        super().__init__(config)
        self._hosts = hosts
        self._front = front
        self._grace = grace
        self._drain_started: float | None = None
        self._dump: asyncio.Task[None] | None = None
        self._leaked: dict[str, dict[str, int]] = {}
        self._is_announced = False
        self.is_forced = False
        """Whether the server ended without waiting for running requests."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and to answer SIGUSR1."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._begin_dump)

    def _begin_dump(self) -> None:
        if self._dump is None or self._dump.done():
            self._dump = asyncio.create_task(self._log_state(), name="debug-dump")

    async def _log_state(self) -> None:
        http = {"connections": len(self.server_state.connections), "requests": len(self.server_state.tasks)}
        state = {"http": http, "models": {host.name: await host.client.describe() for host in self._hosts}}
        logger.warning("the state of the server, as SIGUSR1 asked", extra={"attached": {"state": state}})

    def _check_books(self) -> None:
        """Check that no budget is in use while there is no request: a leak would take room forever. It is reported
        once, and again when it changes.
        """
        leaked = {}
        for host in self._hosts:
            books = admission_state(host.client.admission)
            if used := {name: budget["used"] for name, budget in books.items() if budget["used"]}:
                leaked[host.name] = used
                if leaked[host.name] != self._leaked.get(host.name):
                    host.client.counts.integrity_failures += 1
                    logger.error("with no request in flight, these are still counted: %s", used)
        self._leaked = leaked

    @property
    def _num_inflight(self) -> int:
        return sum(host.client.num_inflight for host in self._hosts)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: this only sets flags and headers; `on_tick` acts on them."""
        if self._drain_started is None:
            self._drain_started = time.monotonic()
            self._hosts.begin_drain()
            # Each answer announces the end of the connection, so that its next request goes to another server.
            self.config.encoded_headers.append(_CLOSE)  # the ticks make the next line's headers of it
            self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
        else:
            self.stop_now()

    def stop_now(self) -> None:
        """End at the next tick, whatever is running."""
        self._hosts.begin_drain()
        self.config.timeout_graceful_shutdown = _FORCED_WRITES
        self.should_exit = self.is_forced = True

    async def on_tick(self, counter: int) -> bool:
        """Return, ten times a second, whether the server should end."""
        should_end = await super().on_tick(counter)
        if should_end:
            await self._fail_rest()
            return True
        if counter % _TICKS_PER_CHECK == 0 and not self.server_state.tasks and not self._num_inflight:
            self._check_books()
        if self._drain_started is None:
            return False
        if not self._is_announced:
            self._is_announced = True
            for host in self._hosts:
                host.client.end_background()
            if self._front is not None:
                self._front.drain()
            text = "the server drains: %d requests run, for %g s at most; a second signal or Ctrl-C ends them"
            logger.info(text, self._num_inflight, self._grace)
        if time.monotonic() - self._drain_started > self._grace:
            logger.warning("%d requests did not end within %g s", self._num_inflight, self._grace)
            await self._fail_rest()
            return True
        # The last bytes of a finished request may still be on the way to a slow client.
        is_idle = self._num_inflight == 0 and not self.server_state.tasks
        return is_idle and (self._front is None or not self._front.is_running)

    async def _fail_rest(self) -> None:
        is_waited_for = self._num_inflight > 0
        # Also if none is in flight: a request between two of its inputs submits no more.
        for host in self._hosts:
            host.client.fail_all(Unavailable("The server is shutting down.", code="shutting_down", retry_after=1))
        if is_waited_for:
            await asyncio.sleep(_LAST_ANSWERS)
