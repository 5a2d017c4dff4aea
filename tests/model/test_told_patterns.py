"""Patterns that attention writes as it makes them: the bits of a look at single rows, where they belong and nowhere
else.
"""

import random

import numba
import numpy as np
import pytest
import torch

from model.layers.attention import CompiledAttention
from model.layers.told_kernels import store_half
from model.layers.told_table import ToldTable
from model.layers.vectors import LANES, load
from tests.model.test_attention import World

SENTINEL = 7.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("told_dtype", [torch.float32, torch.float16])
def test_what_is_told_has_the_bits_of_a_look_at_rows_and_changes_nothing(
    dtype: torch.dtype, told_dtype: torch.dtype
) -> None:
    attention = CompiledAttention()
    for _ in range(16):
        world = World(dtype)
        pieces = [(s, random.randrange(len(world.qkv[s])) if world.causal else 0, len(world.qkv[s])) for s in range(3)]
        world.step(attention, *world.whole(0, 1, 2))  # the keys before the pieces
        q, batch, sight = world.step(attention, *pieces)
        expected = attention.attend(q, world.cache, batch, sight, world.rule)
        table, rooms = ToldTable(len(pieces), world.num_heads), {}
        for span in random.sample(range(3), random.randint(1, 3)):
            rows = range(batch.first_rows[span], batch.first_rows[span + 1])
            heads = random.sample(range(world.num_heads), random.randint(1, world.num_heads))
            num_keys = sight.num_keys(span)
            answer = torch.full((len(heads) + 2, len(rows) + 3, num_keys + 5), SENTINEL, dtype=told_dtype)
            room = answer[1:-1, 2:-1, :num_keys]
            room.zero_()
            table.add(span, rows[0], heads, room)
            rooms[span] = answer, room, rows, heads
        found = attention.attend_and_tell(q, world.cache, batch, sight, world.rule, table)
        assert torch.equal(found, expected)
        for span, (answer, room, rows, heads) in rooms.items():
            pattern = attention.rows(q, rows, heads, world.cache, sight, span, world.rule, "pattern")
            assert torch.equal(room, pattern.to(told_dtype)), world
            assert (answer == SENTINEL).sum() == answer.numel() - room.numel(), world


@numba.njit
def halves(numbers, out):  # type: ignore[no-untyped-def]
    for i in range(0, len(numbers), LANES):
        store_half(out.ctypes.data + out.itemsize * i, load(numbers, i))


def test_numbers_are_rounded_to_float16_as_torch_rounds_them() -> None:
    """Every float16 up to 65504, what lies halfway between two of them, the float32 next to each; and no number."""
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    corners = np.concatenate((exact, (exact[:-1] + exact[1:]) / 2)).view(np.uint32)
    numbers = np.concatenate((corners, corners + 1, np.maximum(corners, 1) - 1)).view(np.float32)
    numbers = np.append(numbers[numbers <= 65504], np.float32(np.nan))
    numbers = np.append(numbers, np.zeros(-len(numbers) % LANES, np.float32))
    found = np.empty(len(numbers), np.uint16)
    halves(numbers, found)
    expected = torch.from_numpy(numbers).half()
    assert torch.equal(torch.from_numpy(found.view(np.float16)).nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))
    assert expected.isnan().sum() == 1
