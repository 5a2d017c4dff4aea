"""Estimates how fast something goes at present: an amount a second, over the last seconds in which there was something
to do. It also says what a client that waits is told.

It computes with times and amounts; it knows neither what is counted nor who asks.
"""

import math

_WINDOW = 10.0
"""Seconds over which the past is forgotten: it weighs exp(-age / window)."""
_MAX_RETRY_AFTER = 600
_FORESIGHT = 10
"""For how many times the seconds observed a rate is trusted to hold."""


def retry_after(seconds: float) -> int:
    """Return an expected time as the header Retry-After gives it: whole seconds, from 1 to ten minutes."""
    return max(1, min(_MAX_RETRY_AFTER, math.ceil(seconds)))


class RateEstimate:
    """A rate. Call `advance` when time has passed, with whether there was anything to do, and `add` with what was done.

    Time without anything to do does not count, however long: the rate after it is the one before it. If `busy` is how
    many ran at once, and 1 is added for each that ends, it is the rate of one of them: 1 takes a mean stay.
    """

    def __init__(self) -> None:
        self._amount = 0.0
        self._seconds = 0.0
        self._at = -math.inf
        self.silence = 0.0
        """Seconds with something to do since the last of it was done."""
        self._watched = 0.0
        """Seconds with something to do, in total."""

    def advance(self, now: float, *, busy: int) -> None:
        """Set the time to `now`; `busy` is how many things there were to do since the last call, 0 for none."""
        elapsed = now - self._at if busy and self._at > -math.inf else 0.0
        self._at = max(now, self._at)
        if elapsed <= 0:
            return
        kept = math.exp(-elapsed / _WINDOW)
        self._amount *= kept
        self._seconds = self._seconds * kept + busy * _WINDOW * (1 - kept)
        self.silence += elapsed
        self._watched += elapsed

    def add(self, amount: float) -> None:
        """Count that so much was done, at the time of the last `advance`."""
        self._amount += amount
        self.silence = 0.0

    def seconds_for(self, amount: float) -> float:
        """Return how many seconds `amount` takes: at the present rate, but no less than the present silence. It is 0
        where nothing is known yet, and at most ten times what was observed: a first step, which finds cold caches, is
        no reason to expect half a minute.

        What was silent for a minute is expected to be so for one more, so that a client does not come back in vain to a
        stall many times longer than it seemed.
        """
        if amount <= 0:
            return 0.0
        if self._amount <= 0 or self._seconds <= 0:
            return self.silence
        return max(min(amount * self._seconds / self._amount, _FORESIGHT * self._watched), self.silence)
