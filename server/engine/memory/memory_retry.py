"""Memory retry: decides which requests are tried again when memory is short, so that none fails because of the memory
of others.

A request either gathers (a capture, or text with its prompt's attention: bytes that grow until the answer is sent at
once) or holds almost nothing. A request that gathers has no outputs yet, so it can free all its memory and begin again.

- A request that gathers and finds no memory is requeued, and begins again when no other request gathers. If there is
  still no memory, it ends.
- A request that holds nothing and finds no memory is tried again in the next step, for which all that gather are
  requeued. If there is still no memory, it ends, and they begin again.
- A request that was requeued twice ends: its second try was next to requests that hold nothing.
- While a request is requeued, or has its second try, a new one that gathers waits behind it; otherwise its turn might
  never come.

So no request is tried more than twice because of its own lack of memory. The engine reports the events and follows the
decisions: it withdraws, begins and ends requests.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from lightwell.server.engine.memory.process_memory import give_back_memory, reserve
from lightwell.server.engine.messages.outputs import Failure, RequestOutput
from lightwell.server.engine.messages.request import EngineRequest

_MOST_BLAMES = 2


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The outcome for the requests without memory in a step, and those that hold it; all others continue."""

    ending: frozenset[int]
    requeued: frozenset[int]
    """Requests to withdraw and to add to the queue."""
    is_hopeless: bool = False
    """Whether a request ends although no other holds memory: then the network itself may be unable to run."""


class MemoryRetry:
    """The queue of requests that wait for memory, and the decisions about requests without memory."""

    def __init__(self) -> None:
        self._let_answers_go: Callable[[], object] = lambda: None
        self._line: deque[EngineRequest] = deque()
        self._blames: Counter[int] = Counter()
        """Number of times that each request, queued or begun again, was requeued for lack of memory."""
        self._retrying: set[int] = set()
        """Uids of requests that hold nothing and are tried again in their next step."""

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
        """Return whether a request that holds nothing is tried again in a coming step."""
        return bool(self._retrying)

    @property
    def is_memory_short(self) -> bool:
        """Return whether a new request that gathers must wait."""
        return bool(self._line or self._blames)

    def is_last_try(self, uid: int) -> bool:
        """Return whether the request, which has begun, ends if it finds no memory."""
        return uid in self._blames

    def call_when_short(self, let_answers_go: Callable[[], object]) -> None:
        """Call `let_answers_go` when memory is short: it returns when the answers of earlier steps are sent and freed,
        or when that takes too long.
        """
        self._let_answers_go = let_answers_go

    def free_memory(self) -> None:
        """Free sent answers, and return the memory that steps have freed to the system."""
        self._let_answers_go()
        give_back_memory()

    def reserve(self) -> AbstractContextManager[None]:
        """Return the context for a step, which may use the reserve if it tries a request again."""
        return reserve() if self.is_trying else nullcontext()

    def run_with_reserve(self, check: Callable[[], None]) -> None:
        """Run `check`, which raises when the network can no longer run, with all available memory."""
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
        """Requeue a request that found no memory to begin, and holds nothing. Returns whether it waits here."""
        self.free_memory()
        if self.is_last_try(request.uid):
            return False
        self.add(request)
        return True

    def should_withdraw(self, uid: int, failure: Failure, *, is_gathering: bool) -> bool:
        """Return whether a begun request with a failed answer is withdrawn and requeued; if not, it ends."""
        return failure.reason == "memory" and is_gathering and not self.is_last_try(uid)

    def decide(
        self,
        short: Collection[int],
        holders: Collection[int],
        scheduled: Collection[int],
        *,
        others_gather: bool = False,
    ) -> RetryDecision:
        """Decide after a step over `scheduled`, in which `short` found no memory on their own and `holders` still
        gather. others_gather: whether requests outside the steps gather too.
        """
        tried = self._retrying.intersection(scheduled)
        self._retrying -= tried
        ending = {uid for uid in short if (self.is_last_try(uid) if uid in holders else uid in tried)}
        if not ending.issubset(holders):  # the requests requeued for them were not the cause
            self._blames.clear()
        asking = set(short) - ending - set(holders)
        self._retrying |= asking
        requeued = (set(holders) if asking else set(holders).intersection(short)) - ending
        is_hopeless = bool(ending) and requeued.issuperset(holders) and not others_gather
        return RetryDecision(frozenset(ending), frozenset(requeued), is_hopeless)

    def add(self, request: EngineRequest, *, is_to_blame: bool = True) -> None:
        """Queue a request: one that found no memory or was withdrawn for others, or, if not `is_to_blame`, one that
        arrives while memory is short.
        """
        self._line.append(request)
        if is_to_blame:
            self._blames[request.uid] += 1

    def turns(self, now: float, is_anyone_gathering: Callable[[], bool]) -> Iterator[EngineRequest | RequestOutput]:
        """Remove and yield, before a step, the requests that begin now, and the last outputs of requests that end.
        The caller handles each before the next one. now: CLOCK_MONOTONIC seconds.
        """
        if self.is_trying:
            self.free_memory()
        for late in self.expired(now):
            yield late.unbegun("deadline")
        while (first := self.next(is_anyone_gathering)) is not None:
            self.free_memory()
            if self.has_had_its_tries(first.uid):
                yield first.unbegun("memory", "no memory for it while other requests write")
            else:
                yield first

    def next(self, is_anyone_gathering: Callable[[], bool]) -> EngineRequest | None:
        """Remove and return the next request if it may begin now, or return None."""
        return self._line.popleft() if self.may_begin(is_anyone_gathering) else None

    def may_begin(self, is_anyone_gathering: Callable[[], bool]) -> bool:
        """Return whether `next` would return a request."""
        return bool(self._line) and not self._retrying and not (self._blames and is_anyone_gathering())

    def has_had_its_tries(self, uid: int) -> bool:
        """Return whether a request from `next` ends instead of beginning."""
        return self._blames[uid] >= _MOST_BLAMES

    def remove(self, uid: int) -> EngineRequest | None:
        """Remove and return the request with this uid, or return None."""
        found = next((each for each in self._line if each.uid == uid), None)
        if found is not None:
            self._line.remove(found)
        return found

    def expired(self, now: float) -> list[EngineRequest]:
        """Remove and return the requests with a deadline at or before `now` (CLOCK_MONOTONIC seconds)."""
        late = [each for each in self._line if each.deadline is not None and each.deadline <= now]
        for each in late:
            self._line.remove(each)
        return late

    def forget(self, *uids: int) -> None:
        """Forget requests that have outputs, and so no longer gather, or have ended."""
        if not (self._blames or self._retrying):
            return
        for uid in uids:
            self._blames.pop(uid, None)
            if uid in self._retrying:
                # It was never tried without the requests that were requeued for it: the cause is unknown.
                self._retrying.remove(uid)
                self._blames.clear()

    def check_integrity(self, begun: Collection[int]) -> None:
        """Raise AssertionError if requests would wait forever for one that has ended. begun: the unfinished requests
        outside the queue.
        """
        line = self.uids
        if twice := set(line).intersection(begun):
            raise AssertionError(f"requests {sorted(twice)} wait to be retried, and have begun")
        if gone := (self._blames.keys() | self._retrying) - set(line) - set(begun):
            raise AssertionError(f"requests {sorted(gone)} are gone, and others wait for them")
