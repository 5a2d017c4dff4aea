"""Decides which requests are tried again when memory is short, so that none fails because of what others held at that
moment.

A request either gathers (a capture, or text with its prompt's attention: bytes that grow until its answer goes out at
once) or holds next to nothing. For a request that gathers no output was sent yet, so it can give back all it holds and
begin again.

- A request that gathers and finds no memory is requeued, and begins again when no other request gathers. If there is no
  memory then, it ends.
- A request that holds nothing and finds no memory is tried again in the next step; all that gather are requeued for it.
  If there is no memory then, it ends, and they begin again as if nothing had happened.
- A request that was requeued twice ends: its second try was next to requests that hold nothing.
- While a request is requeued, or has its second try, a new one that gathers waits behind it; otherwise its turn might
  never come.

So no request is tried more than twice for its own sake.

The engine reports what happened and follows the decision: it withdraws, begins and ends requests. This module knows
requests by uid and order; it knows no bytes and no tensor. It needs the standard library only.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from server.engine.memory.memory_limit import give_back_memory, reserve
from server.engine.outputs import Failure, FinishReason
from server.engine.request import EngineRequest

_MOST_BLAMES = 2


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What happens to the requests that found no memory in a step, and to those that hold it. A request in neither
    set continues.
    """

    ending: frozenset[int]
    requeued: frozenset[int]
    """They are to be withdrawn and added to those that wait."""
    is_hopeless: bool = False
    """Whether a request ends for which no other could have made room: the next ones fare no better, unless the
    network still runs.
    """


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome for a request that has waited: it begins, or ends for a reason."""

    request: EngineRequest
    ends: FinishReason | None = None
    error: str | None = None


class MemoryRetry:
    """The requests that wait until there is room, and what becomes of each that finds no memory.

    It changes no request but by what it answers: see `Turn`, `RetryDecision` and the methods that return a bool.
    """

    def __init__(self) -> None:
        self._let_answers_go: Callable[[], object] = lambda: None
        self._line: deque[EngineRequest] = deque()
        self._blames: Counter[int] = Counter()
        """How often each request, queued or begun again, was requeued for lack of memory."""
        self._retrying: set[int] = set()
        """Uids of requests that hold nothing and are to be tried again in the next step in which they have work."""

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, uid: int) -> bool:
        return any(each.uid == uid for each in self._line)

    @property
    def uids(self) -> list[int]:
        """Return the uids of the requeued requests, in the order in which they begin."""
        return [each.uid for each in self._line]

    @property
    def is_trying(self) -> bool:
        """Return whether a request that holds nothing is to be tried again: everything that can be given back must
        be given back.
        """
        return bool(self._retrying)

    @property
    def is_memory_short(self) -> bool:
        """Return whether a request that gathers has to wait behind others."""
        return bool(self._line or self._blames)

    def is_last_try(self, uid: int) -> bool:
        """Return whether the request, which has begun, ends if it finds no memory."""
        return uid in self._blames

    def call_when_short(self, let_answers_go: Callable[[], object]) -> None:
        """Call `let_answers_go` when memory is short: it returns when nothing holds the answers of earlier steps any
        more, or when that takes too long.
        """
        self._let_answers_go = let_answers_go

    def free_memory(self) -> None:
        """Give back to the system all that can be: answers that were sent, and what steps have freed."""
        self._let_answers_go()
        give_back_memory()

    def reserve(self) -> AbstractContextManager[None]:
        """Return the context for a step: if a request is tried again in it, the step may use the memory kept for
        that.
        """
        return reserve() if self.is_trying else nullcontext()

    def run_with_reserve(self, check: Callable[[], None]) -> None:
        """Run `check`, which raises when the network can do nothing any more, with all the memory that there is."""
        self.free_memory()
        with reserve():
            check()

    def wait_behind(self, request: EngineRequest) -> bool:
        """Queue a new request that gathers if others wait. Returns whether it waits here; it must then hold nothing."""
        if not self.is_memory_short:
            return False
        self.add(request, is_to_blame=False)
        return True

    def wait_again(self, request: EngineRequest) -> bool:
        """Requeue a request that found no memory to begin, and holds nothing. Returns whether it waits here; if not,
        it ends.
        """
        self.free_memory()
        if self.is_last_try(request.uid):
            return False
        self.add(request)
        return True

    def should_withdraw(self, uid: int, failure: Failure, *, is_gathering: bool) -> bool:
        """Return whether a begun request, whose answer could not be put together, is to be withdrawn and requeued;
        if not, it ends.
        """
        return failure.reason == "memory" and is_gathering and not self.is_last_try(uid)

    def decide(
        self,
        short: Collection[int],
        holders: Collection[int],
        scheduled: Collection[int],
        *,
        others_gather: bool = False,
    ) -> RetryDecision:
        """Decide after a step over `scheduled`, in which `short` found no memory alone and `holders` still gather.
        `others_gather` says whether requests outside the steps gather too.
        """
        tried = self._retrying.intersection(scheduled)
        self._retrying -= tried
        ending = {uid for uid in short if (self.is_last_try(uid) if uid in holders else uid in tried)}
        if not ending.issubset(holders):  # those set aside for them were not to blame
            self._blames.clear()
        asking = set(short) - ending - set(holders)
        self._retrying |= asking
        requeued = (set(holders) if asking else set(holders).intersection(short)) - ending
        is_hopeless = bool(ending) and requeued.issuperset(holders) and not others_gather
        return RetryDecision(frozenset(ending), frozenset(requeued), is_hopeless)

    def add(self, request: EngineRequest, *, is_to_blame: bool = True) -> None:
        """Queue a request: one that found no memory or made room for others that did, or, if not `is_to_blame`, one
        that arrives while memory is short.
        """
        self._line.append(request)
        if is_to_blame:
            self._blames[request.uid] += 1

    def turns(self, now: float, is_anyone_gathering: Callable[[], bool]) -> Iterator[Turn]:
        """Remove and yield, before a step, the requests that begin now and those that end instead. Each is to be
        done before the next one is asked for. now: CLOCK_MONOTONIC seconds.
        """
        if self.is_trying:
            self.free_memory()
        for late in self.expired(now):
            yield Turn(late, "deadline")
        while (first := self.next(is_anyone_gathering)) is not None:
            self.free_memory()
            if self.has_had_its_tries(first.uid):
                yield Turn(first, "memory", "no memory for it while other requests write")
            else:
                yield Turn(first)

    def next(self, is_anyone_gathering: Callable[[], bool]) -> EngineRequest | None:
        """Return the next request that may begin now and remove it from the queue; None if there is none, or it has
        to wait.
        """
        return self._line.popleft() if self.may_begin(is_anyone_gathering) else None

    def may_begin(self, is_anyone_gathering: Callable[[], bool]) -> bool:
        """Return whether `next` would return a request."""
        return bool(self._line) and not self._retrying and not (self._blames and is_anyone_gathering())

    def has_had_its_tries(self, uid: int) -> bool:
        """Return whether a request that `next` returned is to end rather than begin."""
        return self._blames[uid] >= _MOST_BLAMES

    def remove(self, uid: int) -> EngineRequest | None:
        """Remove and return the request with this uid, or return None if it is not queued."""
        found = next((each for each in self._line if each.uid == uid), None)
        if found is not None:
            self._line.remove(found)
        return found

    def expired(self, now: float) -> list[EngineRequest]:
        """Remove and return the requests whose deadline is at or before `now` (CLOCK_MONOTONIC seconds)."""
        late = [each for each in self._line if each.deadline is not None and each.deadline <= now]
        for each in late:
            self._line.remove(each)
        return late

    def forget(self, *uids: int) -> None:
        """Forget these requests: something was sent for them, so they gather no more, or they have ended."""
        if not (self._blames or self._retrying):
            return
        for uid in uids:
            self._blames.pop(uid, None)
            if uid in self._retrying:
                # It was never tried without the requests that were requeued for it, so the cause is unknown.
                self._retrying.remove(uid)
                self._blames.clear()

    def check_integrity(self, begun: Collection[int]) -> None:
        """Raise AssertionError if others would wait forever for a request that is gone; `begun` are the unfinished
        requests that are in no queue.
        """
        line = self.uids
        if twice := set(line).intersection(begun):
            raise AssertionError(f"requests {sorted(twice)} wait to be retried, and have begun")
        if gone := (self._blames.keys() | self._retrying) - set(line) - set(begun):
            raise AssertionError(f"requests {sorted(gone)} are gone, and others wait for them")
