"""Supervisor of the workers: starts them, notices their end, restarts them, and gives up after repeated failures.

It runs in the API process's event loop, on the workers' sentinels, without a thread. Independent of requests.
"""

import asyncio
import logging
import multiprocessing.process
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from lightwell.server.dispatch.engine_client import EngineClient

logger = logging.getLogger(__name__)

Process = multiprocessing.process.BaseProcess

MAX_FAILURES = 5
FAILURE_WINDOW = 60.0
"""Seconds: the server ends if the last MAX_FAILURES processes of one worker were ready for less than this in total.
Loading does not count, or a large model that always fails would be loaded forever. Each worker has its own count: a
fault that ends all workers at once is one failure.
"""
_MAX_BACKOFF = 10.0
_LAST_WORDS = 2.0
"""Seconds for the event loop to read the last messages of a worker."""


@dataclass(eq=False)
class Supervisor:
    """Starts and restarts workers. `launch(worker_id)` starts a process; `on_give_up(message)` is called once, when the
    server should end.

    `why_not()` is called before a restart: if it returns a reason, the server ends.
    """

    client: EngineClient
    launch: Callable[[int], Process]
    on_give_up: Callable[[str], None]
    why_not: Callable[[], str | None] = lambda: None
    _processes: dict[int, Process] = field(init=False, default_factory=dict)
    _lives: list[deque[float]] = field(init=False)
    """For each worker, the seconds for which its last processes were ready."""
    _is_stopping: bool = field(init=False, default=False)
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._lives = [deque(maxlen=MAX_FAILURES) for _ in self.client.workers]
        self.client.on_hung = self.kill

    def launch_all(self) -> None:
        """Start every worker, before the event loop runs, so that they load while the API process starts."""
        for worker in self.client.workers:
            self._processes[worker.worker_id] = self.launch(worker.worker_id)

    async def start(self) -> None:
        """Watch the workers from now on; one that has ended already is noticed too."""
        for worker_id in self._processes:
            self._watch(worker_id)

    def kill(self, worker_id: int) -> None:
        """End a worker that hangs; it is then restarted like any that ended."""
        process = self._processes.get(worker_id)
        if process is not None and process.is_alive():
            worker = self.client.workers[worker_id]
            logger.error("killing %s (pid %s), as it %s", worker.name, process.pid, worker.kill_reason)
            process.kill()

    async def stop(self) -> None:
        """Restart nothing from now on."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        for process in self._processes.values():
            asyncio.get_running_loop().remove_reader(process.sentinel)

    def reap(self, timeout: float) -> None:
        """Wait for the workers, after the loop has ended and the link was closed, and kill the rest."""
        self._is_stopping = True
        end = time.monotonic() + timeout
        for process in self._processes.values():
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def _watch(self, worker_id: int) -> None:
        sentinel = self._processes[worker_id].sentinel
        asyncio.get_running_loop().add_reader(sentinel, self._on_end, worker_id)

    def _on_end(self, worker_id: int) -> None:
        asyncio.get_running_loop().remove_reader(self._processes[worker_id].sentinel)
        if self._is_stopping:
            return
        task = asyncio.create_task(self._replace(worker_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, worker_id: int) -> None:
        worker = self.client.workers[worker_id]
        process = self._processes[worker_id]
        process.join()
        try:
            await asyncio.wait_for(worker.gone.wait(), _LAST_WORDS)
        except TimeoutError:
            logger.warning("%s ended and its link did not", worker.name)
        how = describe_exit(process.exitcode)
        if worker.kill_reason is not None:
            how += f", as it {worker.kill_reason}"
        elif process.exitcode == -signal.SIGKILL and not worker.was_ready:
            how += " while it loaded, as the kernel does where memory is short"
        if worker.load_error is not None and not worker.was_ready:
            self._give_up(worker.load_error)
            return
        logger.error("%s ended: %s", worker.name, how)
        lives = self._lives[worker_id]
        lives.append(worker.take_ready_seconds())
        while num_short(lives) < MAX_FAILURES:
            delay = backoff(lives)
            worker.expect_start(delay)
            if delay:
                logger.warning("%s is started again in %.1f s", worker.name, delay)
                worker.restart_note = f"ended ({how}), {num_short(lives)} times recently, and is restarted"
                await asyncio.sleep(delay)
            refusal = self.why_not()
            if refusal is not None:
                self._give_up(refusal)
                return
            try:
                await self.client.socket.ensure_listening()
                self._processes[worker_id] = self.launch(worker_id)
            except Exception as error:  # a lack of memory, files, threads or processes, perhaps temporary
                how = str(error) or type(error).__name__
                logger.error("%s could not be started: %s", worker.name, how)
                lives.append(0.0)
                continue
            worker.note_start()
            self.client.counts.worker_restarts += 1
            self._watch(worker_id)
            return
        self._give_up(worker.load_error or f"the worker ended {len(lives)} times, last by {how}")

    def _give_up(self, message: str) -> None:
        if not self.client.live:
            return  # several workers may give up
        self.client.live = False
        self.client.end_reason = message
        self.on_give_up(message)


def num_short(lives: deque[float]) -> int:
    """Return the number of the last processes that were ready for less than the window in total."""
    return sum(total < FAILURE_WINDOW for total in accumulate(reversed(lives)))


def backoff(lives: deque[float]) -> float:
    """Return the seconds to wait before a restart: 0 after a first failure, then half a second, doubled each time."""
    recent = num_short(lives)
    return 0.0 if recent <= 1 else min(_MAX_BACKOFF, 0.5 * 2.0 ** (recent - 2))


def describe_exit(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exit status {exitcode}"
    return next((number.name for number in signal.Signals if number == -exitcode), f"signal {-exitcode}")
