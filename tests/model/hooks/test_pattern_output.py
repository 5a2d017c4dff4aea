"""Patterns that attention writes as it computes them: the same bits as a capture of single rows, written only to their
place.
"""

import random

import pytest
import torch

from lightwell.model.kernels.attention import PatternOutput
from lightwell.model.layers.attention import CachedKV, NativeAttention
from tests.model.layers.attention_world import World

SENTINEL = 7.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pattern_dtype", [torch.float32, torch.float16])
def test_what_is_told_has_the_bits_of_a_look_at_rows_and_changes_nothing(
    dtype: torch.dtype, pattern_dtype: torch.dtype
) -> None:
    attention = NativeAttention()
    for _ in range(16):
        world = World(dtype)
        pieces = [(s, random.randrange(len(world.qkv[s])) if world.causal else 0, len(world.qkv[s])) for s in range(3)]
        world.step(attention, *world.whole(0, 1, 2))  # the keys before the pieces
        q, batch, key_range = world.step(attention, *pieces)
        expected = attention.attend(q, world.cache, batch, key_range, world.rule)
        table, rooms = PatternOutput(len(pieces), world.num_heads), {}
        for span in random.sample(range(3), random.randint(1, 3)):
            rows = range(batch.first_rows[span], batch.first_rows[span + 1])
            heads = random.sample(range(world.num_heads), random.randint(1, world.num_heads))
            num_keys = key_range.num_keys(span)
            answer = torch.full((len(heads) + 2, len(rows) + 3, num_keys + 5), SENTINEL, dtype=pattern_dtype)
            room = answer[1:-1, 2:-1, :num_keys]
            room.zero_()
            table.add(span, rows[0], heads, room)
            rooms[span] = answer, room, rows, heads
        found = attention.attend(q, world.cache, batch, key_range, world.rule, table)
        assert torch.equal(found, expected)
        for span, (answer, room, rows, heads) in rooms.items():
            pattern = attention.rows(q, rows, heads, CachedKV(world.cache, key_range, span), world.rule, "pattern")
            assert torch.equal(room, pattern.to(pattern_dtype)), world
            assert (answer == SENTINEL).sum() == answer.numel() - room.numel(), world
