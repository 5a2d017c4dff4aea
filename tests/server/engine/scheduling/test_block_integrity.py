"""The integrity check of the block pool: it finds each kind of wrong entry."""

from collections.abc import Callable

import pytest

from lightwell.server.engine.scheduling.block_manager import NULL_BLOCK, BlockManager
from lightwell.server.engine.sequence import Sequence
from tests.server.engine.toy_runner import computed, sequence

BLOCK_SIZE = 4


def _busy_manager() -> tuple[BlockManager, list[Sequence]]:
    """Return blocks of every kind: two sequences that share a prefix, one that left, some blank; nothing is wrong."""
    blocks = BlockManager(16, BLOCK_SIZE, copies_blocks=True)
    first = computed(blocks, sequence(1, range(10)))
    second = computed(blocks, sequence(2, [*range(8), 50, 51]))
    blocks.free(computed(blocks, sequence(3, range(60, 68))))
    blocks.check_integrity([first, second])
    assert first.block_table[:2] == second.block_table[:2]
    assert blocks.num_cached_blocks == 2
    return blocks, [first, second]


def _swap_prefixes(blocks: BlockManager, held: list[Sequence]) -> None:
    one, two = held[0].block_table[:2]
    notes, index = blocks._hash_of_block, blocks._block_of_hash
    notes[one], notes[two] = notes[two], notes[one]
    for block in (one, two):
        digest = notes[block]
        assert digest is not None
        index[digest] = block


def _hold_twice(blocks: BlockManager, held: list[Sequence]) -> None:
    table = held[0].block_table
    table.append(table[2])
    blocks._num_holders[table[2]] = 2


def _write_to_another(blocks: BlockManager, held: list[Sequence]) -> None:
    own, other = held[0].block_table[2], held[1].block_table[2]
    blocks._blank.append(own)
    blocks._num_holders[own] = 0
    held[0].block_table[2] = other
    blocks._num_holders[other] = 2


CORRUPTIONS: dict[str, Callable[[BlockManager, list[Sequence]], object]] = {
    "a blank block is lost": lambda blocks, held: blocks._blank.pop(),
    "a blank block is there twice": lambda blocks, held: blocks._blank.append(blocks._blank[0]),
    "a blank block passes for cached": lambda blocks, held: blocks._cached.update({blocks._blank.pop(): None}),
    "a held block is free": lambda blocks, held: blocks._blank.append(held[0].block_table[2]),
    "a holder too many": lambda blocks, held: blocks._num_holders.__setitem__(held[0].block_table[2], 2),
    "fewer than no holders": lambda blocks, held: blocks._num_holders.__setitem__(blocks._blank[0], -1),
    "the null block is held": lambda blocks, held: blocks._num_holders.__setitem__(NULL_BLOCK, 1),
    "a book is too short": lambda blocks, held: blocks._hash_of_block.pop(),
    "the null block has a prefix": lambda blocks, held: blocks._hash_of_block.__setitem__(NULL_BLOCK, b"x"),
    "a prefix is not in the index": lambda blocks, held: blocks._block_of_hash.popitem(),
    "a prefix too many in the index": lambda blocks, held: blocks._block_of_hash.update({b"x": held[0].block_table[0]}),
    "a block forgot its prefix": lambda blocks, held: blocks._hash_of_block.__setitem__(held[0].block_table[0], None),
    "two blocks changed prefixes": _swap_prefixes,
    "a table took another's block": lambda blocks, held: held[0].block_table.append(held[1].block_table[2]),
    "a table holds a block twice": _hold_twice,
    "a table goes on in another's block": _write_to_another,
    "more is published than is held": lambda blocks, held: setattr(held[0], "num_published_blocks", 4),
    "more is published than was computed": lambda blocks, held: setattr(held[0], "num_published_blocks", 3),
    "less is published than is shared": lambda blocks, held: setattr(held[0], "num_published_blocks", 1),
    "more is computed than has blocks": lambda blocks, held: setattr(held[0], "num_computed_tokens", 13),
    "more was found than was looked up": lambda blocks, held: setattr(blocks, "prefix_cache_hits", 1),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_the_integrity_check_finds(what: str) -> None:
    blocks, held = _busy_manager()
    CORRUPTIONS[what](blocks, held)
    with pytest.raises(AssertionError):
        blocks.check_integrity(held)
