"""Rows of tables against plain indexing, norms of their sums against the layer norm of the same sums in torch.

Axes: T rows, d width, N blocks of 64 rows of a table.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightwell.model.kernels.products import BLOCK, BlockedWeight
from lightwell.model.kernels.rows import embed, layer_norm
from tests.model.kernels.everywhere import assert_same_bits, draw_numbers, everywhere

EPS = 1e-5

dtypes = st.sampled_from([torch.float32, torch.bfloat16])
counts = st.sampled_from([0, 1, 9, 64, 100])
widths = st.sampled_from([1, 2, 15, 16, 41, 64, 200])
seeds = st.integers(0, 2**32 - 1)
drawn = settings(deadline=None, max_examples=40)


def in_blocks(table: Tensor) -> Tensor:
    """Return a table [rows, d] as it is stored in blocks, padded with NaN."""
    num_rows, width = table.shape
    pair = 4 // table.dtype.itemsize
    words = -(-width // pair)
    whole = torch.full((-(-num_rows // BLOCK) * BLOCK, words * pair), torch.nan, dtype=table.dtype)
    whole[:num_rows, :width] = table
    blocks = whole.view(-1, BLOCK, words, pair).transpose(1, 2).contiguous()
    return blocks.squeeze(-1) if pair == 1 else blocks


def draw_ids(count: int, limit: int, seed: int) -> Tensor:
    return torch.randint(limit, (count,), generator=torch.Generator().manual_seed(seed))


@drawn
@given(counts, st.sampled_from([1, 63, 64, 65, 200]), widths, dtypes, seeds)
def test_rows_are_gathered_from_blocks(count: int, num_rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    table, ids = draw_numbers(num_rows, width, dtype=dtype, special=True, seed=seed), draw_ids(count, num_rows, seed)
    same, wide = BlockedWeight(table), BlockedWeight(table, row_dtype=torch.float32)
    for weight in (same, wide):
        weight.packed.copy_(in_blocks(table).view_as(weight.packed))
    assert_same_bits(everywhere(lambda: (same.rows(ids), wide.rows(ids))), (table[ids], table[ids].float()))


@drawn
@given(counts, widths, dtypes, st.integers(0, 3), st.booleans(), st.booleans(), seeds)
def test_an_embedding_is_the_norm_of_sums_that_are_rounded(
    count: int, width: int, dtype: torch.dtype, num_types: int, has_positions: bool, has_bias: bool, seed: int
) -> None:
    tokens, positions = draw_numbers(50, width, dtype=dtype, seed=seed), draw_numbers(30, width, dtype=dtype, seed=seed)
    weight, bias = draw_numbers(2, width, dtype=dtype, seed=seed + 1)
    table = draw_numbers(num_types, width, dtype=dtype, seed=seed + 2) if num_types else None
    types = draw_ids(count, num_types, seed + 2) if num_types > 1 else None
    ids, places = draw_ids(count, 50, seed), draw_ids(count, 30, seed + 1)
    total = tokens[ids]
    if table is not None:
        total = total + (table[0] if types is None else table[types])
    if has_positions:
        total = total + positions[places]
    some_positions, some_bias = positions if has_positions else None, bias if has_bias else None
    found = everywhere(lambda: (embed(ids, types, places, tokens, table, some_positions, weight, some_bias, EPS),))
    assert_same_bits(found, (layer_norm(total, weight, some_bias, EPS),))


def test_what_does_not_fit_is_refused_by_name() -> None:
    table, row = BlockedWeight(torch.zeros(40, 4)), torch.zeros(4)
    for ids, found in (([0, 40], "ids contains 40 at 1; 0 to 39"), ([-1], "ids contains -1 at 0; 0 to 39")):
        with pytest.raises(ValueError, match=found):
            table.rows(torch.tensor(ids))
        with pytest.raises(ValueError, match=found):
            embed(torch.tensor(ids), None, torch.tensor(ids), torch.zeros(40, 4), None, None, row, None, EPS)
    one = torch.tensor([0])
    with pytest.raises(ValueError, match=r"ids is torch\.int32"):
        table.rows(one.int())
    with pytest.raises(ValueError, match="places contains 3 at 0; 0 to 2 is accepted"):
        embed(one, None, one + 3, torch.zeros(40, 4), None, torch.zeros(3, 4), row, None, EPS)
    with pytest.raises(ValueError, match="types contains 2 at 0; 0 to 1 is accepted"):
        embed(one, one + 2, one, torch.zeros(40, 4), torch.zeros(2, 4), None, row, None, EPS)
