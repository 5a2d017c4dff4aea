"""The times at which a worker counts as hung and is killed. The tests set the watchdog's clock and do not wait."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from lightwell.server.dispatch.admission import Cost
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.dispatch.worker_health import WorkerHealth
from lightwell.server.dispatch.worker_state import WorkerState
from lightwell.server.lifecycle.supervisor import MAX_FAILURES, num_short
from tests.server.played_worker import INFO


class Watched:
    """A worker under a watchdog, and the watchdog's actions."""

    def __init__(self, load_timeout: float = 60.0, clock: SimpleNamespace | None = None) -> None:
        self._clock = clock or SimpleNamespace(now=0.0)
        self.worker = WorkerState(0)
        self.hung: list[WorkerState] = []
        self.killed: list[WorkerState] = []
        self._watch = WorkerHealth(
            [self.worker],
            timeout=30.0,
            load_timeout=load_timeout,
            on_hung=self.hung.append,
            on_given_up=self.killed.append,
        )

    def wait(self, seconds: int, every_second: Callable[[int], None] = lambda second: None) -> None:
        for second in range(seconds):
            every_second(second)
            self._clock.now += 1.0
            self._watch.check(1.0)


def test_a_load_that_goes_on_is_never_killed_however_long_it_takes() -> None:
    watched = Watched()
    watched.wait(3600, lambda second: watched.worker.note_progress(second // 50, 100))
    assert not watched.killed
    assert watched.worker.reason() == "worker 0 is loading the model: 71 %"


@pytest.mark.parametrize("says", [None, (1, 2)], ids=["nothing", "the same again and again"])
def test_a_load_that_gets_no_further_is_killed_once(says: tuple[int, int] | None) -> None:
    watched = Watched()
    watched.worker.note_progress(1, 2)
    watched.wait(60, lambda second: watched.worker.note_progress(*says) if says else None)
    assert not watched.killed
    assert watched.worker.reason() == "worker 0 is loading the model: 50 %"
    watched.wait(60)
    assert watched.killed == [watched.worker]
    assert not watched.hung, "it has no requests"
    assert "(--load-timeout) and is being killed" in watched.worker.reason()


def test_without_a_limit_a_load_may_stand_still() -> None:
    watched = Watched(load_timeout=0)
    watched.wait(100_000)
    assert not watched.killed


def test_the_time_until_the_next_start_and_what_the_last_process_did_are_not_counted() -> None:
    watched = Watched()
    watched.wait(59)
    watched.worker.expect_start(delay=1000)
    watched.worker.restart_note = "ended (SIGKILL), 3 times recently, and is restarted"
    watched.wait(1000)
    watched.worker.note_start()
    watched.wait(60)
    assert not watched.killed
    watched.wait(1)
    assert watched.killed == [watched.worker]


def test_a_silent_worker_is_hung_first_and_killed_once_when_it_stays_so() -> None:
    watched = Watched()
    watched.worker.become_ready(INFO)
    beat(watched.worker)
    watched.wait(6)  # idle: a heartbeat is due
    assert watched.hung == [watched.worker]
    watched.wait(54)
    assert not watched.killed
    watched.wait(60)
    assert (watched.hung, watched.killed) == ([watched.worker], [watched.worker])
    assert watched.worker.reason().startswith("worker 0 was silent for more than 60 s (twice --worker-timeout)")


def test_a_worker_that_hangs_again_and_again_is_given_up(clock: SimpleNamespace) -> None:
    # In an old version the silence before a kill counted as ready time, so each life seemed long enough for a restart.
    watched = Watched(clock=clock)
    lives = deque[float](maxlen=MAX_FAILURES)
    for _ in range(MAX_FAILURES):
        watched.worker.become_ready(INFO)
        watched.wait(10, lambda second: beat(watched.worker))
        watched.wait(61)
        assert watched.killed.pop() is watched.worker
        watched.worker.info, watched.worker.is_hung = None, False
        lives.append(watched.worker.take_ready_seconds())
        watched.worker.note_start()
        answer(watched.worker)
    assert lives == deque([9.0] * MAX_FAILURES)
    assert num_short(lives) == MAX_FAILURES


def test_a_worker_that_hung_and_answered_again_was_ready_all_the_time(clock: SimpleNamespace) -> None:
    watched = Watched(clock=clock)
    watched.worker.become_ready(INFO)
    beat(watched.worker)
    watched.wait(20)
    assert watched.hung == [watched.worker]
    watched.wait(80, lambda second: answer(watched.worker))
    assert watched.worker.take_ready_seconds() == 100.0


def answer(worker: WorkerState) -> None:
    """Update the worker's state as the engine client does for a message."""
    worker.silent_for, worker.is_hung = 0.0, False


def beat(worker: WorkerState) -> None:
    """Update the worker's state as the engine client does for the heartbeat of an idle worker."""
    answer(worker)
    worker.note_beat()


def busy(watched: Watched) -> RequestHandle:
    watched.worker.become_ready(INFO)
    watched.wait(3, lambda second: beat(watched.worker))
    handle = RequestHandle(1, Cost(num_tokens=1, capture_bytes=0), RequestContext(), print, print)
    watched.worker.add(handle)
    return handle


def test_a_step_that_reports_progress_is_never_hung_however_long_it_takes() -> None:
    watched = Watched()
    busy(watched)
    watched.wait(3600, lambda second: answer(watched.worker) if second % 29 == 0 else None)
    assert not watched.hung


def test_a_busy_worker_that_stops_is_hung_within_five_seconds_after_the_timeout() -> None:
    watched = Watched()
    busy(watched)
    watched.wait(100, lambda second: answer(watched.worker))
    watched.wait(29)
    assert not watched.hung
    watched.wait(5)
    assert watched.hung == [watched.worker]


def test_a_long_step_is_no_hang_when_all_who_waited_for_it_leave() -> None:
    watched = Watched()
    handle = busy(watched)
    watched.wait(3, lambda second: answer(watched.worker))
    watched.worker.remove(handle)
    beat(watched.worker)  # which was sent before the request arrived
    watched.wait(10, lambda second: answer(watched.worker))  # the step still runs, and reports progress
    watched.wait(25)
    assert not watched.hung
    watched.wait(2, lambda second: beat(watched.worker))  # the step is over
    watched.wait(6)
    assert watched.hung == [watched.worker], "idle: it should have beaten"


def test_a_worker_that_has_just_loaded_may_take_its_time_until_its_first_beat() -> None:
    watched = Watched()
    watched.worker.become_ready(INFO)
    watched.wait(25)
    assert not watched.hung
