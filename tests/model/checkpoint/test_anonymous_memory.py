"""Tensors in anonymous memory: zero at first, freed with the tensor, and touched without a change."""

from pathlib import Path

import torch

from lightwell.model.checkpoint import anonymous_memory
from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache

CPU = torch.device("cpu")
MIB = 1 << 20


def kilobytes(name: str) -> int:
    """Return a value of this process in kilobytes, as /proc/self/status counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def test_they_hold_zeros_in_the_shape_and_type_asked_for() -> None:
    for shape in ((3,), (300, 500)):
        x = anonymous_memory.zeros(shape, torch.bfloat16, CPU)
        assert x.shape == shape
        assert x.dtype == torch.bfloat16
        assert not x.any()


def test_one_that_goes_takes_its_memory_with_it() -> None:
    before = kilobytes("VmData")
    x = anonymous_memory.zeros((64, MIB), torch.uint8, CPU)
    assert kilobytes("VmData") - before >= 64 * 1024
    part = x[:1]
    del x
    assert kilobytes("VmData") - before >= 64 * 1024  # a view of it lives
    del part
    assert kilobytes("VmData") - before < 1024


def test_a_cache_takes_memory_block_by_block_and_a_block_is_zero_until_it_is_written() -> None:
    config = read_config(PACKAGED)
    block_bytes = KVCache.bytes_per_block(config, 32, torch.float32)
    num_blocks = 256 * MIB // block_bytes + 1
    before, reserved = kilobytes("RssAnon"), kilobytes("VmData")
    cache = KVCache(config, num_blocks, 32, torch.float32, CPU)
    assert kilobytes("VmData") - reserved >= 256 * 1024, "limits count all of it"
    assert all(not tensor[-1].any() for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert kilobytes("RssAnon") - before < 16 * 1024
    count = 64 * MIB // block_bytes
    cache.copy_blocks((0, block) for block in range(1, 1 + count))
    assert 60 * 1024 < kilobytes("RssAnon") - before < 100 * 1024
