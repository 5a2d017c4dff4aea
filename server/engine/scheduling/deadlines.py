"""Keeps the deadlines of sequences. It knows times and uids, reads no clock, and needs the standard library only."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from server.engine.sequence import Sequence


class Deadlines:
    """The deadlines of sequences, the earliest first.

    A finished sequence leaves its entry behind, and its uid may since name another with another deadline.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """CLOCK_MONOTONIC seconds, and the uid."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> float | None:
        """Return the earliest deadline (CLOCK_MONOTONIC seconds), or None if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, seq: Sequence) -> None:
        """Note the deadline of `seq`, if it has one."""
        if seq.request.deadline is not None:
            heappush(self._heap, (seq.request.deadline, seq.uid))

    def keep(self, sequences: Iterable[Sequence]) -> None:
        """Keep the deadlines of these, and of no others."""
        live = ((seq.request.deadline, seq.uid) for seq in sequences)
        self._heap = [(deadline, uid) for deadline, uid in live if deadline is not None]
        heapify(self._heap)

    def take_expired(self, now: float) -> list[tuple[float, int]]:
        """Take out the entries at or before `now` (CLOCK_MONOTONIC seconds), the earliest first."""
        expired = []
        while self._heap and self._heap[0][0] <= now:
            expired.append(heappop(self._heap))
        return expired
