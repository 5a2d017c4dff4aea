"""Deadlines of sequences, in order. It reads no clock."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from lightwell.server.engine.sequence import Sequence


class Deadlines:
    """The deadlines of sequences, the earliest first.

    The entry of a finished sequence remains; later, its uid may belong to a sequence with another deadline.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        """Pairs (CLOCK_MONOTONIC seconds, uid)."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> float | None:
        """Return the earliest deadline, or None."""
        return self._heap[0][0] if self._heap else None

    def add(self, seq: Sequence) -> None:
        """Add the deadline of `seq`, if it has one."""
        if seq.request.deadline is not None:
            heappush(self._heap, (seq.request.deadline, seq.uid))

    def keep(self, sequences: Iterable[Sequence]) -> None:
        """Keep only the deadlines of these sequences."""
        live = ((seq.request.deadline, seq.uid) for seq in sequences)
        self._heap = [(deadline, uid) for deadline, uid in live if deadline is not None]
        heapify(self._heap)

    def take_expired(self, now: float) -> list[tuple[float, int]]:
        """Remove and return the entries at or before `now`, the earliest first."""
        expired = []
        while self._heap and self._heap[0][0] <= now:
            expired.append(heappop(self._heap))
        return expired
