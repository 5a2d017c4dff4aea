"""Fair queue: sequences in the order of their ranks, and the ranks of arrivals."""

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from lightwell.server.engine.sequence import Rank, Sequence

_rank = attrgetter("rank")


class FairQueue:
    """A queue that iterates in order of rank. No two sequences have the same rank."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._by_uid: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def get(self, uid: int) -> Sequence | None:
        """Return the sequence with this uid, or None."""
        return self._by_uid.get(uid)

    def add(self, seq: Sequence) -> None:
        """Insert `seq` at its rank."""
        self._sequences.insert(bisect_left(self._sequences, seq.rank, key=_rank), seq)
        self._by_uid[seq.uid] = seq

    def discard(self, seq: Sequence) -> None:
        """Remove `seq` if it is queued."""
        if self._by_uid.get(seq.uid) is seq:
            del self._by_uid[seq.uid]
            del self._sequences[bisect_left(self._sequences, seq.rank, key=_rank)]

    def pop_last(self) -> Sequence:
        """Remove and return the last sequence. Raises IndexError if there is none."""
        seq = self._sequences.pop()
        del self._by_uid[seq.uid]
        return seq

    def last_turn(self, priority: int, client: str) -> int | None:
        """Return the round of a client's last sequence of this priority, or None."""
        for seq in reversed(self._sequences):
            if seq.rank.priority == priority and seq.request.client == client:
                return seq.rank.turn
        return None


class RoundRobin:
    """Ranks for arrivals: clients of equal priority are served round robin, one sequence each per round.

    A client's next sequence is one round after its last waiting one; without one, it joins the current round, after
    earlier arrivals. So no sequence that never ran overtakes it later, and it waits for at most one sequence of every
    other client. (Round robin with start tags: Goyal, Vin and Cheng 1996.)
    """

    def __init__(self) -> None:
        self._num_arrivals = 0
        self._round: dict[int, int] = {}
        """The latest admitted round of each priority."""

    def rank(self, priority: int, client: str, waiting: FairQueue) -> Rank:
        """Return the rank of an arrival, at the end of its client's queue."""
        last, turn = waiting.last_turn(priority, client), self._round.get(priority, 0)
        if last is not None:
            turn = max(turn, last + 1)
        self._num_arrivals += 1
        return Rank(priority, turn, self._num_arrivals)

    def note_admitted(self, rank: Rank) -> None:
        """Record the round of an admitted sequence: arrivals join this round or a later one."""
        self._round[rank.priority] = max(rank.turn, self._round.get(rank.priority, 0))

    def forget(self) -> None:
        """Start again from the first round, when no sequence is left."""
        self._round.clear()
