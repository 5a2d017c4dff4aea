"""Who is tried again when memory is short: nobody is told so because of what others held at that moment.

A request either gathers (a look, or text with its prompt's attention: bytes that grow until its answer goes out at
once) or holds nothing to speak of. What gathers has told its client nothing yet, so it can give back all it holds and
begin anew.

- Who gathers and finds no memory is set aside, and begins anew when nobody else gathers. Without memory then, it ends.
- Who holds nothing and finds no memory is tried again in the next step; all who gather are set aside for it. Without
  memory then, it ends, and they begin anew as if nothing had been. If all is well without them they are to blame.
- Who is to blame twice ends: its second try was beside those alone who hold nothing.
- While somebody is set aside, or has its second try, whoever comes and gathers waits behind it, or its turn might never
  come.

So nobody is tried more than twice for its own sake. Knows requests by name and order; no bytes, no tensor. Standard
library only.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from server.engine.request import EngineRequest

_MOST_BLAMES = 2


@dataclass(slots=True)
class _Waiting:
    """A request that holds nothing now, and waits to begin."""

    request: EngineRequest
    is_to_blame: bool = False
    """For its being here: it found no memory itself, or somebody did until it was gone."""
    beside: set[int] = field(default_factory=set)
    """Uids of those for whom it was set aside and who have not been tried again yet."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of those who found no memory in a step, and of those who hold it."""

    ending: frozenset[int]
    leaving: frozenset[int]
    """They are to be set aside."""
    asking: frozenset[int]
    """They hold nothing and are tried again, once those who leave are gone."""


class SetAside:
    """A line of requests that begin when there is room. Ask it what to do; it does nothing to the requests itself."""

    def __init__(self) -> None:
        self._line: deque[_Waiting] = deque()
        self._blames: dict[int, int] = {}
        """How often each request that has begun again was to blame."""
        self._retrying: set[int] = set()
        """Of those who hold nothing: to be tried again in the next step in which they have work."""

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, uid: int) -> bool:
        return any(each.request.uid == uid for each in self._line)

    @property
    def uids(self) -> list[int]:
        """Those set aside, in the order in which they begin."""
        return [each.request.uid for each in self._line]

    @property
    def is_trying(self) -> bool:
        """Whether somebody who holds nothing is to be tried again: all that can be given back must be given back."""
        return bool(self._retrying)

    @property
    def is_memory_short(self) -> bool:
        """Whether whoever gathers has to wait behind others."""
        return bool(self._line) or any(self._blames.values())

    def is_last_try(self, uid: int) -> bool:
        """Whether the request, which has begun, ends if it finds no memory."""
        return self._blames.get(uid, 0) > 0

    def judge(self, short: Collection[int], holders: Collection[int], scheduled: Collection[int]) -> Judgement:
        """After a step over `scheduled`, in which `short` found no memory alone and `holders` gather still."""
        done = self._retrying & set(scheduled)
        for uid in done - set(short):
            self._blame(uid)
        self._retrying -= done
        ending = {uid for uid in short if (self.is_last_try(uid) if uid in holders else uid in done)}
        asking = set(short) - ending - set(holders)
        self._retrying |= asking
        leaving = set(holders) - ending if asking else (set(holders) & set(short)) - ending
        return Judgement(frozenset(ending), frozenset(leaving), frozenset(asking))

    def add(self, request: EngineRequest, *, is_to_blame: bool = False, beside: Collection[int] = ()) -> None:
        """Set a request aside: one that found no memory (it is to blame), one `beside` which these did, or one that
        comes when memory is short.
        """
        self._line.append(_Waiting(request, is_to_blame, set(beside)))

    def next(self, is_anyone_gathering: Callable[[], bool]) -> EngineRequest | None:
        """Take the next one that may begin now; None when there is none, or it has to wait."""
        if not self._line or self._retrying:
            return None
        first = self._line[0]
        uid = first.request.uid
        blames = self._blames.get(uid, 0) + first.is_to_blame
        if (blames or any(self._blames.values())) and is_anyone_gathering():
            return None
        self._blames[uid] = blames
        self._line.popleft()
        return first.request

    def has_had_its_tries(self, uid: int) -> bool:
        """Whether one that `next` gave is to end rather than begin."""
        return self._blames.get(uid, 0) >= _MOST_BLAMES

    def remove(self, uid: int) -> EngineRequest | None:
        """Take out the request of that name, if it stands here."""
        for each in self._line:
            if each.request.uid == uid:
                self._line.remove(each)
                return each.request
        return None

    def expired(self, now: float) -> list[EngineRequest]:
        """Take out those whose deadline is at or before `now` (CLOCK_MONOTONIC seconds)."""
        late = [each for each in self._line if each.request.deadline is not None and each.request.deadline <= now]
        for each in late:
            self._line.remove(each)
        return [each.request for each in late]

    def forget(self, uid: int) -> None:
        """The request was told something, so it gathers no more; or it has ended, and those set aside for it are not to
        blame.
        """
        self._blames.pop(uid, None)
        self._retrying.discard(uid)
        for each in self._line:
            each.beside.discard(uid)

    def _blame(self, uid: int) -> None:
        """`uid` found its memory once those set aside for it were gone."""
        for each in self._line:
            if uid in each.beside:
                each.beside.clear()
                each.is_to_blame = True
