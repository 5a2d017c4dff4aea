"""The largest of each row of a product that is not written, against a search of one that is."""

import random
from collections.abc import Iterator

import pytest
import torch

from model.layers.few_rows_kernels import MOST_ROWS
from model.layers.head_search import largest_columns
from model.layers.linear import Linear
from model.layers.tiles import has_tiles, has_wide_vectors, multiplies_bfloat16
from model.row_search import largest

WEIGHTS = [
    pytest.param(
        (torch.float32, 1 + 2**-20),
        marks=pytest.mark.skipif(not has_wide_vectors(), reason="this CPU has no AVX-512"),
        id="float32",
    ),
    pytest.param(
        (torch.float32, 1.0), marks=pytest.mark.skipif(not has_tiles(), reason="this CPU has no tiles"), id="narrow"
    ),
    pytest.param(
        (torch.bfloat16, 1.0),
        marks=pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU multiplies no bfloat16"),
        id="bfloat16",
    ),
]
"""A dtype, and by what whole numbers are multiplied: then bfloat16 does not hold them, and no weight is narrow."""


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def _found(weight: torch.Tensor, x: torch.Tensor) -> tuple[list[int], list[float]] | None:
    """By a head that a CPU on which these tests run must be able to search."""
    head = Linear(weight)
    assert head.narrow is not None or head.few_rows is not None
    return largest_columns(head, x)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_largest_is_found_where_a_search_of_the_product_finds_it(
    kind: tuple[torch.dtype, float], num_threads: int
) -> None:
    dtype, factor = kind
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(3):
        # as wide as heads are, in any rest: oneDNN shares sums of few columns among its threads
        inputs, outputs = 32 * rng.randint(2, 12), rng.randint(2000, 5000)
        levels = rng.choice([2, 60])  # of few levels, rows have their largest number in several places
        weight = (torch.randint(-levels, levels, (outputs, inputs)) - rng.choice([0, 2 * levels])) * factor
        x = torch.randint(0, levels, (MOST_ROWS, inputs)) * (torch.rand(MOST_ROWS, inputs) < 0.1)
        head = Linear(weight.to(dtype))
        expected = largest(head(x.to(dtype)))
        for rows in (1, 2, 7, 17, 33, MOST_ROWS):
            found = largest_columns(head, x[:rows].to(dtype))
            assert found == tuple(part[:rows] for part in expected), f"seed {seed}: {rows} rows, {inputs} x {outputs}"


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("unusual", [torch.inf, -torch.inf, torch.nan])
def test_no_largest_is_told_of_numbers_that_are_not_finite(kind: tuple[torch.dtype, float], unusual: float) -> None:
    dtype, factor = kind
    weight, x = torch.ones(2000, 64) * factor, torch.ones(5, 64, dtype=dtype)
    assert _found(weight.to(dtype), x) is not None
    x[3, 2] = unusual
    assert _found(weight.to(dtype), x) is None


@pytest.mark.parametrize("kind", WEIGHTS)
def test_nothing_is_told_of_many_rows_a_bias_or_an_activation(kind: tuple[torch.dtype, float]) -> None:
    dtype, factor = kind
    weight, x = (torch.ones(2000, 64) * factor).to(dtype), torch.ones(MOST_ROWS + 1, 64, dtype=dtype)
    assert _found(weight, x) is None
    assert largest_columns(Linear(weight, torch.ones(2000, dtype=dtype)), x[:5]) is None
    assert largest_columns(Linear(weight, activation="relu"), x[:5]) is None
