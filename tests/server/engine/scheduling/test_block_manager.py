"""Blocks have one owner or an exact count of owners, and a prefix hit counts exactly the shared tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.server.engine.scheduling.block_manager import BlockManager
from tests.server.engine.toy_runner import computed, sequence

BLOCK_SIZE = 4


def test_a_refused_allocation_changes_nothing() -> None:
    blocks = BlockManager(4, BLOCK_SIZE)
    first, second = sequence(1, range(8)), sequence(2, range(8))
    assert blocks.allocate(first, 8)
    assert not blocks.allocate(second, 8)
    assert not blocks.allocate(second, 4, keep_free=1)
    assert not second.block_table
    assert blocks.num_free_blocks == 1
    blocks.check_integrity([first, second])
    blocks.free(computed(blocks, first))
    third = sequence(3, range(13))
    assert not blocks.allocate(third, 13, num_hit_tokens=blocks.match_prefix(third))  # the hits are free blocks too
    blocks.check_integrity([third])


@given(
    old=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6),
    new=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    lives=st.booleans(),
    copies=st.booleans(),
)
def test_a_hit_is_the_longest_beginning_that_any_block_holds_without_copies_in_whole_blocks(
    old: list[list[int]], new: list[int], lives: bool, copies: bool
) -> None:
    blocks = BlockManager(64, BLOCK_SIZE, copies_blocks=copies)
    holders = [computed(blocks, sequence(uid, prompt)) for uid, prompt in enumerate(old)]
    contents = {
        block: holder.token_ids[BLOCK_SIZE * i : BLOCK_SIZE * (i + 1)]
        for holder in holders
        for i, block in enumerate(holder.block_table)
    }
    for holder in holders if not lives else ():
        blocks.free(holder)
    # A block that is not full yet belongs to one owner only, which writes to it while it runs.
    kept = [prompt[: len(prompt) // BLOCK_SIZE * BLOCK_SIZE] if lives else prompt for prompt in old]
    shared = [
        next((i for i, (a, b) in enumerate(zip(p, new, strict=False)) if a != b), min(len(p), len(new))) for p in kept
    ]
    expected = min(max(shared), len(new) - 1)
    expected = expected if copies else expected // BLOCK_SIZE * BLOCK_SIZE

    seq = sequence(99, new)
    hit = blocks.match_prefix(seq)
    part = blocks.match_part(seq, hit)
    assert hit + (0 if part is None else part.num_tokens) == expected
    if part is not None:
        assert contents[part.block][: part.num_tokens] == new[hit:expected]
    assert blocks.allocate(seq, len(new), num_hit_tokens=hit)
    assert [token for block in seq.block_table[: hit // BLOCK_SIZE] for token in contents[block]] == new[:hit]
    seq.num_computed_tokens = expected
    blocks.check_integrity([*holders, seq])


def test_of_a_block_that_is_given_to_another_sequence_nothing_is_found_any_more() -> None:
    blocks = BlockManager(4, BLOCK_SIZE, copies_blocks=True)
    blocks.free(computed(blocks, sequence(1, range(10))))
    assert blocks.match_part(sequence(2, [*range(9), 50, 51]), 8) is not None
    assert blocks.allocate(sequence(3, range(60, 72)), 12)
    assert blocks.match_part(sequence(4, [*range(9), 50, 51]), 8) is None
    assert blocks.match_part(sequence(5, [0, 1, 50]), 0) is None


def test_a_block_that_was_found_in_part_is_evicted_after_those_that_were_not() -> None:
    blocks = BlockManager(4, BLOCK_SIZE, copies_blocks=True)
    for uid in (1, 2, 3):
        blocks.free(computed(blocks, sequence(uid, range(10 * uid, 10 * uid + 4))))
    assert blocks.match_part(sequence(4, [10, 11, 99]), 0) is not None
    assert blocks.allocate(sequence(5, range(60, 68)), 8)
    assert [blocks.match_prefix(sequence(6, range(10 * uid, 10 * uid + 5))) for uid in (1, 2, 3)] == [4, 0, 0]


def test_the_same_tokens_after_another_beginning_are_no_hit() -> None:
    blocks = BlockManager(16, BLOCK_SIZE, copies_blocks=True)
    computed(blocks, sequence(1, [1, 1, 1, 1, 2, 2, 2, 2]))
    for prompt in ([2, 2, 2, 2, 0], [0, 0, 0, 0, 2, 2, 2, 2, 0]):
        assert blocks.match_prefix(sequence(2, prompt)) == 0
        assert blocks.match_part(sequence(2, prompt), 0) is None


def test_a_prefix_computed_twice_is_kept_once() -> None:
    blocks = BlockManager(16, BLOCK_SIZE)
    first = computed(blocks, sequence(1, range(8)))
    twin = sequence(2, range(8))
    assert blocks.allocate(twin, 8)
    twin.num_computed_tokens = 8
    blocks.publish(twin)
    blocks.check_integrity([first, twin])
    heir = sequence(3, range(9))
    assert blocks.allocate(heir, 9, num_hit_tokens=blocks.match_prefix(heir))
    assert heir.block_table[:2] == first.block_table
    for seq in (twin, first, heir):
        blocks.free(seq)
    blocks.check_integrity([])
    assert blocks.num_free_blocks == 15


def test_used_blank_blocks_are_taken_first_then_unused_ones_then_the_least_recently_used_prefix_from_its_end() -> None:
    blocks = BlockManager(10, BLOCK_SIZE)
    assert blocks.num_committed_blocks == 0
    old, recent = computed(blocks, sequence(1, range(8))), computed(blocks, sequence(2, range(10, 18)))
    blank = sequence(3, range(50, 58))
    assert blocks.allocate(blank, 8)
    for seq in (old, recent, blank):  # the last one computed nothing, so its blocks are blank again
        blocks.free(seq)
    assert blocks.num_committed_blocks == 6
    taker = sequence(4, range(60, 96))
    committed, hits = [], []
    for num_blocks in range(1, 10):
        assert blocks.allocate(taker, num_blocks * BLOCK_SIZE)
        committed.append(blocks.num_committed_blocks)
        hits.append([blocks.match_prefix(sequence(5, range(first, first + 9))) for first in (0, 10)])
        blocks.check_integrity([taker])
    assert taker.block_table.tolist() == [5, 6, 7, 8, 9, 2, 1, 4, 3]
    assert committed == [6, 6, 7, 8, 9, 9, 9, 9, 9]
    assert hits == [*[[8, 8]] * 5, [4, 8], [0, 8], [0, 4], [0, 0]]
    assert (blocks.num_free_blocks, blocks.usage) == (0, 1.0)


def test_the_blocks_of_what_an_encoder_read_are_taken_once_and_given_back() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    seq = sequence(1, range(8), encoded=range(5))
    for num_tokens, num_blocks in [(1, 1), (4, 1), (5, 2), (8, 2)]:
        assert blocks.allocate(seq, num_tokens)
        assert (len(seq.block_table), len(seq.cross_block_table)) == (num_blocks, 2)
    assert not blocks.allocate(sequence(2, range(4), encoded=range(12)), 4)
    blocks.check_integrity([seq])
    blocks.free(seq)
    assert (len(seq.cross_block_table), blocks.num_free_blocks) == (0, 7)


def test_each_sequence_has_two_states_of_its_own_while_it_has_blocks() -> None:
    blocks = BlockManager(8, BLOCK_SIZE, num_sequences=2)
    first, second, third = (sequence(uid, range(8)) for uid in (1, 2, 3))
    assert blocks.allocate(first, 4)
    assert blocks.num_committed_states == 2
    assert blocks.allocate(second, 4)
    states = first.states
    assert sorted([*first.states, *second.states]) == [1, 2, 3, 4]
    assert not blocks.allocate(third, 4)
    assert (len(third.block_table), blocks.num_free_blocks) == (0, 5)
    assert blocks.allocate(first, 8)
    assert first.states == states
    blocks.check_integrity([first, second])
    blocks.free(first)
    blocks.free(first)
    assert blocks.allocate(third, 4)
    assert third.states == states
    assert blocks.num_committed_states == 4
    blocks.check_integrity([second, third])


def test_a_prefix_is_of_one_adapter_one_salt_and_of_what_the_encoder_read() -> None:
    blocks = BlockManager(32, BLOCK_SIZE, copies_blocks=True)
    encoded, salted = ({"encoded": (1, 2)}, {"encoded": (2, 1)}), ({"cache_salt": "a"}, {"cache_salt": "b"})
    kinds = ({}, {"adapter": 1}, {"adapter": 2}, *encoded, *salted, {"adapter": 1, "cache_salt": "a"})
    for uid, options in enumerate(kinds):
        first, again = (sequence(uid + more, range(9), **options) for more in (0, 10))
        assert (blocks.match_prefix(first), blocks.match_part(first, 0)) == (0, None)
        blocks.free(computed(blocks, first))
        assert blocks.match_prefix(again) == 8
        assert blocks.match_part(sequence(uid + 20, range(3), **options), 0) is not None


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 32), (0, 32), (8, 0)])
def test_a_cache_without_room_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        BlockManager(num_blocks, block_size)
