"""Cancels a step, between two pieces of its work, when the requests that hold most of it no longer want it.

A step that reads prompts may take most of a second. A client that disconnects meanwhile, or whose deadline passes,
would keep its slot and its blocks until the end, and the others would wait for numbers that are never read. So the
network checks as it runs, and a step of which too little is still wanted is cancelled: nothing of it is committed. The
aborted requests end at once. The others are scheduled again and, where answers do not depend on the batch, get the same
bits: keys and values are written again to the same places, and captures are taken back.

No request starves. A step that some request still wants is cancelled only if the aborted ones hold more than half of
its tokens, and never right after another such step was: a request loses at most every second step, however many others
come and leave. A step that no request wants is always cancelled: that costs no request anything.

On CUDA there is no check: there the network runs ahead of the device, so an answer would come late, and steps are
short. Standard library only.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field

from server.engine.scheduling.schedule import Schedule

ASK_INTERVAL = 0.001
"""Seconds between two checks for aborted requests. A check costs a microsecond if there are none."""


class StepCancelled(Exception):
    """Raised when too little of the step is still wanted. It is no failure and must not be logged as one."""


@dataclass(slots=True, eq=False)
class CancellationCheck:
    """A check to call often while a step runs: it raises StepCancelled once the step should be cancelled."""

    schedule: Schedule
    new_aborts: Callable[[], Iterable[int]]
    """A function that returns the uids aborted since its last call."""
    next_deadline: float | None
    """The time (CLOCK_MONOTONIC seconds) before which no deadline ends, or None if there is no deadline."""
    _: KW_ONLY
    must_complete: bool
    """Whether the step goes on as long as any request wants it: the step before was cancelled although one did."""
    is_asking: bool = True
    """Whether to look for aborts and deadlines at all; if not, the step runs to its end."""
    clock: Callable[[], float] = time.monotonic
    aborted: set[int] = field(init=False, default_factory=set)
    """Uids that were aborted during the step, whether they are part of it or not."""
    _ask_again: float = field(init=False)

    def __post_init__(self) -> None:
        self._ask_again = self.clock() + ASK_INTERVAL if self.is_asking else math.inf

    def __call__(self) -> None:
        if self.clock() < self._ask_again:
            return
        self.aborted.update(self.new_aborts())
        now = self.clock()  # after the asking: a step of few rows, in one call, asks only once
        self._ask_again = now + ASK_INTERVAL
        if not self.aborted and (self.next_deadline is None or now < self.next_deadline):
            return
        num_wanted = self._num_wanted_tokens(now)
        if not num_wanted or (not self.must_complete and 2 * num_wanted < self.schedule.num_tokens):
            raise StepCancelled

    def _num_wanted_tokens(self, now: float) -> int:
        """Return how many of the step's tokens belong to requests that are neither aborted nor past their deadline."""
        wanted = {
            seq.uid
            for seq in self.schedule.sequences
            if seq.uid not in self.aborted and (seq.request.deadline is None or now < seq.request.deadline)
        }
        num_read = sum(len(seq.encoder_token_ids) for seq in self.schedule.encodes if seq.uid in wanted)
        return num_read + sum(chunk.num_tokens for chunk in self.schedule.chunks if chunk.sequence.uid in wanted)
