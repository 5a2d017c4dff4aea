"""Calls that run in the background while a test does something to the server."""

import threading
from collections.abc import Callable
from typing import Any

import httpx

from tests.server.running import RunningServer, wait_for

LONG = {"prompt": [1, 2], "max_tokens": 1_000_000}
"""A request that does not end by itself within a test."""


def in_background(call: Callable[[], Any]) -> "Call":
    return Call(call)


class Call:
    """A call in a thread, whose result is waited for."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except httpx.TransportError as error:
            self._result = error

    def result(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the call did not end"
        return self._result


def wait_inflight(server: RunningServer, count: int) -> None:
    wait_for(lambda: server.state()["inflight"] == count, f"{count} requests are in flight")
