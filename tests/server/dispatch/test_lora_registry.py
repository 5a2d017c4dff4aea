"""Adapters that are loaded at run time, with workers that the test plays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.http.errors import BadRequest, NotFound, Unavailable
from lightwell.server.ipc.messages import AdapterLoaded, DropAdapter, LoadAdapter
from tests.server.narrow_client import narrow_client, two_workers
from tests.server.played_worker import ONE, PlayedWorker, until

FOLDER = Path("/adapters/one")


@pytest.fixture
async def workers() -> AsyncIterator[list[PlayedWorker]]:
    async with two_workers(max_loras=2) as workers:
        yield workers


@pytest.fixture
def client(workers: list[PlayedWorker]) -> EngineClient:
    return workers[0].client


async def load(client: EngineClient, workers: list[PlayedWorker], name: str = "one") -> int:
    loading = asyncio.create_task(client.adapters.load(name, FOLDER))
    for worker in workers:
        worker.say(AdapterLoaded(await told_to_load(worker), None))
    await loading
    adapter = client.adapters.find(name)
    assert adapter is not None
    return adapter.number


async def told_to_load(worker: PlayedWorker) -> int:
    message = await worker.receive()
    assert isinstance(message, LoadAdapter)
    assert Path(message.folder) == FOLDER
    return message.number


async def test_a_worker_that_starts_again_loads_it_and_gets_no_requests_of_it_before(
    client: EngineClient, workers: list[PlayedWorker]
) -> None:
    number = await load(client, workers)
    context = RequestContext(adapter=client.adapters.find("one"))
    workers[0].link.close()
    await until(lambda: not client.workers[0].is_ready)
    again = PlayedWorker(client)
    await again.become_ready()
    for _ in range(3):
        await client.submit(ONE, context)
        message = await workers[1].receive()
        assert isinstance(message, EngineRequest)
        assert message.adapter == number
    assert await again.receive() == LoadAdapter(number, str(FOLDER))
    again.say(AdapterLoaded(number, None))
    await until(lambda: number in client.workers[0].adapters)
    await client.submit(ONE, context)
    assert isinstance(await again.receive(), EngineRequest)
    again.link.close()


async def test_what_one_worker_cannot_load_is_served_by_none(client: EngineClient, workers: list[PlayedWorker]) -> None:
    loading = asyncio.create_task(client.adapters.load("one", FOLDER))
    numbers = [await told_to_load(worker) for worker in workers]
    for worker, number, error in zip(workers, numbers, (None, "its rank is too high"), strict=True):
        worker.say(AdapterLoaded(number, error))
    with pytest.raises(BadRequest, match="its rank is too high"):
        await loading
    for worker in workers:
        assert await worker.receive() == DropAdapter(numbers[0])
    assert client.adapters.find("one") is None


async def test_a_worker_that_is_lost_meanwhile_does_not_hold_up_the_others(
    client: EngineClient, workers: list[PlayedWorker]
) -> None:
    loading = asyncio.create_task(client.adapters.load("one", FOLDER))
    workers[1].say(AdapterLoaded(await told_to_load(workers[1]), None))
    workers[0].link.close()
    await loading
    assert client.adapters.find("one") is not None


async def test_numbers_are_never_used_again_and_names_are(client: EngineClient, workers: list[PlayedWorker]) -> None:
    first = await load(client, workers)
    old = RequestContext(adapter=client.adapters.find("one"))
    client.adapters.unload("one")
    for worker in workers:
        assert await worker.receive() == DropAdapter(first)
    with pytest.raises(NotFound, match="was unloaded"):
        await client.submit(ONE, old)
    assert await load(client, workers) > first
    with pytest.raises(NotFound, match="was unloaded"):
        await client.submit(ONE, old)
    with pytest.raises(NotFound, match="is not loaded"):
        client.adapters.unload("another")


async def test_without_a_ready_worker_none_is_loaded() -> None:
    async with narrow_client() as client:
        with pytest.raises(Unavailable):
            await client.adapters.load("one", FOLDER)
