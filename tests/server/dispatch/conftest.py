"""An engine client, and a worker played in the same process over the real socket."""

from collections.abc import AsyncIterator

import pytest

from server.dispatch.engine_client import EngineClient
from tests.server.narrow_client import narrow_client, ready_worker
from tests.server.played_worker import PlayedWorker


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with narrow_client() as client:
        yield client


@pytest.fixture
async def worker(client: EngineClient) -> AsyncIterator[PlayedWorker]:
    async with ready_worker(client) as worker:
        yield worker
