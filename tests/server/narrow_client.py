"""Engine clients, and ready workers that the test plays for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.engine_client import EngineClient
from tests.server.played_worker import PlayedWorker


@asynccontextmanager
async def narrow_client() -> AsyncIterator[EngineClient]:
    settings = Settings(max_num_seqs=1, max_num_queued_requests=2, max_num_queued_tokens=100, max_capture_bytes=1000)
    client = EngineClient(settings)
    await client.start()
    yield client
    await client.stop()
    client.socket.remove()


@asynccontextmanager
async def ready_worker(client: EngineClient) -> AsyncIterator[PlayedWorker]:
    worker = PlayedWorker(client)
    await worker.become_ready()
    yield worker
    worker.link.close()


@asynccontextmanager
async def two_workers(**settings: Any) -> AsyncIterator[list[PlayedWorker]]:
    """Run a client of two workers, both ready."""
    client = EngineClient(Settings(**settings), num_workers=2)
    await client.start()
    workers = [PlayedWorker(client, i) for i in range(2)]
    for worker in workers:
        await worker.become_ready()
    yield workers
    for worker in workers:
        worker.link.close()
    await client.stop()
    client.socket.remove()
