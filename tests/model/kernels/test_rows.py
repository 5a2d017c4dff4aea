"""The small kernels over rows against the same formulas in float64, and their bits everywhere.

Axes: T rows, d width, H query heads, K key heads, D head dimension, R dimensions that are rotated, B keys to a block.
"""

from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels import rows
from lightwell.model.layers.dense_weight import activate
from tests.model.kernels.everywhere import draw_numbers, everywhere

EPS = 1e-5
ROUNDED = {torch.float32: 0.0, torch.bfloat16: 1.6e-2}  # bfloat16: two roundings of 2**-8

dtypes = st.sampled_from([torch.float32, torch.bfloat16])
counts = st.sampled_from([0, 1, 2, 7, 17, 70])  # 70: more than any of these kernels does in one thread
widths = st.sampled_from([1, 5, 15, 16, 17, 40, 64, 333])
seeds = st.integers(0, 2**32 - 1)
drawn = settings(deadline=None, max_examples=40)


def assert_close(found: Tensor, expected: Tensor, parts: Tensor | None = None) -> None:
    """Compare with the result in float64.

    A sum may be far smaller than its terms: `parts` are the sizes of the terms (by default of `expected`).
    """
    size = expected.abs()
    allowed = 2e-6 * (size if parts is None else parts) + ROUNDED[found.dtype] * size
    assert ((found.double() - expected).abs() <= allowed).all()


@drawn
@given(counts, widths, dtypes, st.booleans(), seeds)
def test_rms_norm_divides_by_the_root_of_the_mean_square(
    count: int, width: int, dtype: torch.dtype, rounded_once: bool, seed: int
) -> None:
    x = draw_numbers(count, width, dtype=dtype, seed=seed)
    weight = draw_numbers(width, dtype=torch.float32 if rounded_once else dtype, seed=seed + 1)
    (found,) = everywhere(lambda: (rows.rms_norm(x, weight, EPS),))
    wide = x.double()
    assert_close(found, wide / (wide.square().mean(1, keepdim=True) + EPS).sqrt() * weight.double())


def test_rms_norm_rounds_once_with_a_float32_weight_and_twice_with_its_own() -> None:
    x = draw_numbers(50, 96, dtype=torch.bfloat16)
    weight = draw_numbers(96, dtype=torch.bfloat16)
    normal = rows.rms_norm(x.float(), torch.ones(96), EPS)
    assert torch.equal(rows.rms_norm(x, weight, EPS), normal.bfloat16() * weight)
    assert torch.equal(rows.rms_norm(x, weight.float(), EPS), (normal * weight.float()).bfloat16())


def test_a_nan_of_any_bits_stays_nan_when_it_is_rounded() -> None:
    bits = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001 - 2**32, 0xFFC00000 - 2**32, -1]
    weight = torch.tensor(bits * 7, dtype=torch.int32).view(torch.float32)  # 42: whole lanes and some more
    x = torch.ones(3, len(weight), dtype=torch.bfloat16)
    (found,) = everywhere(lambda: (rows.rms_norm(x, weight, EPS),))
    assert found.isnan().all()


@drawn
@given(counts, widths, dtypes, st.booleans(), seeds)
def test_layer_norm_takes_the_mean_away_and_divides_by_the_deviation(
    count: int, width: int, dtype: torch.dtype, has_bias: bool, seed: int
) -> None:
    x = draw_numbers(count, width, dtype=dtype, seed=seed)
    weight, bias = draw_numbers(2, width, dtype=dtype, seed=seed + 1)
    (found,) = everywhere(lambda: (rows.layer_norm(x, weight, bias if has_bias else None, EPS),))
    centred = x.double() - x.double().mean(1, keepdim=True)
    deviation = (centred.square().mean(1, keepdim=True) + EPS).sqrt()
    normal, added = centred / deviation, bias.double() if has_bias else torch.zeros(())
    reach = x.double().abs().sum(1, keepdim=True) / width / deviation + x.double().abs() / deviation
    parts = reach * (1 + normal.abs()) * weight.double().abs() + added.abs()
    assert_close(found, normal * weight.double() + added, parts)


@drawn
@given(counts, widths, dtypes, st.sampled_from(["silu", "gelu", "gelu_tanh", "relu"]), seeds)
def test_the_activated_half_is_multiplied_with_the_other(
    count: int, width: int, dtype: torch.dtype, activation: Activation, seed: int
) -> None:
    gate_up = draw_numbers(count, 2 * width, dtype=dtype, seed=seed)
    (found,) = everywhere(lambda: (rows.activate_times(gate_up, activation),))
    gate, up = gate_up.double().chunk(2, 1)
    assert_close(found, activate(gate, activation) * up, (gate * up).abs())


def capped(x: Tensor, cap: float) -> tuple[Tensor]:
    copy = x.clone()
    rows.soft_cap(copy, cap)
    return (copy,)


@drawn
@given(counts, widths, seeds, st.floats(0.5, 60))
def test_soft_cap_bends_numbers_towards_the_cap(count: int, width: int, seed: int, cap: float) -> None:
    x = draw_numbers(count, width, seed=seed) * 10
    (found,) = everywhere(lambda: capped(x, cap))
    assert_close(found, cap * (x.double() / cap).tanh())
    assert torch.equal(capped(x[-1:], cap)[0], found[-1:])


def test_soft_cap_of_what_is_not_finite() -> None:
    x = torch.tensor([[torch.inf, -torch.inf, torch.nan] * 11])
    (found,) = everywhere(lambda: capped(x, 3.0))
    assert torch.equal(found.nan_to_num(7.0), torch.tensor([[3.0, -3.0, 7.0] * 11]))


@drawn
@given(widths, dtypes, seeds)
def test_a_row_has_the_same_bits_alone_and_among_others_that_hold_nan(
    width: int, dtype: torch.dtype, seed: int
) -> None:
    x = draw_numbers(70, 2 * width, dtype=dtype, seed=seed)
    weight = draw_numbers(2 * width, dtype=dtype, seed=seed + 1)
    x[::3] = torch.nan
    kernels: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda some: rows.rms_norm(some, weight, EPS),
        lambda some: rows.layer_norm(some, weight, weight, EPS),
        lambda some: rows.activate_times(some, "silu"),
    )
    for kernel in kernels:
        among = kernel(x)
        assert among[::3].isnan().all()
        for row in (1, 35, 68):
            assert torch.equal(kernel(x[row : row + 1])[0], among[row])


class Heads:
    """Rows of heads, where they go, and a cache full of 7, with room for more rows."""

    def __init__(self, count: int, dtype: torch.dtype, seed: int, *, special: bool = False) -> None:
        random = Random(seed)
        self.num_heads, num_key_heads, dim = random.randrange(5), random.randint(1, 3), random.randint(1, 80)
        size, num_rotated = random.randint(1, 20), 2 * random.randint(0, dim // 2)
        num_blocks = count // size + 2
        self.qkv = draw_numbers(count, self.num_heads + 2 * num_key_heads, dim, dtype=dtype, seed=seed, special=special)
        self.cos, self.sin = draw_numbers(2, count, num_rotated, seed=seed + 1)
        self.slots = torch.tensor(random.sample(range(num_blocks * size), count), dtype=torch.int64)
        self.keys = torch.full((num_blocks, num_key_heads, dim, size), 7.0).to(dtype)
        self.values = torch.full((num_blocks, num_key_heads, size, dim), 7.0).to(dtype)

    def write_kv(self) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.keys.clone(), self.values.clone()
        rotary_tables = (self.cos, self.sin) if self.cos.numel() else None
        return rows.rotate_and_store(self.qkv, rotary_tables, self.slots, keys, values), keys, values


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads in float64. x: [T, H, D]; cos, sin: [T, R]."""
    half, wide = cos.shape[1] // 2, x.double()
    swapped = torch.cat((wide[..., half : 2 * half], wide[..., :half]), -1)
    both = wide[..., : 2 * half] * cos.double()[:, None] + swapped * sin.double()[:, None]
    return torch.cat((both, wide[..., 2 * half :]), -1)


@drawn
@given(counts, dtypes, seeds)
def test_queries_and_keys_turn_and_the_cache_is_written_at_the_slots_alone(
    count: int, dtype: torch.dtype, seed: int
) -> None:
    heads = Heads(count, dtype, seed)
    q, keys, values = everywhere(heads.write_kv)
    first, last = heads.num_heads, heads.num_heads + heads.keys.shape[1]
    expected = turned(heads.qkv, heads.cos, heads.sin)
    parts = turned(heads.qkv.abs(), heads.cos.abs(), heads.sin.abs())
    assert_close(q, expected[:, :first], parts[:, :first])
    in_order = keys.permute(0, 3, 1, 2).flatten(0, 1), values.permute(0, 2, 1, 3).flatten(0, 1)  # [slot, K, D]
    assert_close(in_order[0][heads.slots], expected[:, first:last], parts[:, first:last])
    assert torch.equal(in_order[1][heads.slots], heads.qkv[:, last:])
    for cache in in_order:
        cache[heads.slots] = 7.0
        assert (cache == 7.0).all()


def test_what_does_not_fit_is_refused_by_name() -> None:
    x, weight = torch.zeros(3, 8), torch.zeros(8)
    refused: dict[str, Callable[[], Tensor]] = {
        "x": lambda: rows.rms_norm(x.double(), weight, EPS),
        "weight": lambda: rows.rms_norm(x, torch.zeros(7), EPS),
        "bias": lambda: rows.layer_norm(x, weight, weight.bfloat16(), EPS),
        "gate_up": lambda: rows.activate_times(torch.zeros(3, 7), "silu"),
        "activation": lambda: rows.activate_times(torch.zeros(3, 8), "tanh"),
    }
    for name, call in refused.items():
        with pytest.raises(ValueError, match=f"^{name} (is|has) .* accepted"):
            call()
    with pytest.raises(ValueError, match="not contiguous"):
        rows.layer_norm(x.T, torch.zeros(3), None, EPS)
    qkv, keys, values = torch.zeros(1, 3, 6), torch.zeros(2, 1, 6, 4), torch.zeros(2, 1, 4, 6)
    table, slot = torch.zeros(1, 4), torch.tensor([7])
    rows.rotate_and_store(qkv, (table, table), slot, keys, values)
    with pytest.raises(ValueError, match="slots contains 8 at 0; 0 to 7 is accepted"):
        rows.rotate_and_store(qkv, None, slot + 1, keys, values)
    with pytest.raises(ValueError, match=r"keys is .* at most 1 heads of 5 dimensions"):
        rows.rotate_and_store(qkv[..., :5].contiguous(), None, slot, keys, values)
    odd = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="cos and sin rotate 3 dimensions"):
        rows.rotate_and_store(qkv, (odd, odd), slot, keys, values)


@drawn
@given(counts, st.sampled_from([1.0, 100.0, 1e5, 1e7]), seeds)
def test_cosines_and_sines_are_rounded_correctly_and_have_the_same_bits_everywhere(
    count: int, largest: float, seed: int
) -> None:
    angles = torch.cat([draw_numbers(count, seed=seed).clamp(-1, 1) * largest, torch.tensor([0.0, -0.0, largest])])
    cos, sin = everywhere(lambda: rows.cos_sin(angles))
    assert torch.equal(cos, angles.double().cos().float())
    assert torch.equal(sin, angles.double().sin().float())
