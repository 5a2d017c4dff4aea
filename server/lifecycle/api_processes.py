"""Several API processes on one port: their start, their replacement, and the state that they share.

this process         engines, workers, keys, adapters, files and batches, metrics, and the routes that run no model
API process i        its own socket on the port: HTTP, tokenizer, text of tokens (`server.lifecycle.api_process`)

- A request that runs a model is answered in its API process, which sends it over a relay
  (`server.dispatch.engine_relay`) to the engine client here: all requests are admitted, routed and charged by one
  process. Any other request is forwarded here, so that state has one owner.
- The kernel distributes connections (SO_REUSEPORT). A killed API process ends its connections, and its requests are
  aborted. Its socket ends with it, so that no connection waits for its replacement.
- The keys' requests in flight are counted here, by questions (`server.ipc.questions`). So are adapters announced, and
  metrics collected.
- Stop signals reach only this process, which passes them on.
"""

import asyncio
import contextlib
import logging
import math
import multiprocessing
import os
import pkgutil
import shutil
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.auth.quotas import KeyUse, LimitReached
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.engine_relay import EngineRelay
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.forwarding import answer_forwarded
from lightwell.server.ipc import link
from lightwell.server.ipc.questions import Answers, Questions
from lightwell.server.lifecycle.model_host import GPU_DRIVERS
from lightwell.server.lifecycle.supervisor import MAX_FAILURES, backoff, describe_exit, num_short
from lightwell.server.lifecycle.worker_process import without_stop_signals
from lightwell.server.observability.collectors import PREFIX, Samples, sum_of
from lightwell.server.observability.metrics import Metrics
from lightwell.server.worker.model_fingerprint import Fingerprint

logger = logging.getLogger(__name__)

_RUN = "lightwell.server.lifecycle.api_process:run"
"""The code of an API process, which imports the routes."""
_BEAT_INTERVAL = 0.5
_LAST_WRITES = 5.0
"""Seconds that API processes have at the end for the answers of slow clients."""
_PATIENCE = 1.0
"""Seconds that an API process has to report its metrics; then the last known ones are shown."""


def num_api_processes(settings: Settings) -> int:
    """Return the number of processes that answer HTTP requests."""
    if settings.api_processes != "auto":
        return settings.api_processes
    if settings.models_dir is not None or len(settings.model) > 1:
        return 1
    may_use_gpu = settings.device != "cpu" and any(map(os.path.exists, GPU_DRIVERS))
    return max(1, min(8, len(os.sched_getaffinity(0)) // 4)) if may_use_gpu else 1


@dataclass(frozen=True)
class EngineEnd:
    """An API process's end of a connection to an engine."""

    connected: socket.socket
    num_workers: int
    model_files: Fingerprint
    """The fingerprint of the files that the main process has read."""


@dataclass(frozen=True)
class ApiStart:
    """All that an API process gets at its start. It is pickled."""

    settings: Settings
    name: str
    listener: socket.socket
    """Its own socket on the server's port."""
    questions: socket.socket
    """Its end of the connection for questions."""
    engines: Sequence[EngineEnd]
    """The engine of each model that is loaded at the start."""
    main_socket: str
    """The path of the socket on which the main process takes forwarded requests."""


class _ApiProcess:
    """One API process, seen from the main process."""

    def __init__(self, front: "ApiProcesses", number: int, listener: socket.socket) -> None:
        """Start the process. Raises OSError."""
        self.number = number
        self.started = time.monotonic()
        self.samples: Samples = []
        """Its metrics, as it reported them last."""
        self.heard = math.inf
        """Time of its last message, before the first one infinity."""
        self._uses: Counter[KeyUse] = Counter()
        """The requests in flight of each key."""
        self._front = front
        answers: Answers = {
            "begin": self._begin,
            "end": self._end_request,
            "metrics": self._take,
            "adapters": self._tell_adapters,
        }
        self.questions = Questions(answers, self._leave)
        self.relays = [EngineRelay(model.engine, front.keys) for model in front.models]
        pairs = [socket.socketpair() for _ in (self.questions, *self.relays)]
        self._ours, theirs = zip(*pairs, strict=True)
        engines = [
            EngineEnd(end, len(model.engine.workers), model.fingerprint)
            for end, model in zip(theirs[1:], front.models, strict=True)
        ]
        start = ApiStart(front.settings, f"api-{number}", listener, theirs[0], engines, front.main_socket)
        self.process: BaseProcess = multiprocessing.get_context("spawn").Process(target=_run, args=(start,))
        with contextlib.ExitStack() as ends, without_stop_signals():
            for each in (*theirs, listener):
                ends.enter_context(each)
            self.process.start()
        logger.info("API process %d is process %s", number, self.process.pid)

    async def connect(self) -> None:
        """Begin to take its requests."""
        await self.questions.start(self._ours[0])
        for relay, ours in zip(self.relays, self._ours[1:], strict=True):
            await relay.start(ours)

    @property
    def num_lost(self) -> int:
        """Return the number of requests that ended without a report."""
        names = f"{PREFIX}request_success_total", f"{PREFIX}request_failed_total"
        ends = sum(value for *_, all_of in self.samples for name, _, value in all_of if name in names)
        return max(0, sum(relay.num_admitted for relay in self.relays) - int(ends))

    def disconnect(self) -> None:
        """End its connections."""
        self.questions.stop()
        for relay in self.relays:
            relay.stop()

    async def refresh(self) -> None:
        """Read its metrics, once it has started."""
        if self.heard == math.inf:
            return
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_PATIENCE):
                self.samples = await self.questions.ask("metrics")

    async def _begin(self, value: Any) -> tuple[str, str, int] | None:
        """Count a request of a key in; return the refusal if the key's limit is reached."""
        name, takes_tokens = value
        use = self._front.keys.use_of(name)
        try:
            if use is not None:  # else the key was revoked, and the API process reads that within a second
                use.begin(takes_tokens=takes_tokens)
                self._uses[use] += 1
        except LimitReached as error:
            return str(error), error.code, error.retry_after
        return None

    async def _end_request(self, name: str) -> None:
        use = self._front.keys.use_of(name)
        if use is not None and self._uses[use]:
            self._uses[use] -= 1
            use.end()

    async def _take(self, samples: Samples) -> None:
        self.samples, self.heard = samples, time.monotonic()

    async def _tell_adapters(self, value: object) -> Any:
        self.heard = time.monotonic()
        return self._front.adapters()

    def _leave(self) -> None:
        """Count the requests of a process that has ended out; its relays abort them."""
        for use in self._uses.elements():
            use.end()
        self._uses.clear()


class ApiProcesses:
    """The API processes of a server. `on_give_up` is called with the reason when they end again and again."""

    def __init__(
        self,
        settings: Settings,
        count: int,
        models: Sequence[ServedModel],
        keys: Keyring,
        metrics: Metrics,
        on_give_up: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.models = models
        self.keys = keys
        self.main_socket = ""
        self._count = count
        self._on_give_up = on_give_up
        self._processes: list[_ApiProcess] = []
        self._ended: Samples = []
        """The counters of processes that ended."""
        self._lives = [deque[float](maxlen=MAX_FAILURES) for _ in range(count)]
        self.app: ASGIApp
        """The application of this process. The server sets it."""
        self._public: socket.socket
        self._own: socket.socket
        self._forwarded: asyncio.Server
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.add_others(self._refresh, self._samples)
        for model in models:
            model.adapters.announce = self._announce

    @property
    def is_running(self) -> bool:
        """Return whether an API process runs."""
        return any(each.process.is_alive() for each in self._processes)

    def launch_all(self, public: socket.socket) -> None:
        """Start the processes on the port of this socket."""
        # Not earlier: a port that another server uses, also one with several processes, must be refused.
        public.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._public = public
        self._own = link.listen(tempfile.mkdtemp(prefix="lightwell-"))
        self.main_socket = self._own.getsockname()
        os.environ["PYTHONSAFEPATH"] = "1"  # as for workers (`worker_process.prepare_environment`)
        for number in range(self._count):
            self._processes.append(self._launch(number))

    async def start(self) -> None:
        """Take the requests of the processes, and replace a process that ends."""
        answer = partial(answer_forwarded, self.app)
        self._forwarded = await asyncio.start_unix_server(answer, sock=self._own, backlog=1024)
        for each in self._processes:
            await self._watch(each)
        self._add_task(self._beat())

    def drain(self) -> None:
        """Let each process end once its running requests have ended. A second call ends them at once."""
        self._is_ending = True
        for each in self._processes:
            each.questions.tell("drain")

    async def stop(self) -> None:
        """End the processes, after their last answers are written."""
        self.drain()
        end = time.monotonic() + _LAST_WRITES
        while self.is_running and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._forwarded.close()
        for task in self._tasks:
            task.cancel()
        for each in self._processes:
            asyncio.get_running_loop().remove_reader(each.process.sentinel)
            each.disconnect()

    def end(self) -> None:
        """Kill the processes that are left, and remove the socket. It needs no event loop."""
        for each in self._processes:
            each.process.kill()
            each.process.join()
        if self.main_socket:  # else nothing was launched
            shutil.rmtree(Path(self.main_socket).parent, ignore_errors=True)

    def adapters(self) -> list[list[tuple[str, int, str, int]]]:
        """Return the LoRA adapters of each model."""
        return [[(a.name, a.number, str(a.folder), a.created) for a in model.adapters] for model in self.models]

    def _launch(self, number: int) -> _ApiProcess:
        listener = socket.socket(self._public.family, socket.SOCK_STREAM)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind(self._public.getsockname())
        return _ApiProcess(self, number, listener)

    async def _watch(self, each: _ApiProcess) -> None:
        await each.connect()
        if self._is_ending:  # meanwhile
            each.questions.tell("drain")
        asyncio.get_running_loop().add_reader(each.process.sentinel, self._on_end, each)

    def _on_end(self, ended: _ApiProcess) -> None:
        asyncio.get_running_loop().remove_reader(ended.process.sentinel)
        ended.process.join()
        self._processes.remove(ended)
        self._ended = sum_of([self._ended, ended.samples])
        self.models[0].metrics.request_success.labels("abort").inc(ended.num_lost)
        if not self._is_ending:
            self._lives[ended.number].append(time.monotonic() - ended.started)
            self._add_task(self._replace(ended.number, describe_exit(ended.process.exitcode)))

    async def _replace(self, number: int, how: str) -> None:
        lives = self._lives[number]
        logger.error("API process %d ended: %s", number, how)
        while num_short(lives) < MAX_FAILURES:
            await asyncio.sleep(backoff(lives))
            if self._is_ending:
                return
            try:
                process = self._launch(number)
            except OSError as error:
                how = str(error)
                logger.error("API process %d could not be started: %s", number, how)
                lives.append(0.0)
                continue
            self._processes.append(process)
            await self._watch(process)
            return
        self._on_give_up(f"API process {number} ended {len(lives)} times, last by {how}")

    def _add_task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_INTERVAL)
            for each in self._processes:
                for relay in each.relays:
                    relay.beat()
                if each.heard < time.monotonic() - self.settings.worker_timeout:
                    logger.error("API process %d does not respond and is killed", each.number)
                    each.process.kill()

    async def _refresh(self) -> None:
        await asyncio.gather(*(each.refresh() for each in self._processes))

    def _samples(self) -> Iterator[Samples]:
        yield from (each.samples for each in self._processes)
        yield self._ended

    async def _announce(self) -> None:
        served = self.adapters()
        started = [each for each in self._processes if each.heard < math.inf]  # the others ask for them
        asked = (each.questions.ask("serve_adapters", served) for each in started)
        await asyncio.gather(*asked, return_exceptions=True)  # one that has ended needs none


def _run(start: ApiStart) -> None:
    pkgutil.resolve_name(_RUN)(start)
