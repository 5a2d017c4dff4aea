"""Attention against a softmax written out in float64, and equal bits in any batch and in chunks.

Every draw is fresh: shapes, block sizes, windows, caps, biases. The cache holds NaN wherever nothing was put, so that a
number read from outside a sequence shows.

Axes: n positions of one sequence, H query heads, K key heads, D head dimension, S keys.
"""

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch

from lightwell.model.layers.attention import Attention, AttentionRule, CachedKV, NativeAttention, PlainAttention
from lightwell.model.layers.attention_arithmetic import InvariantArithmetic
from tests.model.layers.attention_world import World, mixed, pattern_of, scores_of

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


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_attention_is_the_softmax_written_out(kind: Kind, dtype: torch.dtype, bound: float) -> None:
    attention = kind()
    for _ in range(6):
        world = World(dtype)
        for sequence, found in enumerate(world.attend(attention, *world.whole(0, 1, 2, 3))):
            scores = scores_of(world, sequence)
            _, _, v = world.parts(sequence)
            assert found.dtype == dtype
            assert (found - mixed(scores, v, world.rule.sinks)).abs().max() <= bound * (1 + v.abs().max()), world


@pytest.mark.parametrize(("kind", "dtype", "bound"), KINDS)
def test_rows_are_the_scores_and_patterns_written_out(kind: Kind, dtype: torch.dtype, bound: float) -> None:
    attention, bound = kind(), min(bound, 5e-5)  # float32 arithmetic, exact products of bfloat16
    for _ in range(5):
        world = World(dtype)
        q, batch, key_range = world.step(attention, *world.whole(0, 1, 2))
        span = random.randrange(3)
        expected, n = scores_of(world, span), len(world.qkv[span])
        chosen = random.sample(range(n), random.randint(1, n))
        heads = random.sample(range(world.num_heads), random.randint(1, world.num_heads))

        def rows(kind: str) -> torch.Tensor:
            where = [batch.first_rows[span] + row for row in chosen]  # noqa: B023
            return attention.rows(q, where, heads, CachedKV(world.cache, key_range, span), world.rule, kind)  # noqa: B023

        scores, sinks = expected[heads][:, chosen], world.rule.sinks_of(heads)
        seen = scores > -math.inf
        assert torch.equal(rows("scores") > -math.inf, seen)
        assert torch.equal(rows("dots") > -math.inf, seen)
        assert (rows("scores")[seen] - scores[seen]).abs().max() <= bound * (1 + scores[seen].abs().max())
        assert (rows("pattern") - pattern_of(scores, sinks)).abs().max() <= bound * (1 + scores[seen].abs().max())
        assert rows("pattern")[~seen].eq(0).all()
        q_wide, k, _ = world.parts(span)
        dots = torch.einsum("qhd,khd->hqk", q_wide, k)[heads][:, chosen]
        assert (rows("dots")[seen] - dots[seen]).abs().max() <= bound * (1 + dots[seen].abs().max())


@BATCH_INVARIANT
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_has_the_same_bits_alone_among_others_and_in_any_chunks(
    causal: bool, kind: Kind, dtype: torch.dtype
) -> None:
    attention = kind()
    for _ in range(5):
        world = World(dtype, causal=causal, num_sequences=6)
        together = world.attend(attention, *world.whole(*range(6)))
        for sequence, expected in enumerate(together):
            n = len(world.qkv[sequence])
            cuts = sorted({0, n, *random.choices(range(n + 1), k=3 if causal else 0)})
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
            patch.setattr("lightwell.model.batch._ATTENTION_PIECE", 64)
            in_pieces = world.attend(attention, *world.whole(*range(6)))
        assert world.num_checks > num_whole == 1
        for found, expected in zip(in_pieces, whole, strict=True):
            assert torch.equal(found, expected)


@BATCH_INVARIANT
def test_nothing_out_of_sight_is_read(kind: Kind, dtype: torch.dtype) -> None:
    """Check that keys and values that no row of the step sees may be anything, infinities included."""
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
        cached = CachedKV(world.cache, key_range, span)
        scores = attention.rows(q, rows, heads, cached, world.rule, "scores")
        pattern = attention.rows(q, rows, heads, cached, world.rule, "pattern")
        assert torch.equal(attention.softmax(scores, world.rule.sinks_of(heads)), pattern)
        z = attention.mix(pattern, heads, world.num_heads, cached)
        assert torch.equal(z, out[rows][:, heads].transpose(0, 1))


def test_a_capped_score_is_exact_to_float32_from_tiny_to_huge() -> None:
    world = World(torch.float32, causal=False)
    world.num_heads = world.num_key_heads = world.dim = world.block_size = 1
    values = torch.cat([sign * torch.logspace(-6, 4, 400) for sign in (1, -1)])
    world.qkv = [torch.stack([torch.ones_like(values), values, values], 1)[..., None]]
    world.tables, world.cache, world.window = [list(range(800))], world.empty_cache(800), None
    attention, cap = NativeAttention(), 30.0
    q, _, key_range = world.step(attention, *world.whole(0))
    scores = attention.rows(q, [0], [0], CachedKV(world.cache, key_range, 0), AttentionRule(1.0, cap), "scores")
    expected = cap * torch.tanh(values.double() / cap)
    assert ((scores[0, 0] - expected).abs() <= 4e-7 * expected.abs()).all()


@pytest.mark.parametrize("kind", [NativeAttention, PlainAttention])
def test_a_bias_that_is_too_short_for_a_sequence_is_refused(kind: Kind) -> None:
    world = World(torch.float32)
    longest = max(map(len, world.qkv))
    world.rule = AttentionRule(1.0, bias=torch.zeros(world.num_heads, 2 * longest - 3))
    with pytest.raises(ValueError, match=f"reaches {longest - 1} positions; a sequence has {longest}"):
        world.attend(kind(), *world.whole(*range(4)))
