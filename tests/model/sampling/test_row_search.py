"""Row searches against plain Python on rows full of ties, at sizes around the block size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.sampling.row_search import BLOCK, argmax, largest, ordered_top_ids, pick, take, top

sizes = st.sampled_from([1, 2, 63, 64, 65, 128, 129, 1000, 4096])
levels = st.sampled_from([1, 2, 5, 1000])  # few levels: many ties
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float64])


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile first, so that hypothesis does not count the time."""
    for rows in (1, 9):
        argmax(torch.zeros(rows, 1, dtype=torch.bfloat16))


def row_with_ties(size: int, num_levels: int, seed: int, rows: int = 3) -> torch.Tensor:
    x = torch.randint(-num_levels, num_levels, (rows, size), generator=torch.Generator().manual_seed(seed)).float()
    return x.masked_fill(x == -num_levels, -torch.inf)


@given(sizes, levels, seeds, dtypes)
def test_the_lowest_id_among_the_largest_is_found_with_its_number(
    size: int, num_levels: int, seed: int, dtype: torch.dtype
) -> None:
    x = row_with_ties(size, num_levels, seed).to(dtype)
    ids, numbers = largest(x)
    assert ids == argmax(x).tolist() == [row.index(max(row)) for row in x.tolist()]
    assert numbers == [max(row) for row in x.tolist()]


@given(sizes, st.data(), dtypes)
def test_argmax_finds_what_is_no_number_and_else_the_first_infinity(
    size: int, data: st.DataObject, dtype: torch.dtype
) -> None:
    place, *infinite = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=4))
    x = row_with_ties(size, 5, 1, rows=1).to(dtype)
    x[0, infinite] = torch.inf
    assert argmax(x).tolist() == [min(infinite)]
    x[0, place] = float("nan")
    assert argmax(x).tolist() == [place]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_argmax_and_top_find_every_place(dtype: torch.dtype) -> None:
    size = 4 * BLOCK + 3  # from four blocks on, `top` looks for one number in whole blocks first
    for x in (torch.eye(size, dtype=dtype), torch.eye(size, dtype=dtype) - 2):
        assert argmax(x).tolist() == list(range(size))
        assert top(x, 1)[1].flatten().tolist() == list(range(size))


@given(sizes, levels, seeds, st.integers(1, 40))
def test_top_gives_the_k_largest_values_and_where_they_are(size: int, num_levels: int, seed: int, k: int) -> None:
    x, k = row_with_ties(size, num_levels, seed), min(k, size)
    values, ids = top(x, k)
    assert values.tolist() == [sorted(row, reverse=True)[:k] for row in x.tolist()]
    assert torch.equal(x.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


@given(sizes, levels, seeds, st.integers(1, 40))
def test_ordered_top_ids_put_the_lowest_id_first_among_equals(size: int, num_levels: int, seed: int, k: int) -> None:
    x, k = row_with_ties(size, num_levels, seed), min(k, size)
    expected = [sorted(range(size), key=lambda i, row=row: (-row[i], i))[:k] for row in x.tolist()]
    assert ordered_top_ids(x, k).tolist() == expected


@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 2**40, 2**52]), min_size=1, max_size=3 * BLOCK),
    st.one_of(st.sampled_from([0.0, 1 - 2.0**-53]), st.floats(0, 1, exclude_max=True)),
)
def test_pick_inverts_the_cumulated_weights_and_never_meets_a_zero(weights: list[int], unit: float) -> None:
    padded = torch.tensor([weights + [0] * (-len(weights) % BLOCK)])
    total = sum(weights)
    picked = int(pick(padded, [unit]).item())
    if total == 0:
        assert picked == -1
        return
    target = min(int(unit * float(total)), total - 1)
    expected = next(i for i in range(len(weights)) if sum(weights[: i + 1]) > target)
    assert picked == expected
    assert weights[picked] > 0


@given(st.lists(st.integers(0, 9), min_size=1, unique=True).map(sorted))
def test_take_gives_the_named_rows(rows: list[int]) -> None:
    assert take(torch.arange(10).unsqueeze(1), rows).flatten().tolist() == rows
