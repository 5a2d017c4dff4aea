"""Products with int8 weights against Python's integers, and their bits at every level of CPU, in any number of threads,
alone and among others.

Axes: R rows, K inputs, N outputs.
"""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.model.config import Activation
from lightwell.model.kernels import library
from lightwell.model.kernels.checks import ACTIVATIONS
from lightwell.model.kernels.int8 import Int8BlockedWeight
from tests.model.kernels.levels import at_level, each_level
from tests.support.examples import examples

DTYPES = (torch.float32, torch.bfloat16)
LEVELS = library.levels()


def draw(outputs: int, inputs: int, *, rounds: bool = False) -> tuple[torch.Tensor, torch.Tensor, Int8BlockedWeight]:
    """Draw values and scales, and return them and the weight that they make; extreme values are as frequent as
    others.
    """
    values = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
    if random.random() < 0.5:
        values = torch.tensor([-128, -1, 0, 127], dtype=torch.int8)[torch.randint(4, (outputs, inputs))]
    scales = torch.rand(outputs) / 64
    return values, scales, Int8BlockedWeight(values, scales, int8_activations=rounds)


def draw_rows(rows: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw rows, some with the largest digits everywhere, so that sums get as large as possible."""
    x = torch.randn(rows, inputs)
    x[random.randrange(rows)] = random.choice([-1.0, 1.0]) * random.choice([1e-20, 1.0, 1e20])
    return x.to(dtype)


def whole_numbers(x: torch.Tensor, *, rounds: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the quantised rows of x: float64 [R, K] integers, and the scale [R] of each row."""
    num_digits = 1 if rounds else 3 if x.dtype == torch.float32 else 2
    limit = torch.tensor(127.0 * 256 ** (num_digits - 1))  # no int, which torch would not divide
    largest = x.float().abs().amax(1)
    inverse = torch.where(largest >= 1e-30, limit / largest, 0)
    return (x.float() * inverse[:, None]).round().double(), torch.where(largest >= 1e-30, largest / limit, 0)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 700),
    outputs=st.integers(1, 200),
    dtype=st.sampled_from(DTYPES),
    level=st.sampled_from(LEVELS),
    rounds=st.booleans(),
)
def test_sums_are_exact_and_scaled_afterwards(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, level: str, *, rounds: bool
) -> None:
    with at_level(level):
        values, scales, weight = draw(outputs, inputs, rounds=rounds)
        x = draw_rows(rows, inputs, dtype)
        whole, row_scales = whole_numbers(x, rounds=rounds)
        exact = (whole @ values.double().T) * (scales * row_scales[:, None]).double()  # sums stay below 2**53
        y = weight.multiply(x)
    assert y.dtype == dtype
    # A sum rounded in float32 once for each digit, two products, and the rounding of the stored result.
    rtol = 6e-7 if dtype == torch.float32 else 2**-8
    largest = (whole.abs() @ values.double().abs().T) * (scales * row_scales[:, None]).double()
    assert ((y.double() - exact).abs() <= rtol * exact.abs() + 2e-7 * largest).all()


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 70),
    inputs=st.integers(1, 900),
    outputs=st.integers(1, 300),
    dtype=st.sampled_from(DTYPES),
    activation=st.sampled_from([*ACTIVATIONS]),
    has_bias=st.booleans(),
    rounds=st.booleans(),
)
def test_a_product_has_the_same_bits_at_every_level_and_in_any_number_of_threads(
    rows: int,
    inputs: int,
    outputs: int,
    dtype: torch.dtype,
    activation: Activation | None,
    has_bias: bool,
    rounds: bool,
) -> None:
    values, scales, weight = draw(outputs, inputs, rounds=rounds)
    x = draw_rows(rows, inputs, dtype)
    bias = torch.randn(outputs).to(dtype) if has_bias else None
    first = weight.multiply(x, bias, activation)
    for level in LEVELS:
        for count in (1, 2, 3):
            library.set_num_threads(count)
            with at_level(level):
                assert torch.equal(Int8BlockedWeight(values, scales).packed, weight.packed)
                assert torch.equal(weight.multiply(x, bias, activation), first), (level, count)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_level
def test_a_row_alone_has_the_bits_that_it_has_among_others(level: str, dtype: torch.dtype) -> None:
    for most in (100, 100, 1200):
        rows, inputs, outputs = random.randint(2, most), random.randint(1, 800), random.randint(1, 300)
        _, _, weight = draw(outputs, inputs)
        x, bias = draw_rows(rows, inputs, dtype), torch.randn(outputs).to(dtype)
        with at_level(level):
            together = weight.multiply(x, bias, "silu")
            first = random.randrange(rows)
            some = slice(first, random.randint(first + 1, rows))
            assert torch.equal(weight.multiply(x[some], bias, "silu"), together[some])
            assert torch.equal(weight.multiply(x[first : first + 1], bias, "silu"), together[first : first + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_level
def test_a_number_that_is_not_finite_makes_its_own_row_nan_and_no_other(level: str, dtype: torch.dtype) -> None:
    for rows in (1, 3, 20):
        _, _, weight = draw(70, 45)
        x = draw_rows(rows, 45, dtype)
        row, column = random.randrange(rows), random.choice([0, 20, 44])
        clean = x.clone()
        x[row, column] = random.choice([float("nan"), float("inf"), -float("inf")])
        with at_level(level):
            for activation in ACTIVATIONS:
                y, other = weight.multiply(x, None, activation), weight.multiply(clean, None, activation)
                assert y[row].isnan().all()
                others = [r for r in range(rows) if r != row]
                assert torch.equal(y[others], other[others])


@each_level
def test_rows_of_zeros_and_of_numbers_too_small_to_scale_give_the_bias_alone(level: str) -> None:
    _, _, weight = draw(70, 45)
    bias = torch.randn(70)
    with at_level(level):
        for number in (0.0, 1e-40, 9e-31):
            assert torch.equal(weight.multiply(torch.full((2, 45), number), bias), bias.repeat(2, 1))


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (64, 64), (65, 3), (130, 257), (0, 5), (5, 0)])
def test_a_weight_comes_back_as_it_was_given(outputs: int, inputs: int) -> None:
    values, scales, weight = draw(outputs, inputs)
    for found, given_ in zip(weight.values_and_scales(), (values, scales), strict=True):
        assert torch.equal(found, given_)
    assert weight.packed.data_ptr() % 64 == 0 or not weight.packed.numel()


def test_a_product_without_rows_outputs_or_inputs_is_empty_or_zeros() -> None:
    assert draw(70, 45)[2].multiply(torch.empty(0, 45)).shape == (0, 70)
    assert draw(0, 45)[2].multiply(torch.empty(3, 45)).shape == (3, 0)
    assert torch.equal(draw(70, 0)[2].multiply(torch.empty(3, 0)), torch.zeros(3, 70))


def test_what_does_not_fit_is_refused_by_name() -> None:
    values, scales, weight = draw(70, 45)
    x = torch.randn(2, 45)
    with pytest.raises(ValueError, match=r"values is torch\.float32"):
        Int8BlockedWeight(values.float(), scales)
    with pytest.raises(ValueError, match=r"scales is .*\[69\]"):
        Int8BlockedWeight(values, scales[1:])
    with pytest.raises(ValueError, match=r"x is torch\.float16"):
        weight.multiply(x.half())
    with pytest.raises(ValueError, match="not contiguous"):
        weight.multiply(torch.randn(45, 2).T)
    with pytest.raises(ValueError, match="x has rows of 44; the weight takes 45"):
        weight.multiply(torch.randn(2, 44))
    with pytest.raises(ValueError, match=r"bias is torch\.bfloat16 \[70\]"):
        weight.multiply(x, torch.zeros(70).bfloat16())
    with pytest.raises(ValueError, match="activation is 'tanh'; None, 'silu'"):
        weight.multiply(x, None, "tanh")
