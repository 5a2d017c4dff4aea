"""The tokens of each step, and the order in which requests are served."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightwell.server.engine.messages.request import EmbedTask
from lightwell.server.engine.scheduling.capture_budget import StepWork
from lightwell.server.engine.scheduling.schedule import Schedule
from tests.server.engine.toy_runner import (
    ToyRunner,
    attend,
    attend_encoder,
    chunk_sizes,
    generate,
    scheduler,
    sequence,
    toy,
)

# --- streams and prompts ---


@pytest.mark.parametrize(("num_streams", "expected"), [(0, 2), (1, 12), (3, 32)])
def test_prompts_have_as_many_tokens_as_the_step_is_told_for_its_streams_and_prompts(
    num_streams: int, expected: int
) -> None:
    sched, runner = toy(budget=1000, max_num_seqs=64, num_blocks=1000)
    for uid in range(num_streams):
        sched.add(sequence(uid, range(100 * uid, 100 * uid + 4), generate(max_tokens=20)))
    if num_streams:
        runner.step()
    for uid in (20, 21):
        sched.add(sequence(uid, range(100 * uid, 100 * uid + 40)))
    if num_streams:
        sched.add(sequence(22, range(600, 603), attend()))
    schedule = sched.schedule(prompt_tokens=lambda decodes, prompts: 10 * decodes + prompts)
    assert schedule.num_tokens == num_streams + expected


def test_a_short_prompt_does_not_wait_until_a_long_one_is_read() -> None:
    sched, runner = toy(sequence(1, range(100, 180)), budget=8)
    runner.step()
    sched.add(sequence(2, range(4), generate(max_tokens=3)))
    assert [chunk_sizes(runner) for _ in range(3)] == [{2: 4, 1: 4}, {2: 1, 1: 7}, {2: 1, 1: 7}]


def test_of_several_prompts_the_shortest_is_read_first_and_the_longest_goes_on() -> None:
    sched, runner = toy(budget=16, num_blocks=200)
    for uid, length in [(1, 300), (2, 100), (3, 6)]:
        sched.add(sequence(uid, range(1000 * uid, 1000 * uid + length), generate(max_tokens=1)))
    assert chunk_sizes(runner) == {3: 4, 2: 4, 1: 8}
    assert chunk_sizes(runner) == {3: 2, 2: 6, 1: 8}


def test_prompts_of_like_length_are_read_one_after_the_other_so_that_a_shared_beginning_is_read_once() -> None:
    sched, runner = toy(budget=16)
    seqs = [sequence(uid, range(length), EmbedTask()) for uid, length in [(1, 31), (2, 29)]]
    for seq in seqs:
        sched.add(seq)
    assert [chunk_sizes(runner) for _ in range(2)] == [{1: 16}, {1: 15, 2: 1}]
    assert seqs[1].num_cached_tokens == 16


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ((40, 20), {2: 8, 1: 8}),
        ((40, 21), {1: 16}),
        ((16, 4), {2: 4, 1: 12}),  # it would take exactly the rest of the step
        ((15, 4), {1: 15, 2: 1}),  # it gets the tokens that the first one leaves
    ],
)
def test_a_prompt_is_overtaken_only_by_those_at_most_half_as_long_as_what_is_left_of_it(
    lengths: tuple[int, int], sizes: dict[int, int]
) -> None:
    sched = scheduler(budget=16)
    for uid, num_tokens in enumerate(lengths, 1):
        sched.add(sequence(uid, range(100 * uid, 100 * uid + num_tokens), EmbedTask()))
    assert chunk_sizes(ToyRunner(sched)) == sizes


def test_forced_tokens_run_with_the_token_before_them_as_far_as_the_step_has_room_for_every_stream() -> None:
    sched, runner = toy(budget=6, max_num_seqs=4)
    seqs = [sequence(uid, [uid, uid], generate(max_tokens=20)) for uid in (1, 2, 3)]
    for seq in seqs:
        sched.add(seq)
    runner.step()
    for seq in seqs:
        seq.forced = [1, 2]
        seq.token_ids += seq.forced
    assert chunk_sizes_of(sched.schedule()) == {1: 3, 2: 2, 3: 1}


def chunk_sizes_of(schedule: Schedule) -> dict[int, int]:
    return {chunk.sequence.uid: chunk.num_tokens for chunk in schedule.chunks}


def test_a_step_says_how_much_of_it_is_text_and_how_much_captures() -> None:
    sched, runner = toy(sequence(1, range(4), generate(max_tokens=20), encoded=[3] * 5), budget=64)
    assert sched.schedule().work == StepWork(9, 0, only_decodes=False)
    runner.step()
    assert sched.schedule().work == StepWork(1, 0, only_decodes=True)
    sched.add(sequence(2, range(20, 26), attend()))
    sched.add(sequence(3, [1, 2], attend_encoder(), encoded=[4] * 20))
    assert sched.schedule().work == StepWork(1, 6 + 20, only_decodes=False)
    runner.step()
    sched.add(sequence(4, range(40, 46), attend()))
    schedule = sched.schedule()
    assert schedule.work == StepWork(1, 6, only_decodes=True)
    assert (schedule.num_decodes, schedule.has_text) == (1, True)
    sched.commit(schedule, runner.run(schedule))
    sched.add(sequence(5, range(50, 53)))
    assert sched.schedule().work == StepWork(4, 0, only_decodes=False)


@given(length=st.integers(1, 120), shorts=st.lists(st.integers(1, 9), max_size=60), budget=st.integers(4, 16))
@example(length=116, shorts=[4], budget=7)  # each short one leaves its last token to the next step
def test_no_flood_of_short_prompts_makes_a_long_one_wait_for_more_than_twice_its_steps(
    length: int, shorts: list[int], budget: int
) -> None:
    sched, runner = toy(budget=budget, max_num_seqs=3, num_blocks=400)
    long = sequence(0, range(length), EmbedTask())
    sched.add(long)
    num_steps = 0
    while not long.is_finished:
        for uid, size in enumerate(shorts, start=1000 * (num_steps + 1)):
            sched.add(sequence(uid, [uid] * size, EmbedTask()))
        runner.step()
        num_steps += 1
    assert num_steps <= 2 * -(-length // budget)


# --- inspections ---


def test_inspections_take_a_few_tokens_of_each_step_while_text_is_generated() -> None:
    sched, runner = toy(sequence(1, range(4), generate(max_tokens=4)), budget=64, capture_tokens=3)
    runner.step()
    sched.add(sequence(2, range(20, 28), attend()))
    sched.add(sequence(3, range(30, 35), EmbedTask()))
    sched.add(sequence(4, range(40, 44), attend()))
    sched.add(sequence(5, range(50, 56), generate(max_tokens=2)))
    assert chunk_sizes(runner) == {1: 1, 2: 3, 3: 5, 5: 6}
    assert chunk_sizes(runner) == {1: 1, 2: 3, 5: 1}
    assert chunk_sizes(runner) == {1: 1, 2: 2, 4: 1}  # the streams end here
    assert chunk_sizes(runner) == {4: 3}


def test_a_step_with_text_may_have_no_tokens_for_inspections_and_one_without_text_has_all() -> None:
    sched, runner = toy(sequence(1, range(4), generate(max_tokens=3)), budget=64, capture_tokens=3)
    runner.step()
    sched.add(sequence(2, range(20, 28), attend()))
    found = []
    for capture_tokens in (0, 2, 0):
        schedule = sched.schedule(capture_tokens)
        found.append({chunk.sequence.uid: chunk.num_tokens for chunk in schedule.chunks})
        sched.commit(schedule, runner.run(schedule))
    assert found == [{1: 1}, {1: 1, 2: 2}, {2: 6}]  # the stream ends with its third token


def test_inspections_at_an_encoder_run_one_by_one_in_steps_that_have_tokens_for_inspections() -> None:
    """Check that each pass of the encoder has its own step: several passes in one step would delay the streams."""
    sched, runner = toy(sequence(0, [1, 2], generate(max_tokens=40), encoded=[3] * 5), budget=64, capture_tokens=3)
    runner.step()
    for uid in (1, 2, 3):
        sched.add(sequence(uid, [1, 2], attend_encoder(), encoded=[4] * 20))
    begun = []
    for capture_tokens in (0, 3, 0, 0, 2, 0, 3):
        schedule = sched.schedule(capture_tokens)
        begun.append([seq.uid for seq in schedule.encodes])
        assert 0 in [chunk.sequence.uid for chunk in schedule.chunks]
        sched.commit(schedule, runner.run(schedule))
    assert begun == [[], [1], [], [], [2], [], [3]]


def test_text_overtakes_the_inspections_that_wait_for_a_seat_however_many() -> None:
    sched, runner = toy(sequence(1, range(4), generate(max_tokens=30)), budget=64, capture_tokens=3, max_num_seqs=4)
    runner.step()
    for uid in range(2, 200):
        sched.add(sequence(uid, range(10 * uid, 10 * uid + 4), attend()))
    assert chunk_sizes(runner) == {1: 1, 2: 3}
    sched.add(sequence(200, range(90, 93), generate(max_tokens=30)))
    # Two tokens are left, but inspections have one of the four seats.
    assert chunk_sizes(runner) == {1: 1, 2: 1, 200: 3}
    assert [list(chunk_sizes(runner)) for _ in range(4)] == [[1, 200, 3], [1, 200, 3], [1, 200, 4], [1, 200, 4]]


def test_inspections_have_a_quarter_of_the_seats_and_at_least_one_while_text_is_generated() -> None:
    for num_seats, num_running in [(2, 1), (4, 1), (12, 3)]:
        sched, runner = toy(budget=64, capture_tokens=64, max_num_seqs=num_seats)
        sched.add(sequence(0, range(4), generate(max_tokens=30)))
        runner.step()
        for uid in range(1, 12):
            sched.add(sequence(uid, range(10 * uid, 10 * uid + 4), attend()))
        assert list(chunk_sizes(runner)) == list(range(num_running + 1))


# --- clients and priorities ---


def test_clients_take_turns_however_much_one_has_queued() -> None:
    sched, runner = toy(max_num_seqs=1)
    for uid in range(5):
        sched.add(sequence(uid, [uid] * 4, EmbedTask(), client="a"))
    ended = [seq.uid for seq in runner.step()]
    for uid, client in [(10, "b"), (11, "b"), (20, "c"), (12, "b")]:
        sched.add(sequence(uid, [uid] * 4, EmbedTask(), client=client))
    ended += [seq.uid for seq in runner.drain()]
    assert ended == [0, 10, 20, 1, 11, 2, 12, 3, 4]


def test_a_lower_priority_is_served_earlier_and_equal_ones_in_order_of_arrival() -> None:
    sched, runner = toy(max_num_seqs=1)
    for uid, priority in [(1, 5), (2, 5), (3, 0), (4, -1), (5, 0)]:
        sched.add(sequence(uid, [uid] * 4, EmbedTask(), priority=priority))
    assert [seq.uid for seq in runner.drain()] == [4, 3, 5, 1, 2]
