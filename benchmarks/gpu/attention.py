"""Measure the decode attention kernels: the share of the card's bandwidth at which they read keys and values."""

import torch

from benchmarks.gpu.clock import device_seconds
from benchmarks.gpu.plan import Plan
from lightwell.model.batch import Batch, Span
from lightwell.model.kernels.cuda.paged_keys import Arrivals
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import AttentionRule
from lightwell.model.layers.device_batch import DeviceBatch, Packing
from lightwell.model.layers.triton_attention import attend

_LAYERS = 4
"""Layers with a cache each: one layer's keys and values would partly lie in the card's own cache."""


@torch.inference_mode()
def bytes_per_second(plan: Plan, device: torch.device) -> float:
    """Return the bytes of keys and values that attention of one token for each of `plan.rows[1]` sequences reads a
    second, in the shape of the large network.
    """
    sizes, rows, keys = plan.large.sizes, plan.rows[1], plan.attention_keys
    heads, key_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    dim, width = sizes["hidden_size"] // heads, -(-keys // plan.block_size)
    shape = rows * width + 1, key_heads, plan.block_size, dim

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=plan.dtype, device=device)

    caches = [LayerCache(numbers(*shape).transpose(2, 3), numbers(*shape)) for _ in range(_LAYERS)]
    order = (torch.randperm(shape[0] - 1) + 1).tolist()  # blocks of a running server are in no order
    spans = [Span([1], keys - 1, order[row * width : (row + 1) * width], 1) for row in range(rows)]
    inputs = DeviceBatch.upload(Packing.of(Batch(spans, plan.block_size, device)), device)
    q, seen, rule = numbers(rows, heads, dim), inputs.keys(), AttentionRule(dim**-0.5)
    arrivals = Arrivals()

    def all_layers() -> None:
        for cache in caches:
            attend(q, cache, inputs, seen, rule, keys, arrivals)

    num_bytes: int = _LAYERS * rows * keys * 2 * key_heads * dim * plan.dtype.itemsize
    return num_bytes / device_seconds(all_layers, device, repeats=plan.repeats)
