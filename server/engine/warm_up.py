"""The first step, run before anyone waits for it: kernels compile, oneDNN plans its products, buffers are taken."""

import torch

from model.batch import Batch, Span
from model.capture import AttentionTap, Taps
from model.decoder import Decoder
from model.kv_cache import KVCache


def warm_up(model: Decoder, cache: KVCache) -> None:
    """Run a short prompt and one more token in the cache's first blocks, which hold nothing yet."""
    length = min(cache.block_size, model.config.max_model_len - 1)
    for start, count in ((0, length), (length, 1)):
        span = Span([0] * count, start, list(range(1, min(3, cache.num_blocks))) * 2, model.config.num_layers)
        batch = Batch([span], cache.block_size, model.device)
        tap = AttentionTap(0, [0], [start], {0: [0]}, "pattern", lambda layer, i, rows: None)
        model.logits(model.forward(batch, cache, Taps([tap])))
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
