"""Who runs when, who makes room for whom, and how each request ends."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.engine.request import EmbedTask
from server.engine.scheduler import SchedulerConfig
from server.engine.sequence import SequenceStatus
from tests.server.engine.toy_runner import (
    ToyRunner,
    answer_alone,
    attend,
    attend_encoder,
    generate,
    scheduler,
    sequence,
)


def chunk_sizes(runner: ToyRunner) -> dict[int, int]:
    """Run one step; how many tokens it computed of each sequence."""
    schedule = runner.scheduler.schedule()
    runner.scheduler.commit(schedule, runner.run(schedule))
    return {chunk.sequence.uid: chunk.num_tokens for chunk in schedule.chunks}


# --- the order of work ---


def test_a_long_prompt_does_not_stall_a_running_stream() -> None:
    sched = scheduler(budget=8)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(4), generate(max_tokens=20)))
    assert chunk_sizes(runner) == {1: 4}
    sched.add(sequence(2, range(100, 120)))
    assert [chunk_sizes(runner) for _ in range(4)] == [{1: 1, 2: 7}, {1: 1, 2: 7}, {1: 1, 2: 6}, {1: 1, 2: 1}]


def test_one_step_mixes_decode_prefill_capture_and_embedding() -> None:
    sched = scheduler(budget=64)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(4), generate(max_tokens=20)))
    runner.step()
    sched.add(sequence(2, range(10, 15)))
    sched.add(sequence(3, range(20, 26), attend()))
    sched.add(sequence(4, range(30, 37), EmbedTask()))
    assert chunk_sizes(runner) == {1: 1, 2: 5, 3: 6, 4: 7}
    assert (sched.num_running, sched.num_waiting) == (2, 0)


def test_looks_take_a_few_tokens_of_each_step_while_text_is_generated() -> None:
    sched = scheduler(budget=64, look_tokens=3)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(4), generate(max_tokens=4)))
    runner.step()
    sched.add(sequence(2, range(20, 28), attend()))
    sched.add(sequence(3, range(30, 35), EmbedTask()))
    sched.add(sequence(4, range(40, 44), attend()))
    sched.add(sequence(5, range(50, 56), generate(max_tokens=2)))
    assert chunk_sizes(runner) == {1: 1, 2: 3, 3: 5, 5: 6}
    assert chunk_sizes(runner) == {1: 1, 2: 3, 5: 1}
    assert chunk_sizes(runner) == {1: 1, 2: 2, 4: 1}  # the streams end here
    assert chunk_sizes(runner) == {4: 3}


def test_a_step_with_text_may_have_no_tokens_for_looks_and_one_without_text_has_all() -> None:
    sched = scheduler(budget=64, look_tokens=3)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(4), generate(max_tokens=3)))
    runner.step()
    sched.add(sequence(2, range(20, 28), attend()))
    found = []
    for look_tokens in (0, 2, 0):
        schedule = sched.schedule(look_tokens)
        found.append({chunk.sequence.uid: chunk.num_tokens for chunk in schedule.chunks})
        sched.commit(schedule, runner.run(schedule))
    assert found == [{1: 1}, {1: 1, 2: 2}, {2: 6}]  # the stream ends with its third token


def test_looks_at_an_encoder_run_one_by_one_in_steps_that_have_tokens_for_looks() -> None:
    """Each is a whole pass of the encoder: several in one step held the streams up."""
    sched = scheduler(budget=64, look_tokens=3)
    runner = ToyRunner(sched)
    sched.add(sequence(0, [1, 2], generate(max_tokens=40), encoded=[3] * 5))
    runner.step()
    for uid in (1, 2, 3):
        sched.add(sequence(uid, [1, 2], attend_encoder(), encoded=[4] * 20))
    begun = []
    for look_tokens in (0, 3, 0, 0, 2, 0, 3):
        schedule = sched.schedule(look_tokens)
        begun.append([seq.uid for seq in schedule.encodes])
        assert 0 in [chunk.sequence.uid for chunk in schedule.chunks]
        sched.commit(schedule, runner.run(schedule))
    assert begun == [[], [1], [], [], [2], [], [3]]


def test_text_overtakes_the_looks_that_wait_for_a_seat() -> None:
    sched = scheduler(budget=64, look_tokens=2, max_num_seqs=4)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(4), generate(max_tokens=30)))
    runner.step()
    for uid in range(2, 8):
        sched.add(sequence(uid, range(10 * uid, 10 * uid + 4), attend()))
    assert chunk_sizes(runner) == {1: 1, 2: 2}
    sched.add(sequence(8, range(90, 93), generate(max_tokens=30)))
    assert chunk_sizes(runner) == {1: 1, 2: 2, 8: 3}
    assert [list(chunk_sizes(runner)) for _ in range(4)] == [[1, 8, 3], [1, 8, 3], [1, 8, 4], [1, 8, 4]]


def test_prompts_are_prefilled_in_order_of_arrival() -> None:
    sched = scheduler(budget=8)
    runner = ToyRunner(sched)
    for uid in (1, 2, 3):
        sched.add(sequence(uid, range(100 * uid, 100 * uid + 6), EmbedTask()))
    assert [chunk_sizes(runner) for _ in range(3)] == [{1: 6, 2: 2}, {2: 4, 3: 4}, {3: 2}]


def test_a_short_prompt_does_not_wait_until_a_long_one_is_read() -> None:
    sched = scheduler(budget=8)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(100, 180)))
    runner.step()
    sched.add(sequence(2, range(4), generate(max_tokens=3)))
    assert [chunk_sizes(runner) for _ in range(3)] == [{2: 4, 1: 4}, {2: 1, 1: 7}, {2: 1, 1: 7}]


def test_of_several_prompts_the_shortest_is_read_first_and_the_longest_goes_on() -> None:
    sched = scheduler(budget=16, num_blocks=200)
    runner = ToyRunner(sched)
    for uid, length in [(1, 300), (2, 100), (3, 6)]:
        sched.add(sequence(uid, range(1000 * uid, 1000 * uid + length), generate(max_tokens=1)))
    assert chunk_sizes(runner) == {3: 4, 2: 4, 1: 8}
    assert chunk_sizes(runner) == {3: 2, 2: 6, 1: 8}


def test_prompts_of_like_length_are_read_one_after_the_other_so_that_a_shared_beginning_is_read_once() -> None:
    sched = scheduler(budget=16)
    runner = ToyRunner(sched)
    seqs = [sequence(uid, [*range(30), uid], EmbedTask()) for uid in (1, 2)]
    for seq in seqs:
        sched.add(seq)
    assert [chunk_sizes(runner) for _ in range(2)] == [{1: 16}, {1: 15, 2: 1}]
    assert seqs[1].num_cached_tokens == 16


@given(length=st.integers(1, 120), shorts=st.lists(st.integers(1, 9), max_size=60), budget=st.integers(4, 16))
@example(length=116, shorts=[4], budget=7)  # each short one leaves its last token to the next step
def test_no_flood_of_short_prompts_makes_a_long_one_wait_for_more_than_twice_its_steps(
    length: int, shorts: list[int], budget: int
) -> None:
    sched = scheduler(budget=budget, max_num_seqs=3, num_blocks=400)
    runner = ToyRunner(sched)
    long = sequence(0, range(length), EmbedTask())
    sched.add(long)
    num_steps = 0
    while not long.is_finished:
        for uid, size in enumerate(shorts, start=1000 * (num_steps + 1)):
            sched.add(sequence(uid, [uid] * size, EmbedTask()))
        runner.step()
        num_steps += 1
    assert num_steps <= 2 * -(-length // budget)


def test_clients_take_turns_however_much_one_has_queued() -> None:
    sched = scheduler(max_num_seqs=1)
    runner = ToyRunner(sched)
    for uid in range(5):
        sched.add(sequence(uid, [uid] * 4, EmbedTask(), client="a"))
    ended = [seq.uid for seq in runner.step()]
    for uid, client in [(10, "b"), (11, "b"), (20, "c"), (12, "b")]:
        sched.add(sequence(uid, [uid] * 4, EmbedTask(), client=client))
    ended += [seq.uid for seq in runner.drain()]
    assert ended == [0, 10, 20, 1, 11, 2, 12, 3, 4]


@given(arrivals=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, max_size=40))
def test_nobody_waits_for_two_requests_of_another_client_that_came_after_it(arrivals: list[tuple[str, int]]) -> None:
    sched = scheduler(max_num_seqs=1)
    runner = ToyRunner(sched)
    ended: list[str] = []
    waited: dict[str, int] = {}
    """By the client of a first request: how many had ended when it came."""
    for uid, (client, num_steps) in enumerate(arrivals):
        if not any(seq.request.client == client for seq in sched.sequences):
            waited[client] = len(ended)
        sched.add(sequence(uid, [uid] * 3, EmbedTask(), client=client))
        for _ in range(num_steps):
            for seq in runner.step():
                ended.append(seq.request.client)
                check_turns(ended, seq.request.client, waited)
    for seq in runner.drain():
        ended.append(seq.request.client)
        check_turns(ended, seq.request.client, waited)


def check_turns(ended: list[str], client: str, waited: dict[str, int]) -> None:
    """The first request of a client since it had none: every other client had at most one turn in the meantime, and
    one that was under way.
    """
    if client in waited:
        between = ended[waited.pop(client) : -1]
        assert all(between.count(other) <= 2 for other in set(between)), between


def test_a_lower_priority_is_served_earlier_and_goes_to_those_who_run_last() -> None:
    sched = scheduler(max_num_seqs=1)
    runner = ToyRunner(sched)
    for uid, priority in [(1, 5), (2, 5), (3, 0), (4, -1), (5, 0)]:
        sched.add(sequence(uid, [uid] * 4, EmbedTask(), priority=priority))
    assert [seq.uid for seq in runner.drain()] == [4, 3, 5, 1, 2]


def test_who_came_first_is_preempted_for_one_of_an_earlier_priority_and_still_ends() -> None:
    sched = scheduler(num_blocks=7)
    runner = ToyRunner(sched)
    seqs = [
        sequence(uid, range(uid * 50, uid * 50 + 8), generate(max_tokens=12), priority=priority)
        for uid, priority in [(1, 1), (2, 0)]
    ]
    for seq in seqs:
        sched.add(seq)
    assert [seq.uid for seq in runner.drain()] == [2, 1]
    assert [seq.num_preemptions for seq in seqs] == [1, 0]
    for seq in seqs:
        assert seq.generated_token_ids == answer_alone(seq.request.prompt_token_ids, generate(max_tokens=12))


def test_seats_are_limited_and_filled_as_they_fall_free() -> None:
    sched = scheduler(max_num_seqs=2)
    runner = ToyRunner(sched)
    for uid in (1, 2, 3):
        sched.add(sequence(uid, range(100 * uid, 100 * uid + 4), generate(max_tokens=2)))
    assert chunk_sizes(runner) == {1: 4, 2: 4}
    assert (sched.num_running, sched.num_waiting) == (2, 1)
    assert chunk_sizes(runner) == {1: 1, 2: 1}
    assert chunk_sizes(runner) == {3: 4}


def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_room() -> None:
    sched = scheduler(num_blocks=6)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(8), generate(max_tokens=9)))
    runner.step()
    sched.add(sequence(2, range(100, 116), EmbedTask()))
    sched.add(sequence(3, range(4), EmbedTask()))
    assert [seq.uid for seq in runner.drain()] == [1, 2, 3]


def test_an_admission_leaves_room_for_running_sequences_to_grow() -> None:
    sched = scheduler(num_blocks=6)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(7), generate(max_tokens=5)))
    runner.step()
    sched.add(sequence(2, range(100, 112), generate(max_tokens=5)))
    assert [seq.uid for seq in runner.drain()] == [1, 2]
    assert sched.num_preemptions == 0


# --- preemption ---


def test_the_latest_arrival_is_preempted_and_finishes_with_the_answer_it_gives_alone() -> None:
    sched = scheduler(num_blocks=7)
    runner = ToyRunner(sched)
    seqs = [sequence(uid, range(uid * 50, uid * 50 + 8), generate(max_tokens=12)) for uid in (1, 2)]
    for seq in seqs:
        sched.add(seq)
    ended = runner.drain()
    assert [seq.uid for seq in ended] == [1, 2]
    assert [seq.num_preemptions for seq in seqs] == [0, 1]
    assert sched.num_preemptions == 1
    assert sched.block_manager.prefix_cache_queries == 16, "a preempted sequence was counted again"
    for seq in seqs:
        assert seq.generated_token_ids == answer_alone(seq.request.prompt_token_ids, generate(max_tokens=12))


def test_a_preempted_sequence_goes_before_those_that_never_ran() -> None:
    sched = scheduler(num_blocks=7, max_num_seqs=2)
    runner = ToyRunner(sched)
    for uid in (1, 2, 3):
        sched.add(sequence(uid, range(uid * 50, uid * 50 + 8), generate(max_tokens=12)))
    while not sched.num_preemptions:
        runner.step()
    assert [(seq.uid, seq.status.value) for seq in sched.sequences] == [(1, "running"), (2, "waiting"), (3, "waiting")]


def test_a_preempted_capture_is_not_repeated() -> None:
    sched = scheduler(num_blocks=8, max_num_seqs=2, budget=3)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(8), generate(max_tokens=20)))
    capturing = sequence(2, range(50, 66), attend())
    sched.add(capturing)
    while not capturing.num_preemptions:
        runner.step()
    assert 0 < len(runner.captured[2]) < 16
    runner.drain()
    assert runner.captured[2] == list(range(16))


# --- ends ---


def test_blocks_are_free_in_the_step_that_ends_a_sequence() -> None:
    sched = scheduler(num_blocks=9)
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(10), generate(max_tokens=1)))
    (ended,) = runner.step()
    assert (ended.finish_reason, ended.status) == ("length", SequenceStatus.FINISHED)
    assert sched.block_manager.num_free_blocks == 8


def test_a_stop_token_ends_generation() -> None:
    first, *_ = answer_alone(range(6), generate(max_tokens=5))
    sched = scheduler()
    sched.add(sequence(1, range(6), generate(max_tokens=5, stop=(first,))))
    (ended,) = ToyRunner(sched).drain()
    assert (ended.finish_reason, ended.generated_token_ids) == ("stop", [first])


def test_a_request_for_no_tokens_ends_with_its_prompt() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(6), generate(max_tokens=0)))
    (ended,) = ToyRunner(sched).drain(max_steps=2)
    assert (ended.finish_reason, ended.generated_token_ids) == ("length", [])


def test_an_aborted_sequence_is_gone_at_once_waiting_or_running() -> None:
    sched = scheduler(max_num_seqs=1)
    sched.add(sequence(1, range(10)))
    sched.add(sequence(2, range(10)))
    ToyRunner(sched).step()
    for uid in (1, 2):
        seq = sched.abort(uid)
        assert seq is not None
        assert (seq.finish_reason, seq.block_table) == ("abort", [])
    assert not sched.has_work
    assert sched.block_manager.usage == 0
    assert sched.abort(1) is None


def test_a_sequence_aborted_during_its_step_is_passed_over() -> None:
    sched = scheduler()
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(10)))
    sched.add(sequence(2, range(20, 30), generate(max_tokens=1)))
    schedule = sched.schedule()
    new_tokens = runner.run(schedule)
    sched.abort(1)
    assert [seq.uid for seq in sched.commit(schedule, new_tokens)] == [2]
    sched.check_integrity()


def test_a_sequence_past_its_deadline_is_ended_once_with_that_reason() -> None:
    sched = scheduler()
    runner = ToyRunner(sched)
    for uid, deadline in [(1, 30.0), (2, 10.0), (3, None), (4, 20.0)]:
        sched.add(sequence(uid, range(4), generate(max_tokens=50), deadline))
    runner.step()
    assert sched.expired(9.9) == []
    assert [(seq.uid, seq.finish_reason) for seq in sched.expired(20.0)] == [(2, "deadline"), (4, "deadline")]
    assert sched.expired(20.0) == []
    sched.abort(1)
    assert sched.expired(1e9) == []
    assert [seq.uid for seq in sched.sequences] == [3]


def test_deadlines_of_requests_that_ended_do_not_gather_while_others_run() -> None:
    sched = scheduler()
    sched.add(sequence(0, range(4), generate(max_tokens=50), 30.0))
    for uid in range(1, 2000):
        sched.add(sequence(uid, range(4), deadline=20.0))
        sched.abort(uid)
    assert len(sched._deadlines) < 1000
    assert [seq.uid for seq in sched.expired(25.0)] == []
    assert [seq.uid for seq in sched.expired(30.0)] == [0]


def test_a_deadline_dies_with_its_request_even_if_the_uid_lives_on() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(4), deadline=10.0))
    sched.add(sequence(2, range(4)))
    sched.abort(1)
    sched.add(sequence(1, range(4), deadline=20.0))
    assert sched.expired(15.0) == []
    assert [seq.uid for seq in sched.expired(25.0)] == [1]


def test_a_finished_sequence_keeps_its_first_reason_and_stays_finished() -> None:
    sched = scheduler()
    seq = sequence(1, range(4))
    sched.add(seq)
    sched.abort(1)
    heir = sequence(1, range(4))
    sched.add(heir)
    sched.finish(seq, "error")
    assert (seq.finish_reason, sched.sequences) == ("abort", [heir])


def test_a_step_that_forgets_a_sampled_token_is_refused() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(4)))
    with pytest.raises(ValueError, match=r"uid=1.*sampled token None"):
        sched.commit(sched.schedule(), {})


# --- refusals ---


def test_what_can_never_fit_is_refused_with_the_figures() -> None:
    sched = scheduler(num_blocks=4, block_size=4)
    sched.add(sequence(1, range(10), generate(max_tokens=3)))
    with pytest.raises(ValueError, match=r"room for 13 tokens \(4 blocks of 4\).*holds 12 tokens \(3 blocks\)"):
        sched.add(sequence(2, range(10), generate(max_tokens=4)))
    assert len(ToyRunner(sched).drain()) == 1


def test_a_uid_in_use_is_refused() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(4)))
    with pytest.raises(ValueError, match="uid 1 is already in use"):
        sched.add(sequence(1, range(4)))


@pytest.mark.parametrize(("max_num_seqs", "budget"), [(0, 16), (32, 16)])
def test_limits_that_contradict_each_other_are_refused(max_num_seqs: int, budget: int) -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)


# --- the prefix cache ---


def test_a_repeated_prompt_is_taken_from_the_cache_and_counted() -> None:
    sched = scheduler()
    runner = ToyRunner(sched)
    answers = []
    for uid in (1, 2):
        sched.add(sequence(uid, range(14), generate(max_tokens=6)))
        answers += [seq.generated_token_ids for seq in runner.drain()]
    assert answers[0] == answers[1]
    assert runner.num_tokens_run == 19 + 19 - 12
    assert (sched.block_manager.prefix_cache_queries, sched.block_manager.prefix_cache_hits) == (28, 12)


def test_an_answer_is_reused_by_the_next_turn_of_a_conversation() -> None:
    sched = scheduler()
    runner = ToyRunner(sched)
    first = sequence(1, range(6), generate(max_tokens=7))
    sched.add(first)
    runner.drain()
    second = sequence(2, [*first.token_ids, 1, 2, 3])
    sched.add(second)
    runner.drain()
    assert second.num_cached_tokens == 12  # of 13: the last token of the answer was never computed


def test_without_prefix_caching_everything_is_computed_and_nothing_counted() -> None:
    sched = scheduler(caching=False)
    runner = ToyRunner(sched)
    for uid in (1, 2):
        sched.add(sequence(uid, range(14), generate(max_tokens=1)))
        runner.drain()
    assert runner.num_tokens_run == 28
    assert (sched.block_manager.prefix_cache_queries, sched.block_manager.prefix_cache_hits) == (0, 0)


def test_a_capture_recomputes_what_the_cache_already_holds() -> None:
    sched = scheduler()
    runner = ToyRunner(sched)
    sched.add(sequence(1, range(16), EmbedTask()))
    sched.add(sequence(2, range(16), attend()))
    sched.add(sequence(3, range(16), attend(9)))
    runner.drain()
    sched.add(sequence(4, range(16), attend()))
    sched.add(sequence(5, range(16), attend(9)))
    runner.drain()
    assert runner.captured[4] == list(range(16))
    assert runner.captured[5] == list(range(8, 16))


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=2, max_size=5),
    budget=st.integers(8, 32),
)
def test_hits_are_exactly_what_earlier_requests_share(prompts: list[list[int]], budget: int) -> None:
    sched = scheduler(num_blocks=200, budget=budget)
    runner = ToyRunner(sched)
    computed: list[list[int]] = []
    for uid, prompt in enumerate(prompts):
        seq = sequence(uid, prompt, generate(max_tokens=3))
        shared = max((_num_common(prompt, earlier) for earlier in computed), default=0)
        sched.add(seq)
        runner.drain()
        assert seq.num_cached_tokens == min(shared, len(prompt) - 1) // 4 * 4
        computed.append(seq.token_ids[:-1])


def _num_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
