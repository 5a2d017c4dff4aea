"""Estimates of present rates: an amount per second over the last seconds of activity; and the value of Retry-After."""

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
    """A rate. Call `advance` when time has passed, with the number of active items, and `add` with each finished
    amount.

    Time without activity does not count. If `busy` is the number of running items and 1 is added for each that ends,
    it is the rate of one item: an amount of 1 takes a mean stay.
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
        """Set the time to `now`; `busy` is the number of active items since the last call, 0 for none."""
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
        """Count a finished amount at the time of the last `advance`."""
        self._amount += amount
        self.silence = 0.0

    def seconds_for(self, amount: float) -> float:
        """Return the expected seconds for `amount` at the present rate, but at least the present silence. It is 0 if
        nothing is known, and at most ten times the observed time: a first step with cold caches is slower than the next
        ones.

        A silence of a minute is expected to last another minute, so that clients do not return in vain during a long
        stall.
        """
        if amount <= 0:
            return 0.0
        if self._amount <= 0 or self._seconds <= 0:
            return self.silence
        return max(min(amount * self._seconds / self._amount, _FORESIGHT * self._watched), self.silence)
