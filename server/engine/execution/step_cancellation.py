"""Step cancellation: ends a step early when most of its work belongs to requests that were aborted meanwhile.

A step with prompts may take most of a second. Without cancellation, a client that disconnects or reaches its deadline
would keep its slot and blocks until the end, and the others would wait for unused numbers. So the network calls a check
as it runs, and a step with too little useful work is cancelled: nothing of it is committed. The aborted requests end at
once. The others are scheduled again and, unless answers depend on the batch, get the same bits: keys and values are
written again to the same places, and captures are undone.

No request starves. A step with an active request is cancelled only if the aborted ones have more than half of its
tokens, and never directly after another such step: a request loses at most every second step. A step without active
requests is always cancelled.

A step of only batch rows is cancelled when another request arrives.

On CUDA there is no check: the host runs ahead of the device, so the check would come late, and steps are short.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field

from lightwell.server.engine.scheduling.schedule import Schedule

ASK_INTERVAL = 0.001
"""Seconds between two checks for aborted requests. A check takes a microsecond if there are none."""


class StepCancelled(Exception):
    """Raised when too little of the step is still useful. It is not a failure and must not be logged as one."""


@dataclass(slots=True, eq=False)
class CancellationCheck:
    """A check to call often while a step runs: it raises StepCancelled to cancel the step."""

    schedule: Schedule
    new_aborts: Callable[[], Iterable[int]]
    """A function that returns the uids aborted since its last call."""
    next_deadline: float | None
    """The time (CLOCK_MONOTONIC seconds) before which no deadline ends, or None if there is no deadline."""
    _: KW_ONLY
    must_complete: bool
    """Whether the step continues while any of its requests is active: the step before was cancelled despite one."""
    has_request: Callable[[], bool] = lambda: False
    """Returns whether `new_aborts` has found a request that batch rows must make room for."""
    is_asking: bool = True
    """Whether to check for aborts and deadlines; if not, the step runs to its end."""
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
        if self.schedule.is_background and self.has_request():
            raise StepCancelled
        now = self.clock()  # after the check: a step of few rows, in one call, checks only once
        self._ask_again = now + ASK_INTERVAL
        if not self.aborted and (self.next_deadline is None or now < self.next_deadline):
            return
        num_wanted = self._num_wanted_tokens(now)
        if not num_wanted or (not self.must_complete and 2 * num_wanted < self.schedule.num_tokens):
            raise StepCancelled

    def _num_wanted_tokens(self, now: float) -> int:
        """Return the number of the step's tokens that belong to active requests."""
        wanted = {
            seq.uid
            for seq in self.schedule.sequences
            if seq.uid not in self.aborted and (seq.request.deadline is None or now < seq.request.deadline)
        }
        num_read = sum(len(seq.encoder_token_ids) for seq in self.schedule.encodes if seq.uid in wanted)
        return num_read + sum(chunk.num_tokens for chunk in self.schedule.chunks if chunk.sequence.uid in wanted)
