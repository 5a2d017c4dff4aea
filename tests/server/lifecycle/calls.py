"""Calls that run in the background while a test acts on the server, and functions that read its metrics and log."""

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from tests.server.running import PATIENCE, RunningServer, wait_for
from tests.support.wire import samples

LONG = {"prompt": [1, 2], "max_tokens": 1_000_000}
"""A request that does not end by itself within a test."""


def in_background(call: Callable[[], Any]) -> "Call":
    return Call(call)


class Call:
    """A call in a thread. The test waits for its result."""

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
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call did not end"
        return self._result


def wait_inflight(server: RunningServer, count: int) -> None:
    wait_for(lambda: server.state()["inflight"] == count, f"{count} requests are in flight")


def metric(server: RunningServer, name: str) -> float:
    """Return the value of the only line of /metrics with this name and these labels."""
    return samples(server.get("/metrics").text)[name]


def events(server: RunningServer) -> Iterator[dict[str, Any]]:
    """Yield the events that a server with `--log-format json` has logged so far."""
    for line in server.output.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def only_model(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a server and of its only model in one."""
    (model,) = state["models"].values()
    return {**state, **model}


def dump(server: RunningServer) -> dict[str, Any]:
    """Return the state that SIGUSR1 makes a server of one model with `--log-format json` write."""

    def states() -> list[dict[str, Any]]:
        return [only_model(event["state"]) for event in events(server) if "state" in event]

    before = len(states())
    server.signal(signal.SIGUSR1)
    return wait_for(lambda: states()[before:], "the state is logged")[0]


def dump_with_engines(server: RunningServer) -> dict[str, Any]:
    """Return a state in which every worker has answered: one on a busy machine may miss the second that it has."""

    def complete() -> dict[str, Any] | None:
        state = dump(server)
        return state if all(worker.get("engine") for worker in state["workers"]) else None

    state = wait_for(complete, "every worker tells its state")
    assert state is not None
    return state


def assert_nothing_left(server: RunningServer, url: str) -> None:
    """Wait until all processes of a server that was ended are gone, and check that its port and folder are, too."""
    server.wait_all_gone()
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        assert connection.connect_ex((host, int(port))) != 0, "the port is still taken"
    assert list(server.tmp.glob("lightwell-*")) == [], "a socket folder is left"
