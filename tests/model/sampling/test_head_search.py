"""The largest value of each row of a product that is not written, against a search of one that is."""

import random

import pytest
import torch

from lightwell.model.layers.linear import Linear
from lightwell.model.sampling.row_search import largest
from tests.invariance import num_threads

MOST_ROWS = 70
WEIGHTS = [
    pytest.param((torch.float32, 1 + 2**-20), id="float32"),
    pytest.param((torch.float32, 1.0), id="float32 that bfloat16 holds"),
    pytest.param((torch.bfloat16, 1.0), id="bfloat16"),
]
"""A dtype, and the factor of its whole numbers: some factors make numbers that are not exact in bfloat16."""


def _found(head: Linear, x: torch.Tensor) -> tuple[list[int], list[float]] | None:
    found = head.find_largest(x)
    return None if found is None else (found[0].tolist(), found[1].tolist())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_largest_is_found_where_a_search_of_the_product_finds_it(
    kind: tuple[torch.dtype, float], threads: int
) -> None:
    dtype, factor = kind
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(3):
        inputs, outputs = rng.randint(1, 400), rng.randint(1, 5000)
        levels = rng.choice([2, 60])  # of few levels, rows have their largest number in several places
        weight = (torch.randint(-levels, levels, (outputs, inputs)) - rng.choice([0, 2 * levels])) * factor
        x = torch.randint(0, levels, (MOST_ROWS, inputs)) * (torch.rand(MOST_ROWS, inputs) < 0.1)
        head = Linear(weight.to(dtype))
        with num_threads(threads):
            expected = largest(head(x.to(dtype)))
            for rows in (1, 2, 7, 17, 33, MOST_ROWS):
                found = _found(head, x[:rows].to(dtype))
                assert found == tuple(part[:rows] for part in expected), (
                    f"seed {seed}: {rows} rows, {inputs} x {outputs}"
                )


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("unusual", [torch.inf, -torch.inf, torch.nan])
def test_no_largest_is_told_of_numbers_that_are_not_finite(kind: tuple[torch.dtype, float], unusual: float) -> None:
    dtype, factor = kind
    head, x = Linear((torch.ones(2000, 64) * factor).to(dtype)), torch.ones(5, 64, dtype=dtype)
    assert _found(head, x) is not None
    x[3, 2] = unusual
    assert _found(head, x) is None


@pytest.mark.parametrize("kind", WEIGHTS)
def test_nothing_is_told_of_a_bias_an_activation_or_int8(kind: tuple[torch.dtype, float]) -> None:
    dtype, factor = kind
    weight, x = (torch.ones(2000, 64) * factor).to(dtype), torch.ones(5, 64, dtype=dtype)
    assert _found(Linear(weight), x) is not None
    assert _found(Linear(weight, torch.ones(2000, dtype=dtype)), x) is None
    assert _found(Linear(weight, activation="relu"), x) is None
    assert _found(Linear(weight, quantize="int8"), x) is None
