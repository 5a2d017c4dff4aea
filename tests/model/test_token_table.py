"""A table read from a packed head gives the rows it was made of, bit for bit, and keeps no second copy."""

import gc
import weakref

import pytest
import torch

from model.layers.linear import Linear
from model.layers.token_table import TokenTable


def large(dtype: torch.dtype, width: int) -> torch.Tensor:
    """A weight whose number of rows is no multiple of a block's."""
    num_rows = (16 << 20) // (width * dtype.itemsize) + 33
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [768, 200])
def test_rows_of_a_packed_table_are_those_of_the_weight(dtype: torch.dtype, width: int) -> None:
    weight = large(dtype, width)
    table = TokenTable(weight, tied=Linear(weight))
    ids = torch.cat([torch.arange(130), torch.tensor([5, 5]), torch.arange(len(weight) - 130, len(weight))])
    assert torch.equal(table(ids), weight[ids])
    assert table(ids).dtype == dtype
    assert torch.equal(table(ids[:1]), weight[:1])
    assert torch.equal(table.to_dense(), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_large_weight_is_let_go_where_its_packed_copy_can_be_read(dtype: torch.dtype) -> None:
    weight = large(dtype, 256)
    linear = Linear(weight)
    if linear.blocks is None and linear.narrow is None:
        pytest.skip("this CPU's packed memory is not read")
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
