"""The supervisor without a server: real processes that end at once, and a launch that fails."""

import asyncio
import errno
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable

import pytest

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.lifecycle.supervisor import MAX_FAILURES, Process, Supervisor, backoff, num_short
from lightwell.server.lifecycle.worker_process import prepare_environment
from tests.server.played_worker import PATIENCE, until


def start(target: Callable[..., object] = os.getpid, *arguments: object) -> Process:
    """Return a new process that calls `target`."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


async def supervise(
    client: EngineClient,
    launch: Callable[[int], Process],
    until: asyncio.Event | None = None,
    why_not: Callable[[], str | None] = lambda: None,
) -> list[str]:
    """Run a supervisor until the event, or until it gives up, and return the reasons for which it gave up."""
    given_up: list[str] = []
    over = until or asyncio.Event()

    def give_up(message: str) -> None:
        given_up.append(message)
        if until is None:
            over.set()

    supervisor = Supervisor(client, launch, give_up, why_not)
    supervisor.launch_all()
    try:
        await client.start()
        await supervisor.start()
        await asyncio.wait_for(over.wait(), PATIENCE)
    finally:
        await supervisor.stop()
        await client.stop()
        supervisor.reap(0.0)
        client.socket.remove()
    return given_up


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), RuntimeError("can't start new thread"), MemoryError()]
)
async def test_a_worker_that_cannot_be_started_for_a_moment_is_tried_again(error: Exception) -> None:
    # In an old version the error was lost with its task: the server kept running and was never ready again.
    launches = 0
    running = asyncio.Event()

    def launch(worker_id: int) -> Process:
        nonlocal launches
        launches += 1
        if launches == 2:
            raise error
        if launches == 3:
            running.set()
        return start()

    assert await supervise(EngineClient(Settings()), launch, running) == []
    assert launches == 3


async def test_workers_that_hang_before_they_connect_are_killed_until_the_server_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightwell.server.lifecycle.supervisor.backoff", lambda lives: 0.0)
    processes: list[Process] = []

    def launch(worker_id: int) -> Process:
        process = start(time.sleep, 3600)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        processes.append(process)
        return process

    client = EngineClient(Settings(load_timeout=0.1))
    assert await supervise(client, launch) == [
        "the worker ended 5 times, last by SIGKILL, as it did not connect for more than 0.1 s (--load-timeout)"
    ]
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * MAX_FAILURES
    assert not client.live


async def test_a_worker_that_the_kernel_kills_while_it_loads_ends_the_server_and_the_reason_is_a_guess_at_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightwell.server.lifecycle.supervisor.backoff", lambda lives: 0.0)
    client = EngineClient(Settings())
    assert await supervise(client, lambda worker_id: start(signal.raise_signal, signal.SIGKILL)) == [
        f"the worker ended {MAX_FAILURES} times, last by SIGKILL while it loaded, as the kernel does where memory is "
        "short"
    ]


@pytest.mark.parametrize(
    ("lives", "delay", "gives_up"),
    [
        ([7200.0], 0.0, False),
        ([3.0], 0.0, False),
        ([7200.0, 1.0, 0.0], 0.5, False),
        ([1.0, 1.0, 1.0, 1.0], 2.0, False),
        ([13.0] * 5, 2.0, False),
        ([0.0] * 5, 4.0, True),  # however long each took to load
        ([11.0] * 5, 4.0, True),
    ],
)
def test_workers_that_do_not_live_are_started_later_and_later_and_then_no_more(
    lives: list[float], delay: float, gives_up: bool
) -> None:
    assert backoff(deque(lives)) == delay
    assert (num_short(deque(lives)) >= MAX_FAILURES) is gives_up


async def test_the_failures_of_several_workers_do_not_add_up() -> None:
    launches: list[int] = [0] * 3
    notes: list[list[str | None]] = [[] for _ in range(3)]
    over = asyncio.Event()
    client = EngineClient(Settings(), num_workers=3)

    def launch(worker_id: int) -> Process:
        """Launch a worker that ends twice at once, and then stays."""
        notes[worker_id].append(client.workers[worker_id].restart_note)
        launches[worker_id] += 1
        if launches == [3] * 3:
            over.set()
        return start(time.sleep, 3600 if launches[worker_id] == 3 else 0)

    assert await supervise(client, launch, over) == []
    assert client.counts.worker_restarts == 6
    waits = "ended (exit status 0), 2 times recently, and is restarted"
    assert [each[-1] for each in notes] == [waits] * 3


async def test_a_supervisor_that_is_stopped_while_it_waits_starts_nothing_more() -> None:
    launches = 0

    def launch(worker_id: int) -> Process:
        nonlocal launches
        launches += 1
        return start()

    client = EngineClient(Settings())
    supervisor = Supervisor(client, launch, pytest.fail)
    supervisor.launch_all()
    await supervisor.start()
    await until(lambda: client.workers[0].restart_note is not None)
    (waits,) = supervisor._tasks
    await supervisor.stop()
    with pytest.raises(asyncio.CancelledError):
        await waits
    supervisor.reap(0.0)
    client.socket.remove()
    assert launches == 2


async def test_several_workers_that_cannot_go_on_end_the_server_once() -> None:
    asked = 0
    over = asyncio.Event()

    def why_not() -> str:
        nonlocal asked
        asked += 1
        if asked == 3:
            over.set()
        return f"refusal {asked}"

    client = EngineClient(Settings(), num_workers=3)
    assert await supervise(client, lambda worker_id: start(), over, why_not) == ["refusal 1"]
    assert client.end_reason == "refusal 1"


@pytest.mark.parametrize(
    ("before", "weight_bytes", "expected"),
    [
        (None, 1 << 20, None),
        (None, 1 << 30, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", 1 << 30, "glibc.malloc.check=1"),
    ],
)
def test_large_weights_are_put_into_huge_pages_unless_the_operator_tunes_malloc(
    monkeypatch: pytest.MonkeyPatch, before: str | None, weight_bytes: int, expected: str | None
) -> None:
    tuned = {} if before is None else {"GLIBC_TUNABLES": before}
    monkeypatch.setattr(os, "environ", tuned)
    prepare_environment(None, weight_bytes)
    assert os.environ.get("GLIBC_TUNABLES") == expected
