"""The end of the HTTP server: the first signal lets running requests finish, the second does not.

While draining the port stays open: probes are answered, new requests get 503. Knows nothing of workers beyond the
number of requests in flight.
"""

import asyncio
import logging
import time
from types import FrameType

import uvicorn

from server.engine_client import EngineClient
from server.errors import Unavailable

logger = logging.getLogger(__name__)

_LAST_ANSWERS = 0.05
"""Seconds for the answers of requests that were just failed to be written."""
_FORCED_WRITES = 1
"""Seconds, at a forced end, for clients that do not read."""


class DrainServer(uvicorn.Server):
    """A uvicorn server that ends when nothing is in flight or `grace` seconds are over."""

    def __init__(self, config: uvicorn.Config, client: EngineClient, grace: float) -> None:
        super().__init__(config)
        self._client = client
        self._grace = grace
        self._drain_started: float | None = None
        self.is_forced = False
        """It ended without waiting for what ran."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal handler: it only sets flags, `on_tick` acts on them."""
        if self._drain_started is None:
            self._drain_started = time.monotonic()
            self._client.begin_drain()
        else:
            self.stop_now()

    def stop_now(self) -> None:
        """End at the next tick, whatever runs."""
        self._client.begin_drain()
        self.config.timeout_graceful_shutdown = _FORCED_WRITES
        self.should_exit = self.is_forced = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether the server should end."""
        should_end = await super().on_tick(counter)
        if should_end:
            await self._fail_rest()
            return True
        if self._drain_started is None:
            return False
        if time.monotonic() - self._drain_started > self._grace:
            logger.warning("%d requests did not end within %g s", self._client.num_inflight, self._grace)
            await self._fail_rest()
            return True
        return self._client.num_inflight == 0

    async def _fail_rest(self) -> None:
        if self._client.num_inflight:
            self._client.fail_all(Unavailable("The server is shutting down.", code="shutting_down", retry_after=1))
            await asyncio.sleep(_LAST_ANSWERS)
