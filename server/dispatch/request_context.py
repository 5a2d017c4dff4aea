"""Context of one HTTP request while the model runs for it: its deadline, its priority and its client.

A route makes one (`server.generation.acceptance`) and passes it to each call of the engine's client. Independent of
HTTP.
"""

import asyncio
import time
from dataclasses import dataclass, field

from lightwell.server.config.auth.keys import ApiKey
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.engine.messages.request import BACKGROUND
from lightwell.server.http.errors import DeadlineExceeded, not_in_time
from lightwell.server.observability.access_log import RequestRecord

_BACKSTOP = 0.5
"""Seconds after the deadline in which the engine may still report how far the request came."""


@dataclass(slots=True)
class RequestContext:
    """The terms of one HTTP request. Times are CLOCK_MONOTONIC, in seconds."""

    record: RequestRecord | None = None
    """The contents of the request's log line; None for work that no HTTP request asked for."""
    key: ApiKey | None = None
    """The API key it came with; None while the server is open to all."""
    priority: int = 0
    """Of the requests that wait, those with lower numbers run first; those below 0 are not refused for a long queue."""
    adapter: ServedAdapter | None = None
    """The LoRA adapter that it names as its model; None for the model itself."""
    cache_salt: str = ""
    """Salt of the prefix cache: the key's name and the client's own salt. Requests share blocks of equal salts only."""
    deadline: float | None = None
    """When it must have ended; without one `--request-timeout` counts."""
    arrival: float = field(init=False)
    backstop: asyncio.Timeout | None = None
    """Timeout for work outside the engine, such as reading the body and writing the answer, some time after the
    deadline.
    """

    def __post_init__(self) -> None:
        self.arrival = time.monotonic() if self.record is None else self.record.started

    @property
    def is_background(self) -> bool:
        """Return whether it is a row of a batch, for which no other request waits."""
        return self.priority >= BACKGROUND

    @property
    def elapsed(self) -> float:
        """Return the seconds since its arrival."""
        return time.monotonic() - self.arrival

    @property
    def client(self) -> str:
        """Return the name of its API key, or "" if it has none."""
        return "" if self.record is None else self.record.key or ""

    @property
    def has_begun(self) -> bool:
        """Return whether it has given the engine something before: a drain lets it finish."""
        return self.record is not None and self.record.engine_requests > 0

    def shorten(self, seconds: float) -> None:
        """Let it end `seconds` after its arrival at the latest, as its client waits no longer."""
        end = self.arrival + seconds
        if self.deadline is None or end < self.deadline:
            self.deadline = end
            if self.backstop is not None:
                self.backstop.reschedule(end + _BACKSTOP)

    def check_time(self) -> None:
        """Raise DeadlineExceeded if the request's time is already over, before it is sent to the engine."""
        if self.deadline is not None and self.deadline <= time.monotonic():
            raise self.late("it was still being read")

    def late(self, reached: str = "its answer was not ready to be sent") -> DeadlineExceeded:
        """Return the error of a request that did not end in time. reached: the last stage that it reached."""
        return not_in_time(None if self.deadline is None else self.deadline - self.arrival, reached)
