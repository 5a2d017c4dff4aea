"""Attention on a card: against a softmax written out in float64, and equal bits in any batch and in chunks.

Triton interprets the kernels, or a card runs them where there is one. Every draw is fresh. The cache holds NaN wherever
nothing was put, so that a read from outside the visible keys shows.
"""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.kernels.attention_world import SENTINEL, World

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
from lightwell.model.kernels.cuda import attention_pieces, paged_attention
from lightwell.model.kernels.cuda.attention_shapes import PAIRS, TILE_ROWS
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.cuda.paged_keys import Arrivals, PagedKeys, Parts, PatternRows

DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 1e-2}  # as for the CPU's kernel: drawn scores may be large
WORLDS: dict[str, dict[str, Any]] = {
    "causal": {"dtype": torch.float32, "causal": True, "window": math.inf, "group": 3, "dim": 20, "block_size": 32},
    "window": {"dtype": torch.bfloat16, "causal": True, "window": 21, "group": PAIRS + 2, "dim": 64, "block_size": 48},
    "all": {"dtype": torch.float32, "causal": False, "window": math.inf, "group": 2, "dim": 80, "block_size": 16},
    "around": {"dtype": torch.float32, "causal": False, "window": 9, "group": 1, "dim": 16, "block_size": 16},
}
"""Worlds by the keys that a row sees. Heads fill programs or not, steps read one block or several."""
CAPPED, BIASED, SINKING = ("causal", "all"), ("window", "all"), ("window", "around")
MORE = ("causal", "around", *(f"drawn {i}" for i in range(6)))
each_world = pytest.mark.parametrize(
    "name", ["window", "all", *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)
ARRIVALS = Arrivals()
"""The counters of all launches here, as in a network: each launch must leave them unchanged."""


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces small, so that a short text has many, of several sizes; programs are few, so that each has some."""
    monkeypatch.setattr(paged_attention, "PIECE", 64)
    monkeypatch.setattr(paged_attention, "SHARES", random.choice([1, 6]))
    monkeypatch.setattr(attention_pieces, "PER_LEVEL", 2)


def some_world(name: str) -> World:
    """Return a world of `WORLDS`, or one that is drawn."""
    sizes: dict[str, Any] = {"num_sequences": 2, "may_be_blind": False}
    if name in WORLDS:
        world = World(**WORLDS[name], **sizes, num_key_heads=1 if name == "window" else 2, lengths=[83, 18])
        world.rule["softcap"] = 5.0 if name in CAPPED else None
        world.rule["bias"] = torch.randn(world.num_heads, 2 * 83 - 1) if name in BIASED else None
        world.rule["sinks"] = torch.randn(world.num_heads) * 5 if name in SINKING else None
    else:
        dim = random.choice([64, 128, 256, random.choice([8, 20, 80, 96])])
        group, block_size = random.choice([1, 2, 3, 4, 7, 8, PAIRS + 2]), random.choice([16, 32, 48])
        world = World(random.choice([*BOUNDS]), **sizes, group=group, dim=dim, block_size=block_size)
    world.q = world.q.to(world.dtype).float()
    return world


def on_device(numbers: object) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.array(numbers, np.int32))).to(DEVICE)


def paged_keys(world: World) -> PagedKeys:
    """Return the keys of a world, with its blocks one after the other, including the padding between the tables."""
    starts = np.arange(world.num_sequences) * world.tables.shape[1]
    window = None if world.window == math.inf else int(world.window)
    return PagedKeys(
        on_device(world.tables.ravel()),
        on_device(starts),
        on_device(world.lengths),
        on_device(world.positions),
        causal=world.causal,
        window=window,
    )


def few(world: World) -> int:
    """Return a number of rows that takes little time."""
    return max(2, min(6, 48 // world.num_heads))


def some_rows(world: World, most: int) -> list[int]:
    """Return up to `most` neighbouring rows of each sequence."""
    rows: list[int] = []
    for sequence in range(world.num_sequences):
        own = world.rows_of(sequence)
        first = random.choice([0, random.randrange(len(own)), max(0, len(own) - most)])
        rows += own[first : first + most]
    return rows


def tiles_of(world: World, rows: list[int], most_rows: int) -> torch.Tensor:
    """Return tiles of up to `most_rows` rows, in any order, with one of padding among them."""
    found = [(0, 0, 0)]
    for sequence in range(world.num_sequences):
        own = [row for row in rows if world.owners[row] == sequence]
        found += [(sequence, own[i], min(most_rows, len(own) - i)) for i in range(0, len(own), most_rows)]
    random.shuffle(found)
    return on_device(found)


class Asked:
    """Rows and heads with requested patterns, and the buffers for these patterns."""

    def __init__(self, world: World, rows: list[int]) -> None:
        num_rows, heads = len(world.positions), world.num_heads
        self.pairs = [(row, head) for row in rows for head in range(heads) if random.random() < 0.3]
        rows = sorted({row for row, _ in self.pairs})
        slots = np.full((len(rows), heads), -1, np.int32)
        row_slots, starts, strides = np.full(num_rows, -1), np.zeros(num_rows), np.zeros(num_rows)
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        end = random.choice([0, 3])
        for i, row in enumerate(rows):
            row_slots[row], starts[row] = i * heads, end
            own = [head for r, head in self.pairs if r == row]
            length = world.lengths[world.owners[row]]
            strides[row] = length + random.choice([0, 5])
            for slot, head in enumerate(own):
                slots[i, head] = slot
                self.places[row, head] = (int(end + slot * strides[row]), length)
            end += int(len(own) * strides[row])
        self.room = torch.full((end + 7,), SENTINEL, device=DEVICE)
        self.rows = PatternRows(
            on_device(slots.ravel()), on_device(row_slots), on_device(starts), on_device(strides), self.room
        )

    def check(self, world: World, bound: float) -> None:
        """Check each pattern, and that nothing was written outside of them."""
        left = self.room.cpu().clone()
        for (row, head), (start, length) in self.places.items():
            sequence = int(world.owners[row])
            expected = world.pattern(sequence)[row - world.rows_of(sequence)[0], head]
            assert (left[start : start + length] - expected).abs().max() <= bound, world
            left[start : start + length] = SENTINEL
        assert (left == SENTINEL).all()


def attend(world: World, rows: list[int], *, are_single: bool, asked: Asked | None = None) -> torch.Tensor:
    """Return the attention [rows, H, D] of these rows, each in a call of its own or in tiles of any size."""
    tiles = tiles_of(world, rows, 1 if are_single else random.choice((5, 11, TILE_ROWS)))
    out = torch.full(world.q.shape, SENTINEL, dtype=world.dtype, device=DEVICE)
    if are_single:
        num_pieces = paged_attention.num_pieces(max(world.lengths))
        parts = Parts.of_single_rows(len(tiles), world.num_heads, num_pieces, world.dim, DEVICE, ARRIVALS)
    else:
        num_rows = 0 if asked is None else len(world.q)
        parts = Parts.of_tiles(len(tiles), num_rows, world.num_heads, world.dim, DEVICE)
    for numbers in (parts.z, parts.m, parts.l):
        numbers.fill_(math.nan)
    rule: dict[str, Any] = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in world.rule.items()}
    paged_attention.paged_attention(
        world.q.to(DEVICE, world.dtype),
        world.keys.transpose(2, 3).contiguous().to(DEVICE),
        world.values.to(DEVICE),
        paged_keys(world),
        tiles,
        parts,
        out,
        are_single=are_single,
        patterns=None if asked is None else asked.rows,
        **rule,
    )
    return out.cpu()[rows]


@each_world
@pytest.mark.parametrize("are_single", [True, False])
def test_attention_is_the_softmax_written_out(name: str, are_single: bool) -> None:
    world = some_world(name)
    bound = BOUNDS[world.dtype]
    rows = some_rows(world, few(world) if are_single else TILE_ROWS + 2)
    asked = Asked(world, rows)
    found = attend(world, rows, are_single=are_single, asked=asked)
    for sequence in range(world.num_sequences):
        first = world.rows_of(sequence)[0]
        places = [i for i, row in enumerate(rows) if world.owners[row] == sequence]
        expected = world.mixed(sequence)[[rows[i] - first for i in places]]
        assert (found[places] - expected).abs().max() <= bound * (1 + world.v[sequence].abs().max()), world
    asked.check(world, bound)


@each_world
def test_a_row_has_the_same_bits_in_any_tile_and_in_pieces_and_whether_or_not_it_is_looked_at(name: str) -> None:
    world = some_world(name)
    rows = some_rows(world, few(world))
    expected = attend(world, rows, are_single=True)
    assert torch.equal(attend(world, rows, are_single=False), expected), world
    assert torch.equal(attend(world, rows, are_single=False, asked=Asked(world, rows)), expected), world
    assert torch.equal(attend(world, rows, are_single=True, asked=Asked(world, rows)), expected), world


def test_pieces_follow_each_other_without_a_gap() -> None:
    begins = [attention_pieces.piece_begin(piece, 32) for piece in range(12)]
    assert begins == [0, 32, 64, 192, 320, 832, 1344, 3392, 5440, 7488, 9536, 11584]
    assert [attention_pieces.num_pieces(n, 32) for n in (0, 1, 32, 33, 64, 65, 320, 321)] == [0, 1, 1, 2, 2, 3, 4, 5]
