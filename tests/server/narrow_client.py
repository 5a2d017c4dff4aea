"""An engine client with narrow limits, and a ready worker that the test plays for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server.config.settings import Settings
from server.dispatch.engine_client import EngineClient
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
