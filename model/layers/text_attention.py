"""Computes attention of encoders within whole texts by products of bfloat16: what blocks that are one call each compute
without hooks, for steps with hooks.

What `rows`, `softmax` and `mix` return is `NativeAttention`'s, in float32: it agrees with what `attend` used as far as
bfloat16 is precise, not to the last bit. In float32, and where bfloat16 is widened, both are the same anyway.
"""

import torch

from model.batch import Batch, KeyRange
from model.kernels.encoder import attend_texts
from model.kernels.products import DOT
from model.kv_cache import LayerCache
from model.layers.attention import AttentionRule, CachedKV, NativeAttention


class TextAttention(NativeAttention):
    """`NativeAttention` for rows that see all of their text: no bias, no cap, no mask, a key head for each head."""

    def attend(
        self, q: torch.Tensor, cache: LayerCache, batch: Batch, key_range: KeyRange, rule: AttentionRule
    ) -> torch.Tensor:
        rows, heads, dim = q.shape
        qkv = torch.empty(rows, 3, heads, dim, dtype=cache.values.dtype)
        qkv[:, 0] = q
        first_rows = [first for first in batch.first_rows if first <= rows]
        for text in range(len(first_rows) - 1):
            batch.check()
            own = slice(first_rows[text], first_rows[text + 1])
            span = CachedKV(cache, key_range, text)
            qkv[own, 1], qkv[own, 2] = span.keys(), span.values()
        return attend_texts(qkv, torch.tensor(first_rows), rule.scale, DOT)
