"""Attention against a softmax written out in float64, and its bits alone, among others and in chunks.

Every draw is fresh: shapes, block sizes, windows, caps, biases. The cache holds NaN wherever nothing was put, so that a
number read from outside a sequence shows.

Axes: n positions of one sequence, H query heads, K key heads, D head dimension, S keys.
"""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from model.batch import Batch, KeyRange, Span
from model.config import RopeConfig
from model.kv_cache import LayerCache
from model.layers.attention import (
    Attention,
    AttentionRule,
    NativeAttention,
    PlainAttention,
    cached_keys,
    cached_values,
)
from model.layers.attention_arithmetic import InvariantArithmetic
from model.layers.rope import Rope

CPU = torch.device("cpu")
Kind = Callable[[], Attention]


def invariant() -> Attention:
    return PlainAttention(InvariantArithmetic())


KINDS = [
    pytest.param(NativeAttention, torch.float32, 2e-5, id="native float32"),
    pytest.param(NativeAttention, torch.bfloat16, 2e-2, id="native bfloat16"),
    pytest.param(PlainAttention, torch.float64, 1e-11, id="plain float64"),
    pytest.param(PlainAttention, torch.float32, 2e-5, id="plain float32"),
    pytest.param(invariant, torch.float64, 1e-11, id="invariant float64"),
    pytest.param(invariant, torch.float16, 4e-3, id="invariant float16"),
]
BATCH_INVARIANT = pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(NativeAttention, torch.float32, id="native float32"),
        pytest.param(NativeAttention, torch.bfloat16, id="native bfloat16"),
        pytest.param(invariant, torch.float64, id="invariant float64"),
        pytest.param(invariant, torch.float32, id="invariant float32"),
        pytest.param(invariant, torch.float16, id="invariant float16"),
    ],
)


@dataclass
class World:
    """Random sequences, who sees whom, and an empty cache with room for all of them."""

    dtype: torch.dtype
    causal: bool = field(default_factory=lambda: random.random() < 0.5)
    num_sequences: int = 4

    def __post_init__(self) -> None:
        self.num_key_heads = random.choice([1, 2, 3])
        self.num_heads = self.num_key_heads * random.choice([1, 2, 3])
        self.dim = random.choice([4, 7, 16, 20, 48, 80])
        self.block_size = random.choice([1, 3, 8, 16, 32, 40])
        self.window = random.choice([None, 1, random.randint(2, 40)])
        lengths = [random.randint(1, 70) for _ in range(self.num_sequences)]
        shape = (self.num_heads + 2 * self.num_key_heads, self.dim)
        self.qkv = [torch.randn(n, *shape).mul(2).to(self.dtype) for n in lengths]
        blocks = [-(-n // self.block_size) for n in lengths]
        free = random.sample(range(sum(blocks) + 3), sum(blocks))
        self.tables = [[free.pop() for _ in range(count)] for count in blocks]
        self.reach = max(lengths) + random.choice([0, 5])
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.rule = AttentionRule(
            scale=random.choice([1.0, self.dim**-0.5]),
            softcap=random.choice([None, random.uniform(1, 30)]),
            bias=random.choice([None, torch.randn(self.num_heads, 2 * self.reach - 1, dtype=wide)]),
        )
        self.cache = self.empty_cache(sum(blocks) + 3)
        self.num_checks = 0

    def check(self) -> None:
        self.num_checks += 1

    def empty_cache(self, num_blocks: int) -> LayerCache:
        heads, size = self.num_key_heads, self.block_size
        return LayerCache(
            keys=torch.full((num_blocks, heads, self.dim, size), math.nan, dtype=self.dtype),
            values=torch.full((num_blocks, heads, size, self.dim), math.nan, dtype=self.dtype),
        )

    def step(self, attention: Attention, *pieces: tuple[int, int, int]) -> tuple[torch.Tensor, Batch, KeyRange]:
        """Enter and attend rows start..stop of sequences: (sequence, start, stop) each. Returns q too."""
        spans = [Span([0] * (stop - start), start, self.tables[s], 1) for s, start, stop in pieces]
        batch = Batch(spans, self.block_size, CPU, self.check)
        qkv = torch.cat([self.qkv[s][start:stop] for s, start, stop in pieces])
        return attention.write_kv(qkv, None, self.cache, batch), batch, batch.key_range(self.causal, self.window)

    def attend(self, attention: Attention, *pieces: tuple[int, int, int]) -> list[torch.Tensor]:
        """[rows, H, D] of each piece."""
        q, batch, key_range = self.step(attention, *pieces)
        out = attention.attend(q, self.cache, batch, key_range, self.rule)
        return [out[batch.first_rows[i] : batch.first_rows[i + 1]] for i in range(len(pieces))]

    def whole(self, *sequences: int) -> list[tuple[int, int, int]]:
        return [(s, 0, len(self.qkv[s])) for s in sequences]

    def parts(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [n, H, D], k and v [n, H, D] (one copy a query head), float64."""
        qkv, heads, key_heads = self.qkv[sequence].double(), self.num_heads, self.num_key_heads
        group = heads // key_heads
        k, v = qkv[:, heads : heads + key_heads], qkv[:, heads + key_heads :]
        return qkv[:, :heads], k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def sees(self, query: int, key: int) -> bool:
        near = self.window is None or abs(query - key) < self.window
        return near and (key <= query or not self.causal)


def scores_of(world: World, sequence: int) -> torch.Tensor:
    """[H, n, n] one number at a time, as the formulas have it."""
    q, k, _ = world.parts(sequence)
    rule, n = world.rule, len(q)
    scores = torch.full((world.num_heads, n, n), -math.inf, dtype=torch.float64)
    for query in range(n):
        for key in range(n):
            if not world.sees(query, key):
                continue
            score = (q[query] * k[key]).sum(-1) * rule.scale  # [H]
            if rule.softcap is not None:
                score = rule.softcap * torch.tanh(score / rule.softcap)
            if rule.bias is not None:
                score = score + rule.bias[:, key - query + world.reach - 1].double()
            scores[:, query, key] = score
    return scores


def mixed(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """scores [H, n, S], v [S, H, D] -> [n, H, D]."""
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_attention_is_the_softmax_written_out(kind: Kind, dtype: torch.dtype, bound: float) -> None:
    attention = kind()
    for _ in range(12):
        world = World(dtype)
        for sequence, found in enumerate(world.attend(attention, *world.whole(0, 1, 2, 3))):
            scores = scores_of(world, sequence)
            _, _, v = world.parts(sequence)
            assert found.dtype == dtype
            assert (found - mixed(scores, v)).abs().max() <= bound * (1 + v.abs().max()), world


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_rows_are_the_scores_and_patterns_written_out(kind: Kind, dtype: torch.dtype, bound: float) -> None:
    attention, bound = kind(), min(bound, 5e-5)  # float32 arithmetic, exact products of bfloat16
    for _ in range(8):
        world = World(dtype)
        q, batch, key_range = world.step(attention, *world.whole(0, 1, 2))
        span = random.randrange(3)
        expected, n = scores_of(world, span), len(world.qkv[span])
        chosen = random.sample(range(n), random.randint(1, n))
        heads = random.sample(range(world.num_heads), random.randint(1, world.num_heads))

        def rows(kind: str) -> torch.Tensor:
            where = [batch.first_rows[span] + row for row in chosen]  # noqa: B023
            return attention.rows(q, where, heads, world.cache, key_range, span, world.rule, kind)  # noqa: B023

        scores = expected[heads][:, chosen]
        seen = scores > -math.inf
        assert torch.equal(rows("scores") > -math.inf, seen)
        assert torch.equal(rows("dots") > -math.inf, seen)
        assert (rows("scores")[seen] - scores[seen]).abs().max() <= bound * (1 + scores[seen].abs().max())
        assert (rows("pattern") - torch.softmax(scores, -1)).abs().max() <= bound * (1 + scores[seen].abs().max())
        assert rows("pattern")[~seen].eq(0).all()
        q_wide, k, _ = world.parts(span)
        dots = torch.einsum("qhd,khd->hqk", q_wide, k)[heads][:, chosen]
        assert (rows("dots")[seen] - dots[seen]).abs().max() <= bound * (1 + dots[seen].abs().max())


@BATCH_INVARIANT
def test_a_row_has_the_same_bits_alone_among_others_and_in_any_chunks(kind: Kind, dtype: torch.dtype) -> None:
    attention = kind()
    for _ in range(8):
        world = World(dtype, causal=True, num_sequences=6)
        together = world.attend(attention, *world.whole(*range(6)))
        for sequence, expected in enumerate(together):
            n = len(world.qkv[sequence])
            cuts = sorted({0, n, *random.choices(range(n + 1), k=3)})
            world.cache.keys[world.tables[sequence]] = math.nan
            pieces = [
                world.attend(attention, (sequence, start, stop), (5 - sequence if sequence != 5 else 0, 0, 1))[0]
                for start, stop in itertools.pairwise(cuts)
            ]
            assert torch.equal(torch.cat(pieces), expected)


def test_a_long_pass_checks_between_pieces_and_keeps_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = NativeAttention()
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        world = World(torch.float32, num_sequences=6)
        whole = world.attend(attention, *world.whole(*range(6)))
        num_whole, world.num_checks = world.num_checks, 0
        with monkeypatch.context() as patch:
            patch.setattr("model.batch._ATTENTION_PIECE", 64)
            in_pieces = world.attend(attention, *world.whole(*range(6)))
        assert world.num_checks > num_whole == 1
        for found, expected in zip(in_pieces, whole, strict=True):
            assert torch.equal(found, expected)


@BATCH_INVARIANT
def test_a_sequence_read_both_ways_has_the_same_bits_alone_and_among_others(kind: Kind, dtype: torch.dtype) -> None:
    attention = kind()
    for _ in range(8):
        world = World(dtype, causal=False, num_sequences=6)
        together = world.attend(attention, *world.whole(*range(6)))
        for sequence, expected in enumerate(together):
            assert torch.equal(world.attend(attention, *world.whole(sequence))[0], expected)


@BATCH_INVARIANT
def test_nothing_out_of_sight_is_read(kind: Kind, dtype: torch.dtype) -> None:
    """Keys and values that no row of the step sees may be anything, infinities included."""
    for _ in range(8):
        world = World(dtype, causal=True)
        world.window = random.randint(1, 10)
        n = len(world.qkv[0])
        start = random.randrange(n)
        attention = kind()
        expected = world.attend(attention, (0, 0, n))[0][start:]
        size = world.block_size
        for position in range(max(0, start - world.window + 1)):
            world.cache.keys[world.tables[0][position // size], :, :, position % size] = math.inf
            world.cache.values[world.tables[0][position // size], :, position % size] = math.nan
        assert torch.equal(world.attend(attention, (0, start, n))[0], expected)


@BATCH_INVARIANT
def test_rows_softmax_and_mix_are_the_steps_of_attend_bit_for_bit(kind: Kind, dtype: torch.dtype) -> None:
    attention = kind()
    for _ in range(12):
        world = World(dtype)
        q, batch, key_range = world.step(attention, *world.whole(0, 1, 2))
        out = attention.attend(q, world.cache, batch, key_range, world.rule)
        span = random.randrange(3)
        rows = list(range(batch.first_rows[span], batch.first_rows[span + 1]))
        rows = random.sample(rows, random.randint(1, len(rows)))
        heads = random.sample(range(world.num_heads), random.randint(1, world.num_heads))
        scores = attention.rows(q, rows, heads, world.cache, key_range, span, world.rule, "scores")
        pattern = attention.rows(q, rows, heads, world.cache, key_range, span, world.rule, "pattern")
        assert torch.equal(attention.softmax(scores), pattern)
        z = attention.mix(pattern, heads, world.num_heads, world.cache, key_range, span)
        assert torch.equal(z, out[rows][:, heads].transpose(0, 1))


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_mix_is_a_pattern_times_the_values(kind: Kind, dtype: torch.dtype, bound: float) -> None:
    attention, world = kind(), World(dtype)
    _, _, key_range = world.step(attention, *world.whole(0, 1))
    n, heads = len(world.qkv[1]), random.choices(range(world.num_heads), k=3)
    pattern = torch.rand(3, 5, n, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    z = attention.mix(pattern, heads, world.num_heads, world.cache, key_range, 1)
    _, _, v = world.parts(1)
    expected = pattern.double() @ v[:, heads].transpose(0, 1)
    assert (z - expected).abs().max() <= bound * (1 + expected.abs().max())


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_cross_attention_sees_all_of_the_encoder_and_nothing_else(kind: Kind, dtype: torch.dtype, bound: float) -> None:
    """Two sequences, their encoders' keys in the same cache as their own."""
    attention = kind()
    for _ in range(5):
        world = World(dtype, num_sequences=4)  # sequences 2 and 3 play the encoders of 0 and 1
        rule = AttentionRule(world.rule.scale)
        spans = []
        for s, encoder in ((0, 2), (1, 3)):
            rows, keys = len(world.qkv[s]), len(world.qkv[encoder])
            kv = world.qkv[encoder][:, world.num_heads :]
            slots = [
                world.tables[encoder][p // world.block_size] * world.block_size + p % world.block_size
                for p in range(keys)
            ]
            attention.write_cross_kv(kv, world.cache, np.array(slots, np.int64))
            spans.append(Span([0] * rows, 0, world.tables[s], 1, world.tables[encoder], keys))
        batch = Batch(spans, world.block_size, CPU)
        key_range = batch.cross_key_range()
        q = torch.cat([world.qkv[0], world.qkv[1]])[:, : world.num_heads]
        found = attention.attend(q, world.cache, batch, key_range, rule)
        for span, (s, encoder) in enumerate(((0, 2), (1, 3))):
            queries, _, _ = world.parts(s)
            _, k, v = world.parts(encoder)
            scores = torch.einsum("qhd,khd->hqk", queries, k) * rule.scale
            own = list(range(batch.first_rows[span], batch.first_rows[span + 1]))
            assert (found[own] - mixed(scores, v)).abs().max() <= bound * (1 + v.abs().max())
            pattern = attention.rows(q, own, [0], world.cache, key_range, span, rule, "pattern")
            assert (pattern[0] - torch.softmax(scores[0], -1)).abs().max() <= 5e-5


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_only_the_first_dimensions_turn_and_the_cache_holds_the_turned_keys(
    kind: Kind, dtype: torch.dtype, bound: float
) -> None:
    world = World(dtype)
    world.dim = 20
    world.qkv[0] = torch.randn(30, world.num_heads + 2 * world.num_key_heads, 20).to(dtype)
    world.tables[0] = list(range(-(-30 // world.block_size)))
    world.cache = world.empty_cache(30)
    rope = Rope(RopeConfig(max_position=64, original_max_position=64, dims=8), 20, 64, dtype)
    batch = Batch([Span([0] * 30, 0, world.tables[0], 1)], world.block_size, CPU)
    q = kind().write_kv(world.qkv[0], rope.at(batch.positions), world.cache, batch)
    key_range = batch.key_range()
    wide = world.qkv[0].double()
    exact = Rope(RopeConfig(max_position=64, original_max_position=64), 8, 64, torch.float64)
    turned = torch.cat((Rope.rotate(wide[..., :8], *exact.at(torch.arange(30))), wide[..., 8:]), -1)
    heads, key_heads = world.num_heads, world.num_key_heads
    assert (q - turned[:, :heads]).abs().max() <= max(bound, 1e-6)
    assert (cached_keys(world.cache, key_range, 0) - turned[:, heads : heads + key_heads]).abs().max() <= max(
        bound, 1e-6
    )
    assert torch.equal(cached_values(world.cache, key_range, 0), world.qkv[0][:, heads + key_heads :])


def test_a_capped_score_is_exact_to_float32_from_tiny_to_huge() -> None:
    world = World(torch.float32, causal=False)
    world.num_heads = world.num_key_heads = world.dim = world.block_size = 1
    values = torch.cat([sign * torch.logspace(-6, 4, 400) for sign in (1, -1)])
    world.qkv = [torch.stack([torch.ones_like(values), values, values], 1)[..., None]]
    world.tables, world.cache, world.window = [list(range(800))], world.empty_cache(800), None
    attention, cap = NativeAttention(), 30.0
    q, _, key_range = world.step(attention, *world.whole(0))
    scores = attention.rows(q, [0], [0], world.cache, key_range, 0, AttentionRule(1.0, cap), "scores")
    expected = cap * torch.tanh(values.double() / cap)
    assert ((scores[0, 0] - expected).abs() <= 4e-7 * expected.abs()).all()


@pytest.mark.parametrize("kind", [NativeAttention, PlainAttention])
def test_a_bias_that_is_too_short_for_a_sequence_is_refused(kind: Kind) -> None:
    world = World(torch.float32)
    longest = max(map(len, world.qkv))
    world.rule = AttentionRule(1.0, bias=torch.zeros(world.num_heads, 2 * longest - 3))
    with pytest.raises(ValueError, match=f"reaches {longest - 1} positions; a sequence has {longest}"):
        world.attend(kind(), *world.whole(*range(4)))


def test_whole_sequences_get_blocks_of_their_own() -> None:
    batch = Batch.unchunked([[5, 6, 7], [8], [9] * 8], 4, CPU, [2, 2, 1])
    assert [list(span.block_table) for span in batch.spans] == [[0], [1], [2, 3]]
    assert batch.num_blocks == 4
    assert batch.positions_array.tolist() == [0, 1, 2, 0, *range(8)]
    assert batch.num_rows_at(1) == 4


def test_what_a_row_sees() -> None:
    batch = Batch([Span([0] * 3, 2, [1, 2], 1), Span([0], 0, [3], 1)], 4, CPU)

    def seen(causal: bool, window: int | None) -> list[list[int]]:
        key_range = batch.key_range(causal, window)
        return [list(range(*pair)) for pair in zip(key_range.first_array, key_range.last_array, strict=True)]

    assert seen(True, None) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0]]
    assert seen(True, 2) == [[1, 2], [2, 3], [3, 4], [0]]
    assert seen(False, None) == [[0, 1, 2, 3, 4]] * 3 + [[0]]
    assert seen(False, 2) == [[1, 2, 3], [2, 3, 4], [3, 4], [0]]
    assert batch.key_range(True, 2) is batch.key_range(True, 2)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_share_every_row_and_head_once_and_take_equal_work(num_threads: int) -> None:
    """A prompt beside rows that decode after short and long texts, in turn."""
    lengths = [3000 if i % 2 else 8 for i in range(24)]
    spans = [Span([0] * 700, 0, range(1, 200), 1), *(Span([0], length, range(1, 200), 1) for length in lengths)]
    batch = Batch(spans, 16, CPU)
    taken, shares = np.zeros((batch.num_rows, 6), int), np.zeros(num_threads)
    for items in batch.attention_items(batch.num_rows, 6, num_threads):
        for thread, own in enumerate(np.array_split(items.array, num_threads)):
            for span, row, rows, head, heads in own.tolist():
                assert batch.first_rows[span] <= row < row + rows <= batch.first_rows[span + 1]
                taken[row : row + rows, head : head + heads] += 1
                shares[thread] += rows * heads * (batch.positions_array[row] + 1)
    assert (taken == 1).all()
    assert shares.max() <= 1.1 * shares.mean()
