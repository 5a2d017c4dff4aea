"""The first step, run before anyone waits for it: kernels compile, oneDNN plans its products, buffers are taken."""

import torch

from model.batch import Batch, Span
from model.capture import AttentionTap, Looks
from model.kv_cache import KVCache
from model.transformer import Transformer

_PROMPT = 96
"""Tokens, enough for the kernels that spread many rows over threads; one more token takes those for a few rows."""


def warm_up(model: Transformer, cache: KVCache, max_model_len: int) -> None:
    """Run a prompt and one more token in the cache's first blocks, which hold nothing yet."""
    room = (cache.num_blocks - 1) * cache.block_size
    length = max(1, min(_PROMPT, max_model_len - 1, room - 1))
    table = list(range(1, cache.num_blocks))[: length // cache.block_size + 1]
    for start, count in ((0, length), (length - 1, 1)):
        batch = Batch([Span([0] * count, start, table, model.config.num_layers)], cache.block_size, model.device)
        tap = AttentionTap(0, [0], [start], {0: [0]}, "pattern", lambda layer, i, rows: None)
        model.logits(model.forward(batch, cache, Looks(attention=[tap])))
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
