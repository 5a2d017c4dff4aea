"""Long loops yield to the event loop, and clients get turns in proportion to their shares."""

import asyncio

import pytest

from lightwell.server.http.turns import FairTurns, in_turns


async def test_others_run_after_so_many_items() -> None:
    items: list[int] = []
    seen: list[int] = []

    async def other() -> None:
        while True:
            seen.append(len(items))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    async for item in in_turns(range(10), 4):
        items.append(item)
    task.cancel()
    assert (items, seen) == ([*range(10)], [0, 4, 8])


async def served(*work: tuple[str | None, str, float]) -> list[str]:
    """Return the names of the work in the order in which it was done; all of it came while the first was."""
    turns, order = FairTurns(), list[str]()

    async def do(client: str | None, name: str, cost: float) -> None:
        async with turns.turn(client, cost):
            order.append(name)
            for _ in range(10):
                await asyncio.sleep(0)

    await asyncio.gather(*(do(*each) for each in work))
    return order


async def test_a_neighbours_small_body_waits_for_one_large_one() -> None:
    large = [("a", f"a{i}", 6e6) for i in range(8)]
    assert await served(*large, ("b", "b0", 4e4), ("b", "b1", 4e4)) == [
        "a0",
        "b0",
        "b1",
        *[f"a{i}" for i in range(1, 8)],
    ]


async def test_without_keys_small_bodies_pass_large_ones_that_are_not_passed_for_ever() -> None:
    large = [(None, f"a{i}", 6.0) for i in range(3)]
    assert await served(*large, (None, "b", 1.0)) == ["a0", "b", "a1", "a2"]


async def test_equal_clients_take_turns() -> None:
    work = [(client, f"{client}{i}", 1.0) for client in "ab" for i in range(3)]
    assert await served(*work) == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_who_leaves_while_waiting_or_served_holds_up_nobody() -> None:
    turns, served = FairTurns(), list[str]()

    async def hold(name: str) -> None:
        async with turns.turn(name, 1):
            served.append(name)
            await asyncio.Event().wait()

    first, second, third, last = (asyncio.create_task(hold(name)) for name in "abcd")
    for task, expected in ((second, "a"), (first, "ac"), (third, "acd"), (last, "acd")):
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "".join(served) == expected
    async with turns.turn("e", 1):
        pass
