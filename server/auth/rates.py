"""How fast something goes at present: an amount a second, over the last seconds in which there was something to do.
And what is told to those who wait for it.

Arithmetic of times and amounts; knows neither what is counted nor who asks.
"""

import math

_WINDOW = 10.0
"""Seconds over which the past is forgotten: it weighs exp(-age / window)."""
_MAX_RETRY_AFTER = 600
_FORESIGHT = 10
"""Times what was watched that a rate is trusted to hold."""


def retry_after(seconds: float) -> int:
    """An expected time as the header Retry-After says it: whole seconds, from 1 to ten minutes."""
    return max(1, min(_MAX_RETRY_AFTER, math.ceil(seconds)))


class RateEstimate:
    """Tell it with `advance` that time has passed, and whether there was anything to do; with `add` what was done.

    Time without anything to do does not count, however long: the rate after it is the one before it. Where `busy` is
    how many went on at once, and 1 is added for each that ends, it is the rate of one of them: 1 takes a mean stay.
    """

    def __init__(self) -> None:
        self._amount = 0.0
        self._seconds = 0.0
        self._at = -math.inf
        self.silence = 0.0
        """Seconds with something to do since the last of it was done."""
        self._watched = 0.0
        """Seconds with something to do, all of them."""

    def advance(self, now: float, *, busy: int) -> None:
        """It is `now`; since the last call there was something to do, or not, or so many things."""
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
        """So much was done, at the time of the last `advance`."""
        self._amount += amount
        self.silence = 0.0

    def seconds_for(self, amount: float) -> float:
        """How long `amount` takes: at the present rate, but no less than the present silence. 0 where nothing is known
        yet, and at most ten times what was watched: a first step, which finds cold caches, foretells no half minute.

        What was silent for a minute is expected to be so for one more: nobody who is told so comes in vain for a stall
        many times longer than it seemed.
        """
        if amount <= 0:
            return 0.0
        if self._amount <= 0 or self._seconds <= 0:
            return self.silence
        return max(min(amount * self._seconds / self._amount, _FORESIGHT * self._watched), self.silence)
