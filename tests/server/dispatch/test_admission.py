"""Admission: the rejected requests, the accepted ones, and the accuracy of Retry-After."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightwell.server.http.errors import PayloadTooLarge, QueueFull
from tests.server.dispatch.request_queue import Queue

# --- Retry-After ---


@given(seconds_each=st.floats(0.02, 3.0), excess=st.integers(1, 40), held=st.integers(2, 60))
def test_retry_after_is_the_time_in_which_enough_requests_end(seconds_each: float, excess: int, held: int) -> None:
    queue = Queue(max_requests=held + excess)
    queue.come(num_requests=held + excess)
    queue.flow(max(20, math.ceil(20 / seconds_each)), seconds_each)
    expected = max(1.0, excess * seconds_each)
    with pytest.raises(QueueFull) as caught:
        queue.admission.check(excess)
    assert caught.value.retry_after is not None
    assert 0.8 * expected - 1 <= caught.value.retry_after <= 1.25 * expected + 1
    for _ in range(excess):  # at the same pace, a retry at that time is accepted
        queue.end(seconds_each)
    queue.admission.check(excess)


def full_queue(seconds_each: float) -> Queue:
    queue = Queue(max_requests=8)
    queue.come(num_requests=8)
    queue.flow(200, seconds_each)
    return queue


@given(idle=st.floats(0, 1e7), seconds_each=st.floats(0.1, 2.0))
def test_an_idle_night_changes_no_estimate(idle: float, seconds_each: float) -> None:
    queue = full_queue(seconds_each)
    before = queue.refused().retry_after
    for _ in range(8):
        queue.end()
    queue.clock.now += idle
    queue.come(num_requests=8)
    after = queue.refused().retry_after
    assert before is not None
    assert after is not None
    assert 0 < after <= before  # eight ended at once: a little faster than before


@given(pauses=st.lists(st.floats(0, 200), min_size=1, max_size=8))
def test_while_nothing_ends_the_estimate_only_grows_to_the_time_that_nothing_ended(pauses: list[float]) -> None:
    queue = full_queue(0.5)
    last, silence = 0, 0.0
    for pause in pauses:
        queue.clock.now += pause
        silence += pause
        retry_after = queue.refused().retry_after
        assert retry_after is not None
        assert retry_after >= last
        assert min(600, silence - 1e-6) <= retry_after <= 600
        last = retry_after


def test_after_a_stall_the_estimate_comes_back_to_the_rate() -> None:
    queue = full_queue(0.5)
    queue.flow(1, 300)
    queue.flow(100, 0.5)
    assert queue.refused().retry_after == 1


def test_at_the_start_the_estimate_is_the_time_that_was_waited_in_vain() -> None:
    queue = Queue(max_requests=1)
    queue.come()
    assert queue.refused().retry_after == 1
    queue.clock.now += 20
    assert queue.refused().retry_after == 20


def test_retry_after_of_tokens_counts_the_tokens_that_end() -> None:
    queue = Queue(max_tokens=100)
    queue.come(tokens=10, num_requests=10)
    queue.flow(100, 1.0)
    assert queue.refused(tokens=40, prompt=5).retry_after == pytest.approx(4, abs=1)


# --- limits ---


def test_blocks_are_limited_by_what_the_requests_may_come_to_need() -> None:
    queue = Queue(max_kv_demand=2.0)
    queue.admission.note_cache(num_blocks=4, block_size=16)
    queue.come(tokens=65)  # 4 blocks: the last token needs no room
    queue.come(tokens=49)
    error = queue.refused(tokens=18)
    assert (error.code, "7 blocks" in error.message, "exceed the 8" in error.message) == (
        "queue_blocks_full",
        True,
        True,
    )
    queue.come(tokens=17)


def test_what_an_encoder_reads_is_counted_and_takes_blocks_of_its_own() -> None:
    """Check that the encoder's keys and values, which every step of the decoder reads, share no block with the
    decoder's.
    """
    admission = Queue(max_kv_demand=2.0).admission
    admission.note_cache(num_blocks=4, block_size=16)
    plain, crossing = admission.cost(5, 0, 12, 0), admission.cost(5, 20, 12, 0)
    assert (plain.num_tokens, plain.num_read, plain.num_blocks) == (17, 5, 1)
    assert (crossing.num_tokens, crossing.num_read, crossing.num_blocks) == (37, 25, 3)


def test_one_request_over_the_limits_of_tokens_and_blocks_runs_alone() -> None:
    queue = Queue(max_tokens=50, max_kv_demand=1.0)
    queue.admission.note_cache(num_blocks=2, block_size=16)
    queue.come(tokens=200)
    assert queue.refused().code == "queue_tokens_full"


def test_a_capture_that_could_never_fit_is_too_large_and_one_that_does_not_fit_now_waits() -> None:
    queue = Queue(max_capture_bytes=100)
    queue.come(capture_bytes=60)
    assert queue.refused(capture_bytes=50, client="b").code == "capture_budget_full"
    with pytest.raises(PayloadTooLarge):
        queue.come(capture_bytes=101)


def test_a_worker_with_little_room_still_takes_embeddings_and_small_inspections() -> None:
    queue = Queue(max_capture_bytes=1 << 30)
    queue.admission.note_memory(100 << 20)  # less than steps are left otherwise
    queue.come(capture_bytes=4 << 20)
    assert queue.refused(capture_bytes=4 << 20).code == "capture_budget_full"
    queue.admission.note_memory(None)
    queue.come(capture_bytes=1 << 29)


def test_small_captures_do_not_make_a_budget_that_large_ones_fill_seem_slow() -> None:
    queue = Queue(max_capture_bytes=1000)
    for _ in range(50):
        queue.come(capture_bytes=1)
        queue.end(0.3)
    queue.come(capture_bytes=400)
    queue.come(capture_bytes=400)
    assert queue.refused(capture_bytes=400).retry_after == 1  # at one byte in 0.3 s it would be a minute
    queue.clock.now += 5
    assert queue.refused(capture_bytes=400).retry_after == 5  # no request has ended for that time
    for _ in range(20):
        queue.end(8.0)
        queue.come(capture_bytes=400)
    assert queue.refused(capture_bytes=400).retry_after == pytest.approx(4, abs=1)


# --- clients ---


def test_a_client_finds_room_in_a_queue_that_another_has_filled() -> None:
    queue = Queue(max_requests=8)
    queue.come(client="a", num_requests=8)
    queue.come(client="b", num_requests=4)
    assert queue.refused(client="b").code == "queue_full"
    assert queue.refused(client="a").code == "queue_full"
    queue.come(client="c")


@given(comers=st.lists(st.sampled_from("abcdefgh"), max_size=120), limit=st.integers(1, 20))
@example(comers=[client for client in "abcdefgh" for _ in range(8)], limit=8)  # each fills its share before the next
def test_whoever_comes_the_queue_stays_below_twice_its_limit(comers: list[str], limit: int) -> None:
    queue = Queue(max_requests=limit)
    for client in comers:
        try:
            queue.come(client=client)
        except QueueFull:
            assert queue.admission.requests.used >= limit
    assert queue.admission.requests.used <= 2 * limit
    while queue.held:
        queue.end(0.1)
    assert [queue.admission.requests.used, queue.admission.tokens.used, queue.admission.requests.held_by] == [0, 0, {}]


def test_a_flood_of_inspections_turns_no_text_away() -> None:
    queue = Queue(max_requests=8, max_queue_time=20.0, num_seats=2)
    looks = queue.admission.cost(5, 0, 0, 0, is_inspection=True)
    for _ in range(8):
        queue.admission.admit(looks)
    queue.clock.now += 10.0  # they take long
    queue.come()
    with pytest.raises(QueueFull):
        queue.admission.admit(looks)
    for _ in range(8):
        queue.admission.release(looks)
    queue.end()
    assert [budget.used for budget in queue.budgets] == [0, 0, 0, 0]


def test_a_flood_of_text_turns_no_inspection_away_and_asked_early_the_answer_is_the_same() -> None:
    admission = Queue(max_requests=8).admission
    text, look = (admission.cost(5, 0, 0, 0, is_inspection=is_inspection) for is_inspection in (False, True))
    for _ in range(8):
        admission.admit(text)
    with pytest.raises(QueueFull):
        admission.check()
    for _ in range(4):  # their share of the queue
        admission.check(is_inspection=True)
        admission.admit(look)
    with pytest.raises(QueueFull):
        admission.check(is_inspection=True)
    with pytest.raises(QueueFull):
        admission.admit(look)


# --- the time to wait ---


@given(seconds_each=st.floats(0.05, 1.0), limit=st.floats(1.0, 20.0))
def test_as_many_wait_as_will_have_their_turn_in_time(seconds_each: float, limit: float) -> None:
    queue = Queue(max_queue_time=limit, num_seats=4)
    queue.come(num_requests=4)
    queue.flow(max(100, math.ceil(30 / seconds_each)), seconds_each)
    with pytest.raises(QueueFull, match="max-queue-time"):
        queue.come(num_requests=10_000)
    num_waiting = len(queue.held) - 4
    assert 0.8 * limit - 2 * seconds_each <= num_waiting * seconds_each <= 1.25 * limit + 2 * seconds_each


def test_neither_an_inspection_nor_another_client_waits_for_all_that_a_client_has_queued() -> None:
    queue = Queue(max_queue_time=5.0, num_seats=1)
    queue.come(client="a")
    for _ in range(30):
        queue.end(1.0)
        queue.come(client="a")
    queue.come(client="a", num_requests=5)
    assert queue.refused(client="a").code == "queue_time_exceeded"
    queue.admission.check(client="a", is_inspection=True)
    queue.come(client="b")


def test_inspections_that_wait_long_for_their_turn_do_not_make_text_seem_to_wait() -> None:
    queue = Queue(max_queue_time=10.0, num_seats=64)
    queue.reads_at_once = False
    queue.admission.admit(queue.admission.cost(1000, 0, 0, 0, is_inspection=True))
    queue.clock.now += 100
    queue.come()
    queue.come()
    assert queue.admission.requests.used == 3


def test_prompts_that_are_read_slowly_bound_the_queue_though_there_are_seats() -> None:
    queue = Queue(max_queue_time=10.0, num_seats=64)
    queue.reads_at_once = False
    queue.come(tokens=1000, prompt=1000)
    for _ in range(10):
        queue.clock.now += 1
        queue.admission.note_tokens_read(50)
    assert queue.refused(tokens=1000, prompt=1000).retry_after == pytest.approx(10, abs=2)
    queue.come(tokens=10, prompt=5)  # it overtakes
    queue.end()  # the client of the first left: its prompt is no longer waited for
    queue.come(tokens=1000, prompt=1000)


def test_one_slow_first_step_turns_no_burst_away() -> None:
    queue = Queue(max_queue_time=30.0, num_seats=64)
    queue.reads_at_once = False
    queue.come(tokens=400, prompt=400)
    queue.clock.now += 1.7
    queue.admission.note_tokens_read(400)
    queue.come(tokens=400, prompt=400, num_requests=20)  # at that pace the last of them would wait for 34 s
    queue.clock.now += 5
    queue.admission.note_tokens_read(400)
    queue.refused(tokens=400, prompt=400)  # the rejection was no accident


def test_rows_of_batches_take_no_place_of_other_requests_and_half_of_the_captured_bytes() -> None:
    queue = Queue(max_requests=1, max_tokens=50, max_capture_bytes=100, max_queue_time=1.0)
    row = queue.admission.cost(40, 0, 40, 30, is_background=True)
    queue.admission.admit(row)
    with pytest.raises(QueueFull):
        queue.admission.admit(row)  # it would be more than half
    assert queue.admission.refusals.total() == 0
    queue.come(capture_bytes=60)
    assert queue.refused().code == "queue_full"
    queue.admission.note_prompt_read(row)
    queue.admission.release(row, was_read=False)
    queue.admission.release_capture(row.capture_bytes)
    queue.end()
    assert [budget.used for budget in queue.budgets] == [0, 0, 0, 0]
    queue.admission.admit(queue.admission.cost(1, 0, 1, 90, is_background=True))  # one row may take more
