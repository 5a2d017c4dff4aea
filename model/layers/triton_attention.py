"""Attention by our Triton kernels (`model.kernels.cuda`), for a whole batch in a few launches.

Each row has the same bits in any batch. `PlainAttention` computes the scores, dots and changed patterns for hooks.

Axes: T rows, H query heads, K key heads, D head dimension.
"""

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch, KeyRange
from lightwell.model.kernels.cuda.paged_attention import num_pieces, paged_attention
from lightwell.model.kernels.cuda.paged_keys import Arrivals, PagedKeys, Parts, PatternRows
from lightwell.model.kernels.cuda.rotate_and_store import rotate_and_store, store
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import AttentionRule, PlainAttention, RotaryTables, check_reach
from lightwell.model.layers.attention_arithmetic import Arithmetic
from lightwell.model.layers.device_batch import DeviceBatch, Packing


class TritonAttention(PlainAttention):
    """Attention over a cache with keys in rows and blocks of a multiple of 16 keys."""

    def __init__(self, arithmetic: Arithmetic | None = None) -> None:
        super().__init__(arithmetic)
        self._batch: tuple[Batch, DeviceBatch] | None = None
        self.arrivals = Arrivals()

    def device_batch(self, batch: Batch) -> DeviceBatch:
        """Return the batch on the device; the first layer of a batch uploads it."""
        if self._batch is None or self._batch[0] is not batch:
            self._batch = batch, DeviceBatch.upload(Packing.of(batch), batch.device)
        return self._batch[1]

    def write_kv(self, qkv: Tensor, rotary_tables: RotaryTables | None, cache: LayerCache, batch: Batch) -> Tensor:
        inputs, num_rows = self.device_batch(batch), len(qkv)
        if rotary_tables is not None:
            rotary_tables = rotary_tables[0][:num_rows, 0].contiguous(), rotary_tables[1][:num_rows, 0].contiguous()
        rows = torch.arange(num_rows, dtype=torch.int32, device=qkv.device)
        slots = inputs.slots[:num_rows]
        return rotate_and_store(qkv.contiguous(), rotary_tables, rows, slots, cache.rows_of_keys, cache.values)

    def write_cross_kv(self, kv: Tensor, cache: LayerCache, slots: np.ndarray) -> None:
        on_device = torch.from_numpy(slots.astype(np.int32)).to(kv.device)
        store(kv.contiguous(), on_device, cache.rows_of_keys, cache.values)

    def attend(self, q: Tensor, cache: LayerCache, batch: Batch, key_range: KeyRange, rule: AttentionRule) -> Tensor:
        check_reach(rule, key_range)
        batch.check()
        inputs = self.device_batch(batch)
        keys = inputs.keys(causal=key_range.causal, window=key_range.window, is_cross=key_range.is_cross)
        q = q.to(cache.values.dtype).contiguous()
        return attend(q, cache, inputs, keys, rule, key_range.longest, self.arrivals)


def attend(
    q: Tensor,
    cache: LayerCache,
    inputs: DeviceBatch,
    keys: PagedKeys,
    rule: AttentionRule,
    max_len: int,
    arrivals: Arrivals,
    patterns: PatternRows | None = None,
) -> Tensor:
    """Return softmax(scores) V of the first T rows, whole spans: q [T, H, D] -> [T, H, D] in the cache's dtype.

    max_len: upper bound of the keys of a span. arrivals: counters of this network. patterns: the patterns to write and
    their places.
    """
    # Rows outside of all tiles get zeros, since uninitialised memory may contain NaN.
    out = torch.zeros_like(q) if inputs.has_loose_rows else torch.empty_like(q)
    num_rows, num_heads, dim = q.shape
    single, long = inputs.tiles_of(num_rows)
    for tiles, are_single in ((single, True), (long, False)):
        if not len(tiles):
            continue
        if are_single:
            parts = Parts.of_single_rows(len(tiles), num_heads, num_pieces(max_len), dim, q.device, arrivals)
        else:
            parts = Parts.of_tiles(len(tiles), 0 if patterns is None else num_rows, num_heads, dim, q.device)
        paged_attention(
            q,
            cache.rows_of_keys,
            cache.values,
            keys,
            tiles,
            parts,
            out,
            are_single=are_single,
            scale=rule.scale,
            softcap=rule.softcap,
            bias=rule.bias,
            sinks=rule.sinks,
            patterns=patterns,
        )
    return out
