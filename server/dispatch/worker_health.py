"""Detection of silent workers: a serving worker is hung and then killed, a loading worker without progress is killed.
Independent of requests.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from lightwell.server.dispatch.worker_state import WorkerState

logger = logging.getLogger(__name__)

_INTERVAL = 0.25
_IDLE_TIMEOUT = 5.0
"""Seconds of silence after which an idle worker is called hung: it beats twice a second."""
_KILL_AFTER = 2
"""How many times the worker timeout a hung worker has before it is killed."""


@dataclass(frozen=True)
class WorkerHealth:
    """The watch over workers. `on_hung` is called once for each worker that falls silent, `on_given_up` once for each
    process to be killed.

    `timeout` bounds the silence of a worker that serves, `load_timeout` the time in which one that starts makes no
    progress (0: no bound). Both are in seconds.
    """

    workers: Sequence[WorkerState]
    _: KW_ONLY
    timeout: float
    load_timeout: float
    on_hung: Callable[[WorkerState], None]
    on_given_up: Callable[[WorkerState], None]

    async def run(self) -> None:
        """Check the workers until cancelled. A late tick counts as one second: a busy API process blames no worker."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_INTERVAL)
            now = time.monotonic()
            self.check(min(now - last, 1.0))
            last = now

    def check(self, elapsed: float) -> None:
        """Advance the timers by `elapsed` seconds, and apply the timeouts."""
        for worker in self.workers:
            if worker.kill_reason is not None or worker.restart_note is not None:
                continue  # its process is ending, or has ended
            if worker.info is not None:
                self._check_serving(worker, elapsed)
            else:
                self._check_starting(worker, elapsed)

    def _check_serving(self, worker: WorkerState, elapsed: float) -> None:
        if not worker.is_hung:
            worker.note_answers()
        worker.silent_for += elapsed
        longest = _KILL_AFTER * self.timeout
        is_idle = not worker.requests and not worker.beats_until_idle
        limit = min(_IDLE_TIMEOUT, self.timeout) if is_idle else self.timeout
        if not worker.is_hung and worker.silent_for > limit:
            worker.note_hung(longest)
            logger.error(
                "%s has reported no progress for %.1f s (raise --worker-timeout if a step may take that long)",
                worker.name,
                worker.silent_for,
            )
            self.on_hung(worker)
        if worker.is_hung and worker.silent_for > longest:
            self._give_up(worker, f"was silent for more than {longest:g} s (twice --worker-timeout)")

    def _check_starting(self, worker: WorkerState, elapsed: float) -> None:
        """Check a worker that starts. Only progress counts: a blocked load may still send heartbeats, and a slow one
        may send none while it maps a library.
        """
        worker.stalled_for += elapsed
        if self.load_timeout and worker.stalled_for > self.load_timeout:
            problem = "did not connect" if worker.protocol is None else "got no further in loading the model"
            self._give_up(worker, f"{problem} for more than {self.load_timeout:g} s (--load-timeout)")

    def _give_up(self, worker: WorkerState, reason: str) -> None:
        worker.kill_reason = reason
        self.on_given_up(worker)
