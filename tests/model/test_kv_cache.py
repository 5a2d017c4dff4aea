"""The blocks of the cache are copied whole, in every layer that has keys and values."""

from pathlib import Path

import pytest
import torch

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from tests import tiny


@pytest.mark.parametrize("keys_in_rows", [False, True])
@pytest.mark.parametrize("name", ["llama-gqa", "lfm2"])
def test_blocks_are_copied_one_after_another(name: str, keys_in_rows: bool, tmp_path: Path) -> None:
    config = read_config(tiny.make_variant(name, tmp_path))
    cache = KVCache(config, 5, 16, torch.float32, torch.device("cpu"), num_sequences=2, keys_in_rows=keys_in_rows)
    tensors = [tensor for layer in cache.layers if layer.states is None for tensor in (layer.keys, layer.values)]
    assert tensors
    for tensor in tensors:
        tensor.copy_(torch.randn(tensor.shape))
    expected = [tensor.clone() for tensor in tensors]
    for source, target in ((1, 2), (2, 4)):
        for tensor in expected:
            tensor[target] = tensor[source]
    cache.copy_blocks([(1, 2), (2, 4)])
    assert all(torch.equal(found, right) for found, right in zip(tensors, expected, strict=True))
