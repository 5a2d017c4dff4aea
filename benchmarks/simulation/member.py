"""One replica as a part of a cluster: whether it takes requests, what it has left to do, since when it costs money."""

from collections.abc import Callable
from enum import Enum

from benchmarks.simulation.job import Job
from benchmarks.simulation.replica import Replica
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from server.dispatch.admission import Admission, Cost


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Member:
    """A replica in a cluster; see the module. `slot` is its place in the router's bookkeeping, which another takes
    over when it is gone.
    """

    def __init__(
        self,
        slot: int,
        limits: EngineLimits,
        times: StepTimes,
        admission: Admission | None,
        now: float,
        ended: Callable[["Member", Job], None],
        warm_up: float,
    ) -> None:
        self.slot = slot
        self.replica = Replica(slot, limits, times, self._note_ended, self._note_read, warm_up)
        self.state = State.STARTING
        self.created_at = now
        self.version = 0  # of its next event: those with another are void
        self.life = 0  # how often it was lost
        self.num_jobs = 0
        self._admission = admission
        self._costs: dict[int, Cost] = {}
        self._ended = ended
        self._given = 0  # tokens to read and to write of unfinished requests, and those written already of all

    @property
    def tokens_noted(self) -> int:
        """Return what its requests still have to be read and may still write, as of its last event, in tokens."""
        return self._given - self.replica.num_tokens_written

    def tokens_left(self, now: float) -> int:
        """Return the same as `tokens_noted`, up to the last step that has ended."""
        return self.tokens_noted - self.replica.tokens_since(now)

    def add(self, job: Job, now: float) -> None:
        """Add a job. Raises QueueFull (429); then it was not added."""
        max_tokens = job.arrival.max_tokens or job.output
        if self._admission is not None:
            cost = self._admission.cost(job.num_prompt, 0, max_tokens, 0)
            self._admission.admit(cost)
            self._costs[job.uid] = cost
        self._given += job.num_prompt - job.num_expected + max_tokens
        self.num_jobs += 1
        self.replica.add(job, now)

    def lose(self, now: float) -> list[Job]:
        """Let its process die. Return the jobs that it had."""
        jobs = self.replica.lose(now)
        for job in jobs:
            self._release(job, was_read=job.first_token_at >= 0)
        self.num_jobs = 0
        self.life += 1
        self.version += 1
        return jobs

    def begin(self) -> None:
        """Take requests, with nothing to do. Until then a front door that has not noticed still counts what it had."""
        self.state = State.READY
        self._given = self.replica.num_tokens_written

    def _note_read(self, replica: Replica, job: Job) -> None:
        self._given -= job.num_prompt - job.num_expected
        if self._admission is not None:
            self._admission.note_prompt_read(self._costs[job.uid])
            self._admission.note_tokens_read(job.num_prompt)

    def _note_ended(self, replica: Replica, job: Job) -> None:
        self._given -= (job.arrival.max_tokens or job.output) - job.output
        self.num_jobs -= 1
        self._release(job, was_read=True)
        self._ended(self, job)

    def _release(self, job: Job, *, was_read: bool) -> None:
        if self._admission is not None:
            self._admission.release(self._costs.pop(job.uid), was_read=was_read)
