"""Attention of many sequences in one operation equals the attention of one sequence at a time."""

import math
import random
from dataclasses import replace

import pytest
import torch

from lightwell.model.layers import batched_attention
from lightwell.model.layers.attention import AttentionRule
from lightwell.model.layers.batched_attention import BatchedAttention
from tests.model.layers.attention_world import World, mixed, scores_of

BOUNDS = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_the_softmax_written_out(dtype: torch.dtype, causal: bool) -> None:
    """Compare prompts, whole and in chunks, among rows that decode."""
    attention = BatchedAttention()
    for _ in range(6):
        world = World(dtype, causal=causal, num_sequences=6)
        if dtype == torch.bfloat16:  # dots are rounded to 8 bits: only small scores are accurate
            world.rule = replace(world.rule, scale=0.1 * world.dim**-0.5, bias=None)
        found: list[list[torch.Tensor]] = [[] for _ in range(6)]
        done = [0] * 6
        if not causal:  # a row sees later rows: only whole sequences
            for s, out in enumerate(world.attend(attention, *world.whole(*range(6)))):
                found[s].append(out)
                done[s] = len(out)
        while waiting := [s for s in range(6) if done[s] < len(world.qkv[s])]:
            pieces = []
            for s in random.sample(waiting, random.randint(1, len(waiting))):
                rows = random.choice([1, 1, random.randint(1, len(world.qkv[s]) - done[s])])
                pieces.append((s, done[s], done[s] + rows))
            for (s, _, stop), out in zip(pieces, world.attend(attention, *pieces), strict=True):
                found[s].append(out)
                done[s] = stop
        for s in range(6):
            v = world.parts(s)[2]
            expected = mixed(scores_of(world, s), v, world.rule.sinks)
            assert (torch.cat(found[s]) - expected).abs().max() <= BOUNDS[dtype] * (1 + v.abs().max()), world


@pytest.mark.parametrize("dtype", BOUNDS)
def test_whole_prompts_of_many_lengths_are_read_together(dtype: torch.dtype) -> None:
    """Put NaN after a prompt's end in its last block, while others decode or are read in chunks in the same step."""
    for _ in range(4):
        world = World(dtype, causal=True, num_sequences=9)
        world.window, world.rule = None, AttentionRule(0.2 * world.dim**-0.5)
        first = [
            world.attend(BatchedAttention(), (s, 0, cut))[0] for s, cut in ((0, 1), (1, len(world.qkv[1]) // 2 or 1))
        ]
        begun = [(s, len(first[s]), len(world.qkv[s])) for s in (0, 1) if len(first[s]) < len(world.qkv[s])]
        pieces = [*begun, *world.whole(*range(2, 9))]
        random.shuffle(pieces)
        for (s, start, _), out in zip(pieces, world.attend(BatchedAttention(), *pieces), strict=True):
            v = world.parts(s)[2]
            expected = mixed(scores_of(world, s), v, world.rule.sinks)[start:]
            assert (out - expected).abs().max() <= BOUNDS[dtype] * (1 + v.abs().max()), (s, start)


def test_rows_are_taken_in_pieces_where_their_keys_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(torch.float64, causal=True, num_sequences=7)
    for s in range(7):
        world.attend(BatchedAttention(), (s, 0, len(world.qkv[s])))
    pieces = [(s, len(world.qkv[s]) - 1, len(world.qkv[s])) for s in range(7)]
    together = world.attend(BatchedAttention(), *pieces)
    monkeypatch.setattr(batched_attention, "GATHER_BYTES", 1)
    for one, expected in zip(world.attend(BatchedAttention(), *pieces), together, strict=True):
        assert torch.allclose(one, expected, rtol=1e-12, atol=1e-12)


def test_what_others_left_in_a_block_reaches_nobody() -> None:
    """Check that infinities left in a block, which is not wiped before its next owner has it, do not reach that
    owner.
    """
    world = World(torch.float64, causal=True)
    last = len(world.qkv[0]) - 1
    attention = BatchedAttention()
    world.attend(attention, *world.whole(0))
    expected = world.attend(attention, (0, last, last + 1))[0]
    assert expected.isfinite().all()
    places = set(range(len(world.tables[0]) * world.block_size)) - set(range(last + 1))
    for place in places:
        block = world.tables[0][place // world.block_size]
        world.cache.keys[block, :, :, place % world.block_size] = random.choice([math.inf, -math.inf, math.nan])
        world.cache.values[block, :, place % world.block_size] = random.choice([math.inf, -math.inf, math.nan])
    assert torch.equal(world.attend(attention, (0, last, last + 1))[0], expected)
