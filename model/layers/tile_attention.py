"""Attention of encoders on tiles of the matrix unit: what blocks that are one call each compute while nobody looks, for
when somebody does. Knows whole texts that see all of themselves.

What `rows`, `softmax` and `mix` give is `CompiledAttention`'s: made in another order, it agrees with what `attend` used
as far as the dtype is precise, not to the last bit.
"""

import numpy as np
import torch

from model.batch import Batch, Sight
from model.kv_cache import LayerCache
from model.layers.arrays import bits
from model.layers.attention import AttentionRule, CompiledAttention, cached_keys, cached_values
from model.layers.tile_weight import laid_dtype, num_parts


class TileAttention(CompiledAttention):
    """`tile_attention_kernels` on CPU tensors of float32 or bfloat16: no bias, no cap, no mask, a key head to each head
    of D numbers, D a multiple of 32.
    """

    def attend(
        self, q: torch.Tensor, cache: LayerCache, batch: Batch, sight: Sight, rule: AttentionRule
    ) -> torch.Tensor:
        from model.layers.tile_attention_kernels import attend_texts

        rows, heads, dim = q.shape
        qkv = torch.empty(rows, 3, heads, dim, dtype=cache.values.dtype)
        qkv[:, 0] = q
        texts = np.arange(len(batch.spans))[np.array(batch.first_rows[:-1]) < rows]
        for text in texts.tolist():
            batch.check()
            own = slice(batch.first_rows[text], batch.first_rows[text + 1])
            qkv[own, 1], qkv[own, 2] = cached_keys(cache, sight, text), cached_values(cache, sight, text)
        out = torch.empty(rows, heads, dim, dtype=qkv.dtype)
        shape, scale = (heads, dim, num_parts(qkv.dtype)), np.float32(rule.scale)
        arrays = bits(qkv.view(-1)), shape, scale, bits(out.view(-1))
        attend_texts(texts, np.array(batch.first_rows), *arrays, bits(torch.empty(0, dtype=laid_dtype(qkv.dtype))))
        return out
