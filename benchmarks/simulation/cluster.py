"""Simulates many replicas behind one front door: the events of all of them in order of time.

It is a heap of events and nothing more. simpy would put a generator behind each replica and each request; here a
request is a few entries in the heap, which is what lets a thousand replicas run on one core.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from benchmarks.simulation.autoscaler import Autoscaler, AutoscalingLimits
from benchmarks.simulation.job import Job
from benchmarks.simulation.member import Member, State
from benchmarks.simulation.outcome import Outcome
from benchmarks.simulation.routers import POLICIES
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import Arrival
from server.dispatch.admission import Admission
from server.http.errors import QueueFull


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits like the server's settings; each replica has a server of its own, or `shared` all are workers of one."""

    max_num_queued_requests: int = 1024
    max_num_queued_tokens: int = 4_194_304
    max_kv_demand: float = 16.0
    max_queue_time: float = 30.0
    shared: bool = False


@dataclass(frozen=True)
class Failures:
    """A ready replica is lost, on average, after `mean_seconds`, and takes requests again `restart_seconds` later.

    For `notice_seconds` the front door sends it more, which fail too.
    """

    mean_seconds: float
    restart_seconds: float = 60.0
    notice_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.mean_seconds > 0 or self.restart_seconds < 0 or self.notice_seconds < 0:
            raise ValueError(f"{self}: mean_seconds must be above 0, the others at least 0")


@dataclass(frozen=True)
class Setup:
    """What is simulated."""

    replicas: int
    times: StepTimes
    limits: EngineLimits = field(default_factory=EngineLimits)
    policy: str = "prefix"
    admission: AdmissionLimits | None = field(default_factory=AdmissionLimits)
    autoscaling: AutoscalingLimits | None = None
    start_seconds: float = 60.0  # from a replica's creation until it takes requests
    grace_seconds: float = 120.0  # that one that is to go has for what it runs
    failures: Failures | None = None
    warm_up: float = 0.0  # seconds whose requests do not count in latencies, nor gaps between tokens that end in them
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}; at least 1 is needed")
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}; it must be one of {', '.join(POLICIES)}")


class Cluster:
    """One run. `run` may be called once."""

    def __init__(self, setup: Setup, tell: Callable[[Job], None] = lambda job: None) -> None:
        """Create a run. `tell` is called with each request when it has ended, however it did."""
        self._setup, self._tell = setup, tell
        scaling = setup.autoscaling
        most = max(setup.replicas, scaling.most if scaling else 0)
        self._router = POLICIES[setup.policy](2 * most, setup.seed)  # those that drain keep their slots
        self._scaler = None if scaling is None else Autoscaler(scaling)
        self._draw = random.Random(setup.seed + 1)
        self._shared = self._admission(setup.replicas) if setup.admission and setup.admission.shared else None
        self._slots = list(range(2 * most - 1, -1, -1))
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._num_events = 0
        self._members: list[Member] = []
        self._open: list[Member] = []  # that the front door sends to
        self._num_inflight = 0
        self._more_to_come = True
        self.now = 0.0
        self.outcome = Outcome(setup.warm_up)
        for _ in range(setup.replicas):
            self._become_ready(self._create())
        if scaling is not None:
            self._at(scaling.sync_period, self._scale)

    def run(self, arrivals: Iterable[Arrival]) -> Outcome:
        """Run all of these, in order of time, until the last has ended."""
        for uid, arrival in enumerate(arrivals):
            self._happen_until(arrival.at)
            self._advance_clock(arrival.at)
            self._arrive(Job(uid, arrival, self._setup.limits.block_size))
        self._more_to_come = False
        for member in self._members:
            self._note_time(member)
        while self._num_inflight:
            self._happen()
        for member in self._members:
            self.outcome.note_replica(member.replica, self.now - member.created_at)
        return self.outcome

    def check(self) -> None:
        """Compare the counters. Raises AssertionError."""
        for member in self._members:
            member.replica.check()
            assert member.num_jobs == member.replica.num_jobs
            assert member.num_jobs or member.state is State.STARTING or member.tokens_noted == 0
        assert self._num_inflight == sum(member.num_jobs for member in self._members)

    # ---- time

    def _at(self, time: float, event: Callable[..., None], *arguments: object) -> None:
        self._num_events += 1
        heappush(self._events, (time, self._num_events, event, arguments))

    def _happen_until(self, time: float) -> None:
        while self._events and self._events[0][0] < time:
            self._happen()

    def _happen(self) -> None:
        time, _, event, arguments = heappop(self._events)
        self._advance_clock(time)
        event(*arguments)

    def _advance_clock(self, time: float) -> None:
        self.outcome.request_seconds += self._num_inflight * (time - self.now)
        self.now = time

    # ---- requests

    def _arrive(self, job: Job) -> None:
        self.outcome.num_arrived += 1
        if not self._open:
            self._fail(job, "503 no replica is ready")
            return
        member = self._router.choose(self._open, job, self.now)
        if member.state is not State.READY:
            self._fail(job, "503 the replica is gone")
            return
        try:
            member.add(job, self.now)
        except QueueFull as error:
            self._fail(job, f"429 {error.code}")
            return
        self._num_inflight += 1
        self._plan(member)

    def _fail(self, job: Job, reason: str) -> None:
        job.failure, job.ended_at = reason, self.now
        self.outcome.note_failed(job)
        self._tell(job)

    def _ended(self, member: Member, job: Job) -> None:
        self._num_inflight -= 1
        self.outcome.note_ended(job)
        self._tell(job)

    def _plan(self, member: Member) -> None:
        """Plan the member's next event, which may have changed."""
        event = member.replica.next_event
        member.version += 1
        self._router.note(member)
        if event is not None:
            self._at(event, self._step, member, member.version)

    def _step(self, member: Member, version: int) -> None:
        if version != member.version:
            return
        member.replica.advance()
        self._plan(member)
        if member.state is State.DRAINING and not member.num_jobs:
            self._remove(member)

    # ---- replicas

    def _admission(self, num_replicas: int) -> Admission:
        setup = self._setup
        limits = setup.admission
        assert limits is not None
        num_seats = num_replicas * setup.limits.max_num_seqs
        admission = Admission(
            max_requests=num_seats + limits.max_num_queued_requests,
            max_tokens=limits.max_num_queued_tokens,
            max_capture_bytes=1,
            max_kv_demand=limits.max_kv_demand,
            max_queue_time=limits.max_queue_time,
            num_seats=num_seats,
            clock=lambda: self.now,
        )
        admission.note_cache(num_replicas * setup.limits.num_blocks, setup.limits.block_size)
        return admission

    def _create(self) -> Member:
        setup = self._setup
        if not self._slots:
            raise ValueError(
                f"more replicas drain at once than serve at most: grace_seconds {setup.grace_seconds} is too long for "
                "how fast the load changes; a shorter one is accepted"
            )
        admission = self._admission(1) if setup.admission and not self._shared else self._shared
        member = Member(self._slots.pop(), setup.limits, setup.times, admission, self.now, self._ended, setup.warm_up)
        self._members.append(member)
        return member

    def _become_ready(self, member: Member) -> None:
        if member.state is not State.STARTING:
            return
        member.begin()
        self._open.append(member)
        self._router.begin(member)
        if self._setup.failures is not None:
            self._at(
                self.now + self._draw.expovariate(1 / self._setup.failures.mean_seconds),
                self._lose,
                member,
                member.life,
            )

    def _lose(self, member: Member, life: int) -> None:
        failures = self._setup.failures
        assert failures is not None
        if member.state is State.GONE or member.life != life:
            return
        self.outcome.num_replicas_lost += 1
        was_draining = member.state is State.DRAINING
        self._kill(member)
        if was_draining:
            self._remove(member)
            return
        member.state = State.STARTING
        self._at(self.now + failures.notice_seconds, self._notice, member, member.life)
        self._at(self.now + max(failures.restart_seconds, failures.notice_seconds), self._become_ready, member)

    def _kill(self, member: Member) -> None:
        for job in member.lose(self.now):
            self._num_inflight -= 1
            self._fail(job, "503 the replica was lost")

    def _notice(self, member: Member, life: int) -> None:
        if member.life == life and member in self._open:
            self._open.remove(member)
            self._router.end(member)

    def _scale(self) -> None:
        scaler = self._scaler
        assert scaler is not None
        kept = [member for member in self._members if member.state in (State.STARTING, State.READY)]
        waiting = scaler.limits.metric == "waiting"
        total = sum(member.replica.num_waiting if waiting else member.num_jobs for member in kept)
        wanted = scaler.replicas(self.now, len(kept), total)
        for _ in range(wanted - len(kept)):
            self._at(self.now + self._setup.start_seconds, self._become_ready, self._create())
        # As Kubernetes: first those that are not ready, then the youngest.
        kept.sort(key=lambda member: (member.state is State.STARTING, member.created_at))
        for member in kept[wanted:]:
            self._drain(member)
        self.outcome.sizes.append((self.now, wanted))
        if self._more_to_come or self._num_inflight:
            self._at(self.now + scaler.limits.sync_period, self._scale)

    def _drain(self, member: Member) -> None:
        if member in self._open:
            self._open.remove(member)
            self._router.end(member)
        member.state = State.DRAINING
        if member.num_jobs:
            self._at(self.now + self._setup.grace_seconds, self._end_grace, member)
        else:
            self._remove(member)

    def _end_grace(self, member: Member) -> None:
        if member.state is State.DRAINING:
            self._kill(member)
            self._remove(member)

    def _remove(self, member: Member) -> None:
        member.state = State.GONE
        member.version += 1
        self._members.remove(member)
        self._slots.append(member.slot)
        self.outcome.note_replica(member.replica, self.now - member.created_at)
        if self._more_to_come:
            self._note_time(member)

    def _note_time(self, member: Member) -> None:
        self.outcome.note_time(self.now - member.created_at, member.replica.busy_until(self.now))
