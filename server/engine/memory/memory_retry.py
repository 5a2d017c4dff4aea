"""Who is tried again when memory is short: nobody is told so because of what others held at that moment.

A request either gathers (a look, or text with its prompt's attention: bytes that grow until its answer goes out at
once) or holds nothing to speak of. What gathers has told its client nothing yet, so it can give back all it holds and
begin anew.

- Who gathers and finds no memory is set aside, and begins anew when nobody else gathers. Without memory then, it ends.
- Who holds nothing and finds no memory is tried again in the next step; all who gather are set aside for it. Without
  memory then, it ends, and they begin anew as if nothing had been.
- Who was set aside twice ends: its second try was beside those alone who hold nothing.
- While somebody is set aside, or has its second try, whoever comes and gathers waits behind it, or its turn might never
  come.

So nobody is tried more than twice for its own sake. Knows requests by name and order; no bytes, no tensor. Standard
library only.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from server.engine.request import EngineRequest

_MOST_BLAMES = 2


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What becomes of those who found no memory in a step, and of those who hold it. Who is in neither goes on."""

    ending: frozenset[int]
    requeued: frozenset[int]
    """They are to be set aside."""


class MemoryRetry:
    """A line of requests that begin when there is room. Ask it what to do; it does nothing to the requests itself."""

    def __init__(self) -> None:
        self._line: deque[EngineRequest] = deque()
        self._blames: Counter[int] = Counter()
        """How often each, in the line or begun again, was set aside for want of memory."""
        self._retrying: set[int] = set()
        """Of those who hold nothing: to be tried again in the next step in which they have work."""

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, uid: int) -> bool:
        return any(each.uid == uid for each in self._line)

    @property
    def uids(self) -> list[int]:
        """Those set aside, in the order in which they begin."""
        return [each.uid for each in self._line]

    @property
    def is_trying(self) -> bool:
        """Whether somebody who holds nothing is to be tried again: all that can be given back must be given back."""
        return bool(self._retrying)

    @property
    def is_memory_short(self) -> bool:
        """Whether whoever gathers has to wait behind others."""
        return bool(self._line or self._blames)

    def is_last_try(self, uid: int) -> bool:
        """Whether the request, which has begun, ends if it finds no memory."""
        return uid in self._blames

    def decide(self, short: Collection[int], holders: Collection[int], scheduled: Collection[int]) -> RetryDecision:
        """After a step over `scheduled`, in which `short` found no memory alone and `holders` gather still."""
        tried = self._retrying.intersection(scheduled)
        self._retrying -= tried
        ending = {uid for uid in short if (self.is_last_try(uid) if uid in holders else uid in tried)}
        if not ending.issubset(holders):  # those set aside for them were not to blame
            self._blames.clear()
        asking = set(short) - ending - set(holders)
        self._retrying |= asking
        requeued = set(holders) if asking else set(holders).intersection(short)
        return RetryDecision(frozenset(ending), frozenset(requeued - ending))

    def add(self, request: EngineRequest, *, is_to_blame: bool = True) -> None:
        """Set a request aside: one that found no memory or left for those who did, or, not to blame for anything, one
        that comes when memory is short.
        """
        self._line.append(request)
        if is_to_blame:
            self._blames[request.uid] += 1

    def next(self, is_anyone_gathering: Callable[[], bool]) -> EngineRequest | None:
        """Take the next one that may begin now; None when there is none, or it has to wait."""
        return self._line.popleft() if self.may_begin(is_anyone_gathering) else None

    def may_begin(self, is_anyone_gathering: Callable[[], bool]) -> bool:
        """Whether `next` has one."""
        return bool(self._line) and not self._retrying and not (self._blames and is_anyone_gathering())

    def has_had_its_tries(self, uid: int) -> bool:
        """Whether one that `next` gave is to end rather than begin."""
        return self._blames[uid] >= _MOST_BLAMES

    def remove(self, uid: int) -> EngineRequest | None:
        """Take out the request of that name, if it stands here."""
        for each in self._line:
            if each.uid == uid:
                self._line.remove(each)
                return each
        return None

    def expired(self, now: float) -> list[EngineRequest]:
        """Take out those whose deadline is at or before `now` (CLOCK_MONOTONIC seconds)."""
        late = [each for each in self._line if each.deadline is not None and each.deadline <= now]
        for each in late:
            self._line.remove(each)
        return late

    def forget(self, *uids: int) -> None:
        """These requests were told something, so they gather no more, or they have ended."""
        if not (self._blames or self._retrying):
            return
        for uid in uids:
            self._blames.pop(uid, None)
            if uid in self._retrying:
                # It never was tried without those set aside for it: nobody knows who was to blame.
                self._retrying.remove(uid)
                self._blames.clear()

    def check_integrity(self, begun: Collection[int]) -> None:
        """Raises AssertionError when others would wait, for ever, for one that is gone; `begun` are those in no line
        whose end was not told.
        """
        line = self.uids
        if twice := set(line).intersection(begun):
            raise AssertionError(f"requests {sorted(twice)} are set aside, and have begun")
        if gone := (self._blames.keys() | self._retrying) - set(line) - set(begun):
            raise AssertionError(f"requests {sorted(gone)} are gone, and others wait for them")
