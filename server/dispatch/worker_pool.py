"""Connections of the workers, and the last state that each reported.

There is one `WorkerState` for each worker slot. Independent of requests (`server.dispatch.engine_client`) and of
processes (`server.lifecycle.supervisor`).
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.worker_health import WorkerHealth
from lightwell.server.dispatch.worker_state import WorkerState
from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats
from lightwell.server.ipc import frames, link, messages
from lightwell.server.ipc.messages import MessageError

logger = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 2.0
"""Seconds between two lines of the log about a load."""


class WorkerSocket:
    """A socket that listens at once, so that a worker may connect before the event loop runs. `path` may change."""

    def __init__(self, make_protocol: Callable[[], link.LinkProtocol]) -> None:
        self._make_protocol = make_protocol
        self._server: asyncio.AbstractServer | None = None
        self._listen()

    def _listen(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="lightwell-")
        self._listener = link.listen(self._folder)
        self.path: str = self._listener.getsockname()

    async def accept(self) -> None:
        """Accept connections; they may have been waiting in the listener's queue."""
        self._server = await asyncio.get_running_loop().create_unix_server(self._make_protocol, sock=self._listener)

    async def ensure_listening(self) -> None:
        """Listen in a new folder if the socket's is gone, for example when /tmp was cleaned: a worker that starts needs
        it. Open connections are not affected. Raises OSError.
        """
        if os.path.exists(self.path):
            return
        logger.warning("%s is gone: listening again", self.path)
        self.stop()
        self._listener.close()
        self._listen()
        await self.accept()

    def stop(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    def remove(self) -> None:
        """Close the listener and remove its folder. It needs no event loop, and may be called again."""
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class WorkerInProcess(WorkerSocket):
    """The connection to the only worker, a thread of this process, over one end of a pair of sockets. There is no
    folder, which a killed process would leave behind, and nothing else can connect.
    """

    path = ""

    def __init__(self, make_protocol: Callable[[], link.LinkProtocol], connected: socket.socket) -> None:
        self._make_protocol = make_protocol
        self._connected = connected

    async def accept(self) -> None:
        """Begin to read the connection."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(self._make_protocol, sock=self._connected)

    def stop(self) -> None:
        """End the connection, also where a forked process has it open."""
        with contextlib.suppress(OSError):
            self._connected.shutdown(socket.SHUT_RDWR)

    def remove(self) -> None:
        """Close the connection. It needs no event loop, and may be called again."""
        self._connected.close()


class WorkerPool:
    """The workers and their messages.

    connected: the connection to a worker in this process; without it, workers connect to a socket in a folder.
    `on_message` gets each message that does not concern the worker's own state. The other functions are called when a
    worker becomes ready, when its connection ends, when it hangs, and when its process must be killed.
    """

    def __init__(
        self,
        num_workers: int,
        settings: Settings,
        model: str,
        connected: socket.socket | None,
        *,
        on_message: Callable[[WorkerState, messages.FromWorker], None],
        on_ready: Callable[[WorkerState, EngineInfo], None],
        on_lost: Callable[[WorkerState], None],
        on_hung: Callable[[WorkerState], None],
        on_given_up: Callable[[WorkerState], None],
    ) -> None:
        self.workers = tuple(WorkerState(i, model) for i in range(num_workers))
        new_protocol = partial(link.LinkProtocol, self._on_frame, self._on_disconnect)
        self.socket = WorkerSocket(new_protocol) if connected is None else WorkerInProcess(new_protocol, connected)
        self.last_info: EngineInfo | None = None
        """The engine's description from the worker that became ready last; None before any was."""
        self.may_leave = False
        """Whether workers without requests are expected to end: it is no warning then."""
        self._on_message = on_message
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._by_protocol: dict[link.LinkProtocol, WorkerState] = {}
        self._dead_stats = EngineStats()
        self._health = WorkerHealth(
            self.workers,
            timeout=settings.worker_timeout,
            load_timeout=settings.load_timeout,
            on_hung=on_hung,
            on_given_up=on_given_up,
        )
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept the workers' connections; they may have been waiting in the listener's queue."""
        await self.socket.accept()
        self._watching = asyncio.create_task(self._health.run(), name="worker-watch")

    async def stop(self) -> None:
        """End every connection; the workers then end by themselves."""
        if self._watching is not None:
            self._watching.cancel()
        for protocol in list(self._by_protocol):
            protocol.abort("the server is shutting down")
        self.socket.stop()
        if self._watching is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    def stats(self) -> EngineStats:
        """Return the stats of all workers as one. The counters include workers that ended, so they never decrease."""
        living = [worker.stats for worker in self.workers if worker.info is not None]
        return EngineStats.of_workers([self._dead_stats, *living])

    def continue_counters(self, earlier: EngineStats) -> None:
        """Begin with the counters of an earlier pool of the same model."""
        self._dead_stats = earlier.counters()

    def send(self, worker: WorkerState, message: messages.ToWorker) -> None:
        """Send a message to a worker; one that is not connected gets none."""
        if worker.protocol is not None:
            worker.protocol.send(*messages.encode(message))

    def _on_frame(self, protocol: link.LinkProtocol, frame: frames.Frame) -> None:
        """Handle a message. Raises MessageError for one that makes no sense; the link then drops the worker."""
        message = messages.decode_from_worker(frame.header, frame.buffers)
        if isinstance(message, messages.Hello):
            self._greet(protocol, message)
            return
        worker = self._by_protocol.get(protocol)
        if worker is None:
            raise MessageError(f"{type(message).__name__} came before Hello")
        worker.silent_for = 0.0
        if worker.is_hung:
            logger.warning("%s answers again", worker.name)
            worker.is_hung = False
        match message:
            case messages.Heartbeat(is_idle=True):
                worker.note_beat()
            case messages.Heartbeat():
                worker.stalled_for = 0.0
            case messages.Loading(done, total):
                worker.note_progress(done, total)
                now = time.monotonic()
                if now - worker.progress_logged > _PROGRESS_INTERVAL:  # a small model needs no line
                    worker.progress_logged, percent = now, 100 * done // max(1, total)
                    logger.info("%s is loading the model: %d %%", worker.name, percent)
            case messages.Ready(info):
                self.last_info = info
                worker.become_ready(info)
                self._on_ready(worker, info)
                fields = {name: value for name, value in asdict(info).items() if value is not None}
                message_text = "%s is ready: %s on %s, %d blocks of %d tokens in its KV cache"
                known = (worker.name, info.dtype, info.device, info.num_blocks, info.block_size)
                logger.info(message_text, *known, extra={"attached": {"engine": fields}})
            case messages.LoadFailed(text):
                worker.load_error = text
            case _:
                self._on_message(worker, message)

    def _greet(self, protocol: link.LinkProtocol, hello: messages.Hello) -> None:
        if not 0 <= hello.worker_id < len(self.workers) or protocol in self._by_protocol:
            raise MessageError(f"unexpected Hello of worker {hello.worker_id}")
        worker = self.workers[hello.worker_id]
        if worker.protocol is not None:
            raise MessageError(f"worker {hello.worker_id} is already connected")
        worker.protocol, worker.pid = protocol, hello.pid
        worker.load_error = worker.progress = None
        worker.progress_logged = time.monotonic()
        worker.silent_for = worker.stalled_for = 0.0
        worker.gone.clear()
        self._by_protocol[protocol] = worker

    def _on_disconnect(self, protocol: link.LinkProtocol, reason: str) -> None:
        worker = self._by_protocol.pop(protocol, None)
        if worker is None:
            return
        logger.log(
            logging.DEBUG if worker.load_error or (self.may_leave and not worker.requests) else logging.WARNING,
            "lost %s (pid %s) with %d requests in flight: %s",
            worker.name,
            worker.pid,
            len(worker.requests),
            reason,
        )
        worker.protocol = worker.info = worker.pid = worker.progress = None
        worker.is_hung = False
        self._dead_stats = EngineStats.of_workers([self._dead_stats, worker.stats.counters()])
        worker.stats = EngineStats()
        worker.expect_start()
        self._on_lost(worker)
        worker.gone.set()
