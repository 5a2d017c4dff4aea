"""A line of sequences in the order of their ranks: who goes first, and among whom.

Order only: knows nothing of blocks, budgets or what a sequence computes. Standard library only.
"""

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from server.engine.sequence import Rank, Sequence

_rank = attrgetter("rank")


class FairQueue:
    """Iterate over it in order of rank. No two sequences have the same one."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._by_uid: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def get(self, uid: int) -> Sequence | None:
        """The sequence of that name, if it stands here."""
        return self._by_uid.get(uid)

    def add(self, seq: Sequence) -> None:
        """Put `seq` in its place."""
        self._sequences.insert(bisect_left(self._sequences, seq.rank, key=_rank), seq)
        self._by_uid[seq.uid] = seq

    def discard(self, seq: Sequence) -> None:
        """Take `seq` out, if it stands here."""
        if self._by_uid.get(seq.uid) is seq:
            del self._by_uid[seq.uid]
            del self._sequences[bisect_left(self._sequences, seq.rank, key=_rank)]

    def pop_last(self) -> Sequence:
        """Take out the last. Raises IndexError where there is none."""
        seq = self._sequences.pop()
        del self._by_uid[seq.uid]
        return seq

    def last_turn(self, priority: int, client: str) -> int | None:
        """The turn of a client's last sequence of this priority; None where it has none."""
        for seq in reversed(self._sequences):
            if seq.rank.priority == priority and seq.request.client == client:
                return seq.rank.turn
        return None


class RoundRobin:
    """Ranks for arrivals: clients of equal priority take turns, one sequence each a round.

    A client's next sequence is one turn behind its last that waits; of a client that has none waiting it belongs to the
    round that is under way, behind those that came before. So it is overtaken by nobody who never ran, and waits for at
    most one sequence of every other client, however many they have queued. (Round robin, written as start tags: Goyal,
    Vin and Cheng 1996.)
    """

    def __init__(self) -> None:
        self._num_arrivals = 0
        self._round: dict[int, int] = {}
        """The latest turn that was admitted, of each priority."""

    def rank(self, priority: int, client: str, waiting: FairQueue) -> Rank:
        """For a sequence that now goes to the end of its client's queue."""
        last, turn = waiting.last_turn(priority, client), self._round.get(priority, 0)
        if last is not None:
            turn = max(turn, last + 1)
        self._num_arrivals += 1
        return Rank(priority, turn, self._num_arrivals)

    def note_admitted(self, rank: Rank) -> None:
        """It runs now: whoever comes belongs to its round, or to a later one."""
        self._round[rank.priority] = max(rank.turn, self._round.get(rank.priority, 0))

    def forget(self) -> None:
        """Nobody is left: the next one begins anew."""
        self._round.clear()
