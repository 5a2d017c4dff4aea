"""A table read from a tied head's blocks has the original rows, bit for bit, and keeps no second copy."""

import gc
import weakref

import pytest
import torch

from lightwell.model.layers.linear import Linear
from lightwell.model.layers.token_table import TokenTable


def large(dtype: torch.dtype, width: int) -> torch.Tensor:
    """Return a weight with a number of rows that is no multiple of a block's."""
    num_rows = (16 << 20) // (width * dtype.itemsize) + 33
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("numbers", ["float32", "bfloat16", "bfloat16 in float32"])
@pytest.mark.parametrize("width", [768, 200])
def test_rows_of_a_table_in_blocks_are_those_of_the_weight(width: int, numbers: str) -> None:
    weight = large(torch.bfloat16 if numbers == "bfloat16" else torch.float32, width)
    if numbers == "bfloat16 in float32":
        weight = weight.bfloat16().float()
    linear = Linear(weight)
    table = TokenTable(weight, tied=linear)
    ids = torch.cat([torch.arange(130), torch.tensor([5, 5]), torch.arange(len(weight) - 130, len(weight))])
    for some in (ids, ids[125:135], ids[-1:], ids[:0]):
        assert torch.equal(table(some), weight[some])
        assert table(some).dtype == weight.dtype
    assert torch.equal(table.to_dense(), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_large_weight_is_let_go_where_its_copy_in_blocks_can_be_read(dtype: torch.dtype) -> None:
    weight = large(dtype, 256)
    linear = Linear(weight)
    table, seen = TokenTable(weight, tied=linear), weakref.ref(weight)
    del weight
    gc.collect()
    assert seen() is None
    assert table(torch.tensor([3])).shape == (1, 256)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_table_keeps_its_weight_where_the_head_has_other_numbers(quantize: str) -> None:
    weight = large(torch.float32, 256)
    tied = Linear(weight, quantize="int8") if quantize == "int8" else None
    ids = torch.arange(7)
    assert torch.equal(TokenTable(weight, tied=tied)(ids), weight[ids])
