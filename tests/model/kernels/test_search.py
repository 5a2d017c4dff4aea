"""Searches against plain Python, on rows with many ties and NaN."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightwell.model.kernels.rows import argmax
from tests.model.kernels.everywhere import everywhere

dtypes = st.sampled_from([torch.float32, torch.bfloat16])
counts = st.sampled_from([0, 1, 3, 20])
widths = st.sampled_from([1, 2, 63, 64, 65, 1000, 1024, 1025, 2100, 5000])  # numbers are searched by 64 and by 1024
seeds = st.integers(0, 2**32 - 1)
drawn = settings(deadline=None, max_examples=40)


def draw_ties(count: int, width: int, levels: int, seed: int) -> Tensor:
    return torch.randint(-levels, levels, (count, width), generator=torch.Generator().manual_seed(seed)).float()


def first_largest(row: list[float]) -> int:
    return next((i for i, number in enumerate(row) if math.isnan(number)), row.index(max(row)))


@drawn
@given(counts, widths, dtypes, st.sampled_from([1, 5, 1000]), seeds)
def test_the_first_of_the_largest_is_found(count: int, width: int, dtype: torch.dtype, levels: int, seed: int) -> None:
    x = draw_ties(count, width, levels, seed).to(dtype)
    places, numbers = everywhere(lambda: argmax(x))
    assert places.tolist() == [first_largest(row) for row in x.tolist()]
    assert numbers.tolist() == [max(row) for row in x.tolist()]


@drawn
@given(widths, dtypes, st.data(), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_the_first_that_is_no_number_comes_before_all_and_infinities_have_their_order(
    width: int, dtype: torch.dtype, data: st.DataObject, unusual: float
) -> None:
    x = draw_ties(1, width, 5, 1).to(dtype)
    x[0, data.draw(st.lists(st.integers(0, width - 1), max_size=3))] = math.inf
    x[0, data.draw(st.lists(st.integers(0, width - 1), max_size=3))] = unusual
    places, numbers = everywhere(lambda: argmax(x))
    row = x[0].tolist()
    assert places.tolist() == [first_largest(row)]
    assert str(numbers.item()) == str(row[first_largest(row)])


def test_a_row_of_nothing_but_minus_infinity_has_its_largest_first() -> None:
    places, numbers = everywhere(lambda: argmax(torch.full((1, 3000), -math.inf)))
    assert (places.item(), numbers.item()) == (0, -math.inf)


def test_every_place_is_found() -> None:
    width = 1300
    places, _ = everywhere(lambda: argmax(torch.eye(width).bfloat16()))
    assert torch.equal(places, torch.arange(width))


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="x has rows of 0 numbers; at least 1 is accepted"):
        argmax(torch.empty(2, 0))
    with pytest.raises(ValueError, match=r"^x is torch\.float64"):
        argmax(torch.empty(2, 3, dtype=torch.float64))
