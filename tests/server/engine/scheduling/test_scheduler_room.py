"""Slots and blocks of sequences, preemption of sequences for others, and the tokens that the prefix cache saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.server.engine.messages.request import EmbedTask
from lightwell.server.engine.scheduling.scheduler import SchedulerConfig
from tests.server.engine.toy_runner import (
    ToyRunner,
    answer_alone,
    attend,
    chunk_sizes,
    generate,
    generated,
    scheduler,
    sequence,
    toy,
)

# --- admission ---


def test_seats_are_limited_and_filled_as_they_fall_free() -> None:
    sched, runner = toy(max_num_seqs=2)
    for uid in (1, 2, 3):
        sched.add(sequence(uid, range(100 * uid, 100 * uid + 4), generate(max_tokens=2)))
    assert chunk_sizes(runner) == {1: 4, 2: 4}
    assert (sched.num_running, sched.num_waiting) == (2, 1)
    assert chunk_sizes(runner) == {1: 1, 2: 1}
    assert chunk_sizes(runner) == {3: 4}


def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_room() -> None:
    sched, runner = toy(sequence(1, range(8), generate(max_tokens=9)), num_blocks=6)
    runner.step()
    sched.add(sequence(2, range(100, 116), EmbedTask()))
    sched.add(sequence(3, range(4), EmbedTask()))
    assert [seq.uid for seq in runner.drain()] == [1, 2, 3]


def test_an_admission_leaves_no_room_for_those_that_have_all_the_blocks_that_they_will_need() -> None:
    for max_tokens, sizes in [(2, {1: 1, 2: 8}), (3, {1: 1})]:  # the first computes 8 tokens, or 9
        sched, runner = toy(sequence(1, range(7), generate(max_tokens=max_tokens)), num_blocks=5)
        runner.step()
        sched.add(sequence(2, range(100, 108), EmbedTask()))
        assert chunk_sizes(runner) == sizes


def test_what_can_never_fit_is_refused_with_the_figures() -> None:
    sched = scheduler(num_blocks=4, block_size=4)
    sched.add(sequence(1, range(10), generate(max_tokens=3)))
    with pytest.raises(ValueError, match=r"room for 13 tokens \(4 blocks of 4\).*holds 12 tokens \(3 blocks\)"):
        sched.add(sequence(2, range(10), generate(max_tokens=4)))
    assert len(ToyRunner(sched).drain()) == 1


@pytest.mark.parametrize(("max_num_seqs", "budget"), [(0, 16), (32, 16)])
def test_limits_that_leave_a_sequence_without_its_token_are_refused(max_num_seqs: int, budget: int) -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)


# --- preemption ---


@pytest.mark.parametrize(("priorities", "preempted"), [((0, 0), 2), ((1, 0), 1)])
def test_the_last_in_rank_is_preempted_and_finishes_with_the_answer_it_gives_alone(
    priorities: tuple[int, int], preempted: int
) -> None:
    sched, runner = toy(num_blocks=7)
    seqs = [
        sequence(uid, range(uid * 50, uid * 50 + 8), generate(max_tokens=12), priority=priority)
        for uid, priority in enumerate(priorities, 1)
    ]
    for seq in seqs:
        sched.add(seq)
    assert [seq.uid for seq in runner.drain()] == [3 - preempted, preempted]
    assert [seq.num_preemptions for seq in seqs] == [int(seq.uid == preempted) for seq in seqs]
    assert sched.num_preemptions == 1
    assert sched.block_manager.prefix_cache_queries == 16, "a preempted sequence was counted again"
    for seq in seqs:
        assert generated(seq) == answer_alone(seq.request.prompt_token_ids, generate(max_tokens=12))


def test_a_preempted_capture_is_not_repeated() -> None:
    sched, runner = toy(sequence(1, range(8), generate(max_tokens=20)), num_blocks=8, max_num_seqs=2, budget=3)
    capturing = sequence(2, range(50, 66), attend())
    sched.add(capturing)
    while not capturing.num_preemptions:
        runner.step()
    assert 0 < len(runner.captured[2]) < 16
    runner.drain()
    assert runner.captured[2] == list(range(16))


# --- the prefix cache ---


def test_a_repeated_prompt_and_the_next_turn_of_a_conversation_are_taken_from_the_cache_and_counted() -> None:
    sched, runner = toy()
    seqs = [sequence(uid, range(14), generate(max_tokens=6)) for uid in (1, 2)]
    for seq in seqs:
        sched.add(seq)
        runner.drain()
    assert generated(seqs[0]) == generated(seqs[1])
    assert runner.num_tokens_run == 19 + 19 - 12
    assert (sched.block_manager.prefix_cache_queries, sched.block_manager.prefix_cache_hits) == (28, 12)
    turn = sequence(3, [*seqs[0].token_ids, 1, 2, 3])
    sched.add(turn)
    runner.drain()
    assert turn.num_cached_tokens == 16  # of 19: the last token of the answer was never computed


def test_a_block_that_is_shared_in_part_is_copied_to_the_block_of_its_positions() -> None:
    sched, runner = toy(sequence(1, range(10), EmbedTask()), copying=True)
    runner.drain()
    second = sequence(2, [*range(9), 98, 99], EmbedTask())
    sched.add(second)
    schedule = sched.schedule()
    assert schedule.copies == [(3, 4)]
    assert list(second.block_table) == [1, 2, 4]
    assert [(chunk.start, chunk.num_tokens) for chunk in schedule.chunks] == [(9, 2)]
    assert sched.block_manager.prefix_cache_hits == 8, "only whole blocks are counted"


def test_without_prefix_caching_everything_is_computed_and_nothing_counted() -> None:
    sched, runner = toy(caching=False)
    for uid in (1, 2):
        sched.add(sequence(uid, range(14), generate(max_tokens=1)))
        runner.drain()
    assert runner.num_tokens_run == 28
    assert (sched.block_manager.prefix_cache_queries, sched.block_manager.prefix_cache_hits) == (0, 0)


def test_a_capture_recomputes_what_the_cache_already_holds_and_does_not_count_as_looked_up() -> None:
    sched, runner = toy()
    for uid, task, queries in [(1, EmbedTask(), 16), (2, attend(), 16), (3, attend(9), 32)]:
        sched.add(sequence(uid, range(16), task))
        runner.drain()
        assert sched.block_manager.prefix_cache_queries == queries
    assert sched.block_manager.prefix_cache_hits == 8
    assert runner.captured[2] == list(range(16))
    assert runner.captured[3] == list(range(8, 16))


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=2, max_size=5),
    budget=st.integers(8, 32),
)
def test_hits_are_exactly_what_earlier_requests_share(prompts: list[list[int]], budget: int) -> None:
    sched, runner = toy(num_blocks=200, budget=budget)
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
