"""Decides which member gets a request: the server's own policy (`server.dispatch.routing`, as it is), and those it is
compared with.

A router sees what a front door sees: which members take requests, and what each has left to do. It sees no worker's
internals.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.simulation.job import Job
from benchmarks.simulation.member import Member
from server.dispatch.routing import Candidate, RoutedPrompt, Router

FEW = 16
"""With at most this many members, each one's tokens are counted up to the last step, and all are weighed against
each other. With more they are known as of the member's last event, some steps ago, and only those that could win are
weighed.
"""


class RoutingPolicy(Protocol):
    def choose(self, members: Sequence[Member], job: Job, now: float) -> Member:
        """Choose one of `members`, of which there is at least one."""

    def begin(self, member: Member) -> None:
        """Take note that the member takes requests from now on; its cache is empty."""

    def end(self, member: Member) -> None:
        """Take note that the member's cache is gone."""

    def note(self, member: Member) -> None:
        """Take note that what the member has left to do may have changed."""


class _Plain:
    """A base of routers that keep no state."""

    def __init__(self, most_members: int, seed: int) -> None:
        self._draw = random.Random(seed)
        self._next = 0

    def begin(self, member: Member) -> None:
        pass

    def end(self, member: Member) -> None:
        pass

    def note(self, member: Member) -> None:
        pass


class RoundRobin(_Plain):
    """A router that takes each member in turn."""

    def choose(self, members: Sequence[Member], job: Job, now: float) -> Member:
        self._next += 1
        return members[self._next % len(members)]


class RandomChoice(_Plain):
    """A router that takes any member."""

    def choose(self, members: Sequence[Member], job: Job, now: float) -> Member:
        return self._draw.choice(members)


class PowerOfTwo(_Plain):
    """A router that takes the member with less to do of two at random (Mitzenmacher 2001)."""

    def choose(self, members: Sequence[Member], job: Job, now: float) -> Member:
        first, second = self._draw.choice(members), self._draw.choice(members)
        return min(first, second, key=lambda member: (member.tokens_left(now), member.num_jobs))


class FewestRequests(_Plain):
    """A router that takes the member with the fewest unfinished requests, as many proxies do."""

    def choose(self, members: Sequence[Member], job: Job, now: float) -> Member:
        return min(members, key=lambda member: member.num_jobs)


class Ours:
    """`server.dispatch.routing.Router`; `by_prefix` is what it does, without it no prefix is expected on any member."""

    def __init__(self, most_members: int, seed: int, *, by_prefix: bool = True) -> None:
        self._router = Router(most_members)
        self._by_prefix = by_prefix
        self._loads = [math.inf] * most_members  # tokens left of each slot, as of its last event
        self._members: dict[int, Member] = {}  # by slot
        self._given: defaultdict[int, set[int]] = defaultdict(set)
        """The slots of the members that were ever given a request of each group."""

    def begin(self, member: Member) -> None:
        limits = member.replica.limits
        num_blocks = limits.num_blocks if limits.prefix_caching and self._by_prefix else 0
        self._router.begin(member.slot, num_blocks=num_blocks, block_size=limits.block_size)
        self._members[member.slot] = member
        self._loads[member.slot] = member.tokens_noted

    def end(self, member: Member) -> None:
        self._router.end(member.slot)
        del self._members[member.slot]
        self._loads[member.slot] = math.inf
        for slots in self._given.values():
            slots.discard(member.slot)

    def note(self, member: Member) -> None:
        if member.slot in self._members:
            self._loads[member.slot] = member.tokens_noted

    def choose(self, members: Sequence[Member], job: Job, now: float) -> Member:
        prompt = KnownPrompt(job, takes=self._by_prefix)
        if len(members) <= FEW:
            candidates = [Candidate(each.slot, each.tokens_left(now), each.num_jobs) for each in members]
        else:
            candidates = [
                Candidate(slot, int(self._loads[slot]), self._members[slot].num_jobs) for slot in self._shortlist(job)
            ]
        route = self._router.route(candidates, prompt)
        chosen = self._members[route.worker_id]
        job.num_expected = route.num_prefix_tokens
        if self._by_prefix and job.num_prefix_blocks:
            self._given[job.group].add(chosen.slot)
        return chosen

    def _shortlist(self, job: Job) -> list[int]:
        """Return the slots of the members of which the router would choose one: those with the least to do, and of
        those that may hold the prefix each that has at most as much more to do as the prefix is long.
        """
        loads = self._loads
        least = min(loads)
        most = least + job.arrival.prefix_tokens
        given = self._given.get(job.group, ()) if self._by_prefix and job.num_prefix_blocks else ()
        slots = [slot for slot in given if loads[slot] <= most]
        place = -1
        for _ in range(loads.count(least)):
            place = loads.index(least, place + 1)
            if place not in given:
                slots.append(place)
        return slots


class KnownPrompt(RoutedPrompt):
    """A prompt whose blocks have names instead of tokens: those of its group's prefix, and others that are its own."""

    def __init__(self, job: Job, *, takes: bool) -> None:
        super().__init__(range(job.num_prompt), takes=takes, leaves=takes)
        self._job = job

    def block_hashes(self, block_size: int) -> list[int]:
        job = self._job
        shared = [(job.group << 24) + index for index in range(job.num_prefix_blocks)]
        return shared + [-(job.uid << 24) - index - 1 for index in range(len(shared), job.num_prompt // block_size)]


def _least_loaded(most_members: int, seed: int) -> Ours:
    return Ours(most_members, seed, by_prefix=False)


POLICIES: dict[str, Callable[[int, int], RoutingPolicy]] = {
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "fewest-requests": FewestRequests,
    "power-of-two": PowerOfTwo,
    "least-loaded": _least_loaded,
    "prefix": Ours,
}
"""Policies by name: each is made for a most number of members, and a seed."""
