"""Gives a step up, between two pieces of its work, when those who hold most of it want it no more.

A step that reads prompts may take most of a second. A client that leaves meanwhile, or whose time is over, would keep
its place and its blocks until the end, and the others would wait for numbers that nobody reads. So the network asks as
it runs, and a step of which too little is still wanted is left: nothing of it is committed. Those who left end at once;
who stays is scheduled again and, where answers do not depend on the batch, gets the same bits: keys and values are
written again where they stood, and what was captured is taken back.

Nobody starves. A step that somebody still wants is given up only if the others hold more than half of its tokens, and
never right after another such step was: who stays loses at most every second step, whoever comes and leaves beside.
A step that nobody wants is always given up: it cannot cost anybody anything.

On CUDA nothing is asked: there the network runs ahead of the device, so an answer would come late, and steps are short.
Standard library only.
"""

import math
import time
from collections.abc import Callable, Iterable

from server.engine.scheduling.schedule import Schedule

ASK_INTERVAL = 0.001
"""Seconds between two looks at who has left. One costs a microsecond where nobody has."""


class StepCancelled(Exception):
    """Too little of the step is still wanted. No failure: it must not be logged as one."""


class CancellationCheck:
    """Call it often while a step runs: it raises StepCancelled once the step should be given up."""

    def __init__(
        self,
        schedule: Schedule,
        new_aborts: Callable[[], Iterable[int]],
        next_deadline: float | None,
        *,
        must_complete: bool,
        is_asking: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """new_aborts: uids that were aborted since it was last called. next_deadline: no sequence's is earlier,
        CLOCK_MONOTONIC seconds. must_complete: the step before was given up though somebody wanted it. is_asking: if
        not, the step runs to its end in any case.
        """
        self.aborted: set[int] = set()
        """Uids that were aborted during the step, in it or not."""
        self._schedule = schedule
        self._new_aborts = new_aborts
        self._next_deadline = next_deadline
        self._must_complete = must_complete
        self._clock = clock
        self._ask_again = clock() + ASK_INTERVAL if is_asking else math.inf

    def __call__(self) -> None:
        if self._clock() < self._ask_again:
            return
        self.aborted.update(self._new_aborts())
        now = self._clock()  # after the asking: a step of few rows, in one call, asks only once
        self._ask_again = now + ASK_INTERVAL
        if not self.aborted and (self._next_deadline is None or now < self._next_deadline):
            return
        num_wanted = self._num_wanted_tokens(now)
        if not num_wanted or (not self._must_complete and 2 * num_wanted < self._schedule.num_tokens):
            raise StepCancelled

    def _num_wanted_tokens(self, now: float) -> int:
        """Of the step, by those who have neither left nor run out of time."""
        wanted = {
            seq.uid
            for seq in self._schedule.sequences
            if seq.uid not in self.aborted and (seq.request.deadline is None or now < seq.request.deadline)
        }
        num_read = sum(len(seq.encoder_token_ids) for seq in self._schedule.encodes if seq.uid in wanted)
        return num_read + sum(chunk.num_tokens for chunk in self._schedule.chunks if chunk.sequence.uid in wanted)
