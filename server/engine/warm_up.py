"""The first step, run before anyone waits for it: kernels compile, oneDNN plans its products, buffers are taken."""

import numpy as np
import torch

from model.batch import Batch, Span
from model.capture import AttentionTap, Looks
from model.kv_cache import KVCache
from model.transformer import Transformer

_PROMPT = 96
"""Tokens, enough for the kernels that spread many rows over threads; one more token takes those for a few rows."""


def warm_up(model: Transformer, cache: KVCache, max_model_len: int) -> None:
    """Run a prompt through each stack, and one more token in the cache's first blocks, which hold nothing yet."""
    encoder = model.config if model.config.kind == "encoder" else model.config.encoder
    room = (cache.num_blocks - 1) * cache.block_size
    num_cross = 0
    if encoder is not None:
        length = max(1, min(_PROMPT, max_model_len, encoder.max_model_len))
        batch = Batch.unchunked([[0] * length], cache.block_size, model.device, [encoder.num_layers])
        hidden = model.encode(batch, _look())
        if model.config.kind == "encoder-decoder":
            num_cross = min(length, room // 2)
            model.enter_cross(hidden[:num_cross], cache, np.arange(num_cross) + cache.block_size)
    if model.config.kind != "encoder":
        _warm_up_decoder(model, cache, min(max_model_len, room), num_cross)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _warm_up_decoder(model: Transformer, cache: KVCache, room: int, num_cross: int) -> None:
    length = max(1, min(_PROMPT, room - 1))
    table = list(range(1, cache.num_blocks))[: length // cache.block_size + 1]
    for start, count in ((0, length), (length - 1, 1)):
        span = Span([0] * count, start, table, model.config.num_layers, range(1, cache.num_blocks), num_cross)
        batch = Batch([span], cache.block_size, model.device)
        model.logits(model.forward(batch, cache, _look()))


def _look() -> Looks:
    """One row of one head, so that what serves it is compiled too."""
    return Looks(attention=[AttentionTap(0, [0], {0: [0]}, "pattern", lambda layer, i, rows: None)])
