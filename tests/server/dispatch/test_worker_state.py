"""The time at which a worker is expected to take requests: the Retry-After of a 503."""

from types import SimpleNamespace

from lightwell.server.dispatch.worker_state import WorkerState, seconds_until_ready
from lightwell.server.engine.messages.outputs import EngineStats
from tests.server.played_worker import INFO


def lost_after_loading(clock: SimpleNamespace, seconds: float, delay: float = 0.0) -> WorkerState:
    """Return a worker that loaded in `seconds`, served for 1,000 s, was lost, and starts again after `delay`."""
    worker = WorkerState(0)
    clock.now += seconds
    worker.become_ready(INFO)
    clock.now += 1000
    worker.info = None
    worker.expect_start(delay)
    return worker


def test_a_lost_worker_is_expected_after_what_its_last_start_took(clock: SimpleNamespace) -> None:
    worker = lost_after_loading(clock, 20)
    assert seconds_until_ready([worker]) == 20
    clock.now += 15.5
    assert seconds_until_ready([worker]) == 5
    clock.now += 100
    assert seconds_until_ready([worker]) == 1


def test_of_several_caches_the_fullest_is_told() -> None:
    stats = [
        EngineStats(kv_cache_usage_ratio=ratio, kv_cache_committed_bytes=size, num_requests_running=2)
        for ratio, size in ((0.6, 1000), (0.9, 24))
    ]
    told = EngineStats.of_workers([EngineStats(), *stats])
    assert (told.kv_cache_usage_ratio, told.kv_cache_committed_bytes, told.num_requests_running) == (0.9, 1024, 4)
    assert EngineStats.of_workers([EngineStats()]).kv_cache_usage_ratio == 0.0
    assert stats[0].counters() == EngineStats(), "gauges of a worker that ended are dropped"


def test_the_time_before_its_next_start_is_added(clock: SimpleNamespace) -> None:
    assert seconds_until_ready([lost_after_loading(clock, 20, delay=8)]) == 28


def test_a_first_start_is_told_by_its_progress(clock: SimpleNamespace) -> None:
    worker = WorkerState(0)
    clock.now += 30
    assert seconds_until_ready([worker]) == 1, "nothing is known"
    worker.progress = (25, 100)
    assert seconds_until_ready([worker]) == 90


def test_a_worker_that_hangs_is_expected_after_it_was_killed_and_loaded_again(clock: SimpleNamespace) -> None:
    worker = WorkerState(0)
    clock.now += 20
    worker.become_ready(INFO)
    clock.now += 500
    worker.silent_for = 30.0
    worker.note_hung(kill_after=60.0)
    assert seconds_until_ready([worker]) == 30 + 20
    clock.now += 30
    worker.kill_reason = "was silent for more than 60 s"
    assert seconds_until_ready([worker]) == 20
    worker.is_hung, worker.kill_reason = False, None
    worker.note_answers()
    assert seconds_until_ready([worker]) == 1


def test_a_worker_that_is_ready_takes_the_other_ones_requests_at_once(clock: SimpleNamespace) -> None:
    ready = WorkerState(1)
    ready.become_ready(INFO)
    assert seconds_until_ready([lost_after_loading(clock, 20), ready]) == 1
