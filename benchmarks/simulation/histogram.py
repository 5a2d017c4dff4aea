"""Counts how often which length of time occurred, in classes 1 % wide: millions of gaps in a few hundred numbers."""

import math
from collections import Counter
from collections.abc import Iterable

_WIDTH = math.log(1.01)


class Histogram:
    """A histogram of times above 0."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float, count: int) -> None:
        self._counts[round(math.log(max(seconds, 1e-9)) / _WIDTH)] += count

    @property
    def count(self) -> int:
        return self._counts.total()

    def quantile(self, fraction: float) -> float:
        """Return the seconds that `fraction` of them do not exceed, within half a percent; nan where there are none."""
        left = fraction * self.count
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return math.exp(place * _WIDTH)
        return math.nan

    @classmethod
    def sum(cls, others: Iterable["Histogram"]) -> "Histogram":
        total = cls()
        for other in others:
            total._counts.update(other._counts)
        return total
