"""Attention over the paged cache against a softmax written out in float64, and its bits at every level of CPU, in any
number of threads, in any batch and in chunks.

Every draw is fresh. The cache holds NaN wherever nothing was put, so that a read from outside the visible keys shows.

Axes: T rows, H query heads, K key heads, D head dimension, B keys to a block, S keys of one sequence.
"""

import math
import random

import numpy as np
import pytest
import torch

from lightwell.model.kernels import attention
from lightwell.model.kernels.attention import AttentionItems, PatternOutput, VisibleKeys
from tests.model.kernels.attention_world import SENTINEL, World
from tests.model.kernels.everywhere import everywhere

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@DTYPES
def test_attention_is_the_softmax_written_out(dtype: torch.dtype) -> None:
    bound = 2e-5 if dtype == torch.float32 else 1e-2
    for _ in range(25):
        world = World(dtype)
        out = world.attend()
        for sequence in range(world.num_sequences):
            found = out[world.rows_of(sequence)]
            assert (found - world.mixed(sequence)).abs().max() <= bound * (1 + world.v[sequence].abs().max()), world


@DTYPES
def test_rows_are_the_patterns_scores_and_dots_written_out(dtype: torch.dtype) -> None:
    for _ in range(15):
        world = World(dtype)
        rows, heads = world.some_rows_and_heads(1)
        own = [row - world.rows_of(1)[0] for row in rows]
        kinds: list[str] = ["pattern", "scores", "dots"]
        dots = world.dots(1).masked_fill(world.unseen(1), -math.inf)
        for kind, expected in zip(kinds, (world.pattern(1), world.scores(1), dots), strict=True):
            expected = expected[own][:, heads].transpose(0, 1)
            found, seen = world.rows(rows, heads, kind), expected > -math.inf
            assert torch.equal(found > -math.inf, seen)
            numbers = world.scores(1) if kind == "pattern" else expected  # a pattern errs as its scores do
            size = 1 + numbers.nan_to_num(0, 0, 0).abs().max()
            assert ((found[seen] - expected[seen]).abs() <= 5e-5 * size).all(), (world, kind)


@DTYPES
def test_rows_softmax_and_mix_are_the_steps_of_attend_bit_for_bit(dtype: torch.dtype) -> None:
    for _ in range(20):
        world = World(dtype)
        out = world.attend()
        sequence = random.randrange(world.num_sequences)
        rows, heads = world.some_rows_and_heads(sequence)
        pattern = world.rows(rows, heads, "pattern")
        if (world.first[rows] < world.last[rows]).all():
            sinks = None if world.rule["sinks"] is None else world.rule["sinks"][heads]
            assert torch.equal(attention.softmax_rows(world.rows(rows, heads, "scores"), sinks), pattern)
        assert torch.equal(world.mix(pattern, heads, sequence), out[rows][:, heads].transpose(0, 1))


@DTYPES
def test_a_row_has_the_same_bits_alone_and_in_tiles_of_any_size(dtype: torch.dtype) -> None:
    for _ in range(20):
        world = World(dtype)
        expected = world.attend()
        for most_rows in (1, random.randint(2, 12)):
            assert torch.equal(world.attend(world.items(most_rows)), expected), world


@DTYPES
def test_every_level_and_number_of_threads_gives_the_same_bits(dtype: torch.dtype) -> None:
    for _ in range(8):
        world = World(dtype)
        everywhere(lambda world=world: tuple(world.everything()))


@DTYPES
def test_nothing_out_of_sight_is_read_and_only_the_items_are_written(dtype: torch.dtype) -> None:
    for _ in range(15):
        world = World(dtype)
        expected = world.attend()
        rows = zip(world.owners, world.first, world.last, strict=True)
        seen = {(int(owner), key) for owner, first, last in rows for key in range(first, last)}
        for sequence, length in enumerate(world.lengths):
            for key in range(length):
                if (sequence, key) not in seen:
                    world.put(sequence, key, math.inf, math.nan)
        items = world.items()
        items = items[: random.randint(0, len(items))]
        found, written = world.attend(items), torch.zeros(world.q.shape, dtype=torch.bool)
        for _, row, num, head, num_heads in items:
            written[row : row + num, head * world.group : (head + num_heads) * world.group] = True
        assert torch.equal(found[written], expected[written])
        assert found[~written].eq(SENTINEL).all()


@DTYPES
@pytest.mark.parametrize("pattern_dtype", [torch.float32, torch.float16])
def test_what_is_told_has_the_bits_of_a_look_at_rows_and_changes_nothing(
    dtype: torch.dtype, pattern_dtype: torch.dtype
) -> None:
    for _ in range(15):
        world = World(dtype)
        world.q *= random.choice([0.1, 1, 50])  # from even patterns to patterns with tiny numbers
        expected, pattern_output, rooms = world.attend(), PatternOutput(world.num_sequences, world.num_heads), {}
        for sequence in random.sample(range(world.num_sequences), random.randint(1, world.num_sequences)):
            rows, num_keys = world.rows_of(sequence), world.lengths[sequence]
            _, heads = world.some_rows_and_heads(sequence)
            answer = torch.full((len(heads) + 2, len(rows) + 3, num_keys + 5), SENTINEL, dtype=pattern_dtype)
            room = answer[1:-1, 2:-1, :num_keys]
            room.zero_()
            assert not pattern_output.has(sequence)
            pattern_output.add(sequence, rows[0], heads, room)
            assert pattern_output.has(sequence)
            rooms[sequence] = answer, room, rows, heads
        assert torch.equal(world.attend(pattern_output=pattern_output), expected)
        for answer, room, rows, heads in rooms.values():
            assert torch.equal(room, world.rows(rows, heads, "pattern").to(pattern_dtype)), world
            assert (answer == SENTINEL).sum() == answer.numel() - room.numel(), world


def test_infinite_scores_and_no_numbers_make_rows_of_no_numbers_and_touch_no_others() -> None:
    for bad in (math.inf, math.nan):
        world = World(torch.float32, causal=False)
        expected = world.attend()
        row = random.randrange(len(world.q))
        world.q[row, 0, 0] = bad
        found = world.attend()
        rest = [other for other in range(len(world.q)) if other != row]
        assert torch.equal(found[rest], expected[rest])
        assert torch.equal(found[row, 1:], expected[row, 1:])
        capped = bad == math.inf and world.rule["softcap"] is not None
        if world.first[row] < world.last[row] and not capped:
            sequence = int(world.owners[row])
            scores = world.scores(sequence)[list(world.rows_of(sequence)).index(row), 0]
            if world.rule["sinks"] is not None and (scores == -math.inf).all():  # then the sink has the whole weight
                assert not found[row, 0].any()
            else:
                assert found[row, 0].isnan().all()


def test_a_softmax_of_rows_takes_any_number_of_keys_and_rows() -> None:
    for shape in [(3, 0, 5), (2, 3, 0), (0, 1, 1), (1, 1, 1), (3, 2, 16), (2, 5, 33), (1, 7, 500)]:
        scores = torch.randn(shape) * 5
        scores[..., :1] = -math.inf if shape[-1] > 1 else 0.5
        found = attention.softmax_rows(scores)
        assert found.shape == shape
        assert torch.allclose(found, torch.softmax(scores, -1), atol=1e-6)
        sinks = torch.randn(shape[0]) * 5
        found = attention.softmax_rows(scores, sinks)
        with_sinks = torch.cat((scores, sinks.view(-1, 1, 1).expand(*shape[:2], 1)), -1)
        assert torch.allclose(found, torch.softmax(with_sinks, -1)[..., :-1], atol=1e-6)


def test_what_does_not_fit_is_refused_by_name() -> None:
    world = World(torch.float32, group=2, dim=8, num_key_heads=2)
    out, items, seen = torch.empty_like(world.q), AttentionItems(world.items()), world.seen
    good = {"q": world.q, "keys": world.keys, "values": world.values, "seen": seen, "items": items, "out": out}
    rule = {**world.rule, "bias": None}
    beyond = world.items()
    beyond[0, 1] = len(world.q)
    for name, bad, says in [
        ("q", world.q.bfloat16(), "q is"),
        ("q", world.q[:, :-1], "q must be"),
        ("q", torch.cat([world.q, world.q]), "q has"),
        ("keys", world.keys.half(), "keys is"),
        ("keys", world.keys[:, :0].contiguous(), "q must be"),
        ("keys", world.keys[: seen.num_blocks - 1], "keys has"),
        ("values", world.values.bfloat16(), "values is"),
        ("values", world.values[..., :-1], "values is"),
        ("out", out.transpose(0, 1), "out is"),
        ("items", AttentionItems(beyond), "items must be within"),
    ]:
        with pytest.raises(ValueError, match=says):
            attention.attend(**{**good, name: bad}, **rule)
    for array, says in [
        (beyond.astype(np.int64), "items must be"),
        (beyond[:, :4].copy(), "items has 4 columns"),
        (-beyond - 1, "items must not be negative"),
        (beyond * np.array([1, 1, 0, 1, 1], np.int32), "items must not be negative and must have rows"),
    ]:
        with pytest.raises(ValueError, match=says):
            AttentionItems(array)
    if seen.longest > 1:
        short = torch.zeros(world.num_heads, 2 * seen.longest - 3)
        with pytest.raises(ValueError, match=f"reaches {seen.longest - 1} positions; a sequence has {seen.longest}"):
            attention.attend(**good, **{**rule, "bias": short})
    with pytest.raises(ValueError, match="pattern_output has shape"):
        attention.attend(**good, **rule, pattern_output=PatternOutput(1, 1))
    pattern_output, room = PatternOutput(1, 2), torch.zeros(1, 4, 4)
    with pytest.raises(ValueError, match="span is 1; 0 to 0"):
        pattern_output.add(1, 0, [0], room)
    with pytest.raises(ValueError, match="heads are from 2"):
        pattern_output.add(0, 0, [2], room)
    with pytest.raises(ValueError, match="room is for 1 heads; 2 are chosen"):
        pattern_output.add(0, 0, [0, 1], room)
    with pytest.raises(ValueError, match="last contains"):
        VisibleKeys(world.tables, world.positions, world.first, world.last + 1000, world.block_size)
    with pytest.raises(ValueError, match="tables contains block -1"):
        VisibleKeys(np.full_like(world.tables, -1), world.positions, world.first, world.last, world.block_size)
    with pytest.raises(ValueError, match="heads are from"):
        world.rows([0], [world.num_heads], "dots")
    with pytest.raises(ValueError, match="kind is"):
        world.rows([0], [0], "softmax")
    with pytest.raises(ValueError, match="key_heads are from"):
        attention.mix_rows(torch.zeros(1, 1, 1), [world.num_key_heads], world.values, seen, 0)
