"""The watch over silent workers: calls them hung, and has them killed when they stay so. Knows nothing of requests."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from server.worker_state import WorkerState

logger = logging.getLogger(__name__)

_INTERVAL = 0.25
_IDLE_TIMEOUT = 5.0
"""Silence of an idle worker that calls it hung: it beats twice a second."""
_KILL_AFTER = 2.0
"""Times the worker timeout after which a hung worker is given up."""


class WorkerWatch:
    """`on_hung` is called once for each worker that falls silent, `on_given_up` again and again while it stays so."""

    def __init__(
        self,
        workers: Sequence[WorkerState],
        timeout: float,
        on_hung: Callable[[WorkerState], None],
        on_given_up: Callable[[WorkerState], None],
    ) -> None:
        self._workers = workers
        self._timeout = timeout
        self._on_hung = on_hung
        self._on_given_up = on_given_up

    async def run(self) -> None:
        """Until cancelled. A late tick of our own adds at most a second to the silence: a busy API process blames no
        worker.
        """
        last = time.monotonic()
        while True:
            await asyncio.sleep(_INTERVAL)
            now = time.monotonic()
            elapsed, last = min(now - last, 1.0), now
            for worker in self._workers:
                if worker.info is not None:
                    self._look_at(worker, elapsed)

    def _look_at(self, worker: WorkerState, elapsed: float) -> None:
        worker.silent_for += elapsed
        limit = self._timeout if worker.requests else min(_IDLE_TIMEOUT, self._timeout)
        if not worker.is_hung and worker.silent_for > limit:
            worker.is_hung = True
            logger.error(
                "worker %d has been silent for %.1f s (raise --worker-timeout if a step may take that long)",
                worker.worker_id,
                worker.silent_for,
            )
            self._on_hung(worker)
        if worker.is_hung and worker.silent_for > _KILL_AFTER * self._timeout:
            self._on_given_up(worker)
