"""Compiled kernels gather the rows that plain indexing does, bit for bit, alone and shared over threads."""

import pytest
import torch

from model.layers.embedding_kernels import unpack, unpack_and_widen

BLOCKS, WORDS, BLOCK = 3, 10, 64
IDS = torch.cat([torch.arange(BLOCKS * BLOCK), torch.tensor([7, 7, 191, 0])])


@pytest.mark.parametrize("count", [0, 1, 5, len(IDS)])
def test_rows_are_gathered_from_packed_words(count: int) -> None:
    words = torch.randint(-(2**31), 2**31, (BLOCKS, WORDS, BLOCK), dtype=torch.int32)
    ids = IDS.flip(0)[:count]
    expected = words.transpose(1, 2).reshape(-1, WORDS)[ids]  # [T, W]
    found = torch.empty_like(expected)
    unpack(ids.numpy(), words.view(torch.uint32).numpy(), found.view(torch.uint32).numpy())
    assert torch.equal(found, expected)
    wide = torch.empty(count, 2 * WORDS)
    unpack_and_widen(ids.numpy(), words.view(torch.uint32).numpy(), wide.view(torch.uint32).numpy())
    assert torch.equal(wide.view(torch.int32), expected.view(torch.bfloat16).float().view(torch.int32))
