"""Turns: of the event loop in long loops, and of clients where one is served at a time. Independent of routes."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

T = TypeVar("T")


async def in_turns(items: Iterable[T], every: int) -> AsyncIterator[T]:
    """Yield the items. Everything else that is ready to run does so after each `every` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            await asyncio.sleep(0)


class FairTurns:
    """Admits one at a time. The next one is the one that would end first if all clients were served at once, each at
    the same rate: small work passes large work, and no client gets more than its share while others wait.

    Source: A. Demers, S. Keshav, S. Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", 1989.
    """

    def __init__(self) -> None:
        self._now = 0.0
        """The latest end of work that is done, in units of cost."""
        self._ends: dict[str, float] = {}
        """The same of the last work of each client that waits or is served."""
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, client: str | None, cost: float) -> AsyncIterator[None]:
        """Wait for the turn, and have it until the block ends. Work without a client is a client of its own."""
        end = max(self._now, self._ends.get(client or "", 0.0)) + cost
        if client:
            self._ends = {name: known for name, known in self._ends.items() if known > self._now} | {client: end}
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (end, next(self._numbers), mine))
        self._admit()
        try:
            await mine
            yield
        finally:
            if not mine.cancelled():  # it was admitted
                self._now, self._is_taken = max(self._now, end), False
                self._admit()

    def _admit(self) -> None:
        while self._waiting and not self._is_taken:
            _, _, first = heapq.heappop(self._waiting)
            if not first.done():
                self._is_taken = True
                first.set_result(None)
