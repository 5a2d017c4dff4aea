"""An engine client, a worker played in the same process over the real socket, and the clock of workers' states."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from lightwell.server.dispatch import worker_state
from lightwell.server.dispatch.engine_client import EngineClient
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock of the workers' states that the test advances."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(worker_state, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock
