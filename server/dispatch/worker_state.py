"""State of each worker slot in the API process: its link, its requests, its last numbers, and why it is not ready.

It makes no decisions (`server.dispatch.engine_client`, `server.lifecycle.supervisor`).
"""

import asyncio
import time
from collections.abc import Sequence

from lightwell.server.config.auth.rate_estimate import retry_after
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats
from lightwell.server.http.errors import Unavailable
from lightwell.server.ipc import link


class WorkerState:
    """One worker slot; its process may be replaced."""

    def __init__(self, worker_id: int, model: str = "") -> None:
        """Describe a slot. model: the name of its model in messages, if the server has several."""
        self.worker_id = worker_id
        self.name = f"worker {worker_id} of {model}" if model else f"worker {worker_id}"
        self.protocol: link.LinkProtocol | None = None
        self.pid: int | None = None
        self.info: EngineInfo | None = None
        self.progress: tuple[int, int] | None = None
        self.progress_logged = 0.0
        self.load_error: str | None = None
        self.was_ready = False
        """Whether this or an earlier process of the slot was ready once."""
        self._starting_since = time.monotonic()
        """Start time of its present or next process."""
        self._load_seconds: float | None = None
        """Seconds that the last process that became ready took for that."""
        self._ready_since: float | None = None
        """The time (CLOCK_MONOTONIC) at which the present process became ready."""
        self._silent_since: float | None = None
        """The time at which the worker fell silent, kept while it counts as hung."""
        self._killed_at = 0.0
        """The time at which the worker will be killed if it remains hung."""
        self.restart_note: str | None = None
        """The reason why the worker waits for its next start, or None."""
        self.kill_reason: str | None = None
        """The reason why the process is being killed, or None."""
        self.is_hung = False
        self.silent_for = 0.0
        """Seconds without a message while the worker is ready."""
        self.stalled_for = 0.0
        """Seconds without progress, until it is ready."""
        self.beats_until_idle = 0
        """Number of heartbeats still needed to call the worker idle."""
        self.stats = EngineStats()
        self.adapters: set[int] = set()
        """Numbers of the LoRA adapters that it has loaded."""
        self.requests: dict[int, RequestHandle] = {}
        self.num_tokens_left = 0
        """The sum of `RequestHandle.num_tokens_left` over its requests."""
        self.requests_total = 0
        """How many requests the slot was ever given."""
        self.gone = asyncio.Event()
        self.gone.set()

    @property
    def is_ready(self) -> bool:
        has_engine = self.protocol is not None and self.info is not None
        return has_engine and not self.is_hung and self.kill_reason is None

    def add(self, handle: RequestHandle) -> None:
        self.requests[handle.uid] = handle
        self.requests_total += 1
        self.num_tokens_left += handle.num_tokens_left

    def remove(self, handle: RequestHandle) -> None:
        del self.requests[handle.uid]
        self.num_tokens_left -= handle.num_tokens_left
        self.beats_until_idle = 2  # the first may have been sent before the request arrived

    def take_ready_seconds(self) -> float:
        """Return the seconds for which the ended process was ready, without a final hang. Call it once per process."""
        since, self._ready_since = self._ready_since, None
        until, self._silent_since = self._silent_since, None
        if since is None:
            return 0.0
        return max(0.0, (time.monotonic() if until is None else until) - since)

    def expect_start(self, delay: float = 0.0) -> None:
        """Note that its process ended, and that another starts after `delay` seconds."""
        self._starting_since = time.monotonic() + delay
        self.stalled_for = 0.0

    def note_start(self) -> None:
        """Note that another process was started."""
        self.restart_note = self.kill_reason = None

    def note_hung(self, kill_after: float) -> None:
        """Note that it has been silent for too long; it is killed after `kill_after` seconds of silence."""
        self.is_hung = True
        self._silent_since = time.monotonic() - self.silent_for
        self._killed_at = self._silent_since + kill_after

    def note_beat(self) -> None:
        """Note a beat, which the worker sends when it has had nothing to do for a while."""
        self.beats_until_idle = max(0, self.beats_until_idle - 1)

    def note_answers(self) -> None:
        """Note that it is not hung, or no longer."""
        self._silent_since = None

    def note_progress(self, done: int, total: int) -> None:
        """Note the progress of its process in reading the weights, in bytes."""
        if self.progress is None or done > self.progress[0]:
            self.stalled_for = 0.0
        self.progress = (done, total)

    def become_ready(self, info: EngineInfo) -> None:
        self.info = info
        self.was_ready = True
        self.beats_until_idle = 1
        self._ready_since = time.monotonic()
        self._load_seconds = self._ready_since - self._starting_since

    def seconds_until_ready(self) -> float:
        """Return the expected seconds until it is ready, by its last start or its present progress; 0 if unknown, or if
        it is ready.

        A worker that hangs may answer at any time, but the estimate is the time until its next process is ready.
        """
        now = time.monotonic()
        if self.info is not None:
            if not self.is_hung and self.kill_reason is None:
                return 0.0
            return max(0.0, self._killed_at - now) + (self._load_seconds or 0.0)
        passed = now - self._starting_since
        if self._load_seconds is not None:
            return max(0.0, self._load_seconds - passed)
        done, total = self.progress or (0, 0)
        return passed * (total - done) / done if done else 0.0

    def reason(self) -> str:
        """Return why it is not ready."""
        if self.restart_note is not None:
            return f"{self.name} {self.restart_note}"
        if self.kill_reason is not None:
            return f"{self.name} {self.kill_reason} and is being killed"
        if self.is_hung:
            return f"{self.name} has been silent for {self.silent_for:.0f} s"
        if self.was_ready and self.info is None:
            return f"{self.name} was lost and is being restarted"
        if self.progress is not None and self.progress[1]:
            return f"{self.name} is loading the model: {100 * self.progress[0] // self.progress[1]} %"
        return f"{self.name} is {'starting' if self.protocol is None else 'loading the model'}"


def seconds_until_ready(workers: Sequence[WorkerState]) -> int:
    """Return when the first of them is expected to take requests, as Retry-After gives it."""
    return retry_after(min(worker.seconds_until_ready() for worker in workers))


def unready(workers: Sequence[WorkerState], message: str, code: str) -> Unavailable:
    """Return the error of a request for which no worker is ready yet."""
    return Unavailable(message, code=code, retry_after=seconds_until_ready(workers))
