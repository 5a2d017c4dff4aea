"""Warm-up: the first steps, which start threads, set up libraries and touch memory, before any request waits for them.

They include the largest step of serving, so that a server without enough memory for it fails at its start.
"""

import numpy as np
import torch
from msgspec.structs import replace

from lightwell.model.batch import TILE_ROWS, Batch, Span
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionTap, Hooks, RowSink
from lightwell.model.kernels.library import num_threads
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.row_search import largest
from lightwell.server.engine.memory.process_memory import give_back_memory
from lightwell.server.engine.scheduling.block_manager import NULL_BLOCK

_PROMPT = 96
"""Prompt tokens, enough for the kernels of many rows; one more token uses the kernels of few rows."""
_PIECE = 64
"""Most rows of one sequence in steps that warm up only the matrix products: attention over a long one takes longer."""


def warm_up(
    model: Transformer, cache: KVCache, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    """Run a prompt through each stack (on a CPU, only through a decoder's first attention), then one more token, in the
    cache's first blocks, which are still empty. On a CPU, then run `max_num_batched_tokens` rows through one block, and
    `max_num_seqs` rows through the head.
    """
    encoder = model.config if model.config.kind == "encoder" else model.config.encoder
    room = (cache.num_blocks - 1) * cache.block_size
    num_cross = 0
    if encoder is not None:
        length = max(1, min(_PROMPT, max_model_len, encoder.max_model_len))
        batch = Batch.unchunked([[0] * length], cache.block_size, model.device, [encoder.num_layers])
        model.encode(batch)
        hidden = model.encode(batch, _hook(encoder))
        if model.config.kind == "encoder-decoder":
            num_cross = min(length, room // 2)
            model.write_cross_kv(hidden[:num_cross], cache, np.arange(num_cross) + cache.block_size)
    if model.config.kind != "encoder":
        _warm_up_decoder(model, cache, min(max_model_len, room), num_cross)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    if model.device.type == "cpu":
        _warm_up_rows(model, cache, max_model_len, max_num_seqs, max_num_batched_tokens)
        give_back_memory()


def _warm_up_decoder(model: Transformer, cache: KVCache, room: int, num_cross: int) -> None:
    length = max(1, min(_PROMPT, room - 1))
    table = list(range(1, cache.num_blocks))[: length // cache.block_size + 1]
    # GPU kernels are compiled for each kind of layer; CPU kernels exist already, and each layer takes time.
    of_prompt = model.config.num_layers if model.device.type == "cuda" else _depth(model.config)
    for start, count, depth in ((0, length, of_prompt), (length - 1, 1, model.config.num_layers)):
        span = Span([0] * count, start, table, depth, range(1, cache.num_blocks), num_cross)
        batch = Batch([span], cache.block_size, model.device)
        hidden = model.forward(batch, cache, _hook(model.config))
        if model.head is not None:
            model.logits(hidden)


def _depth(config: ModelConfig) -> int:
    """Return the number of layers up to the first with attention; the others are similar."""
    return config.attention_layers[0] + 1


def _hook(config: ModelConfig) -> Hooks:
    """Return hooks for one row of one head, to warm up the code of captures."""
    layer = config.attention_layers[0]
    pairs = HeadPairs.of([(layer, 0)], config.num_layers, config.num_heads)
    return Hooks(attention=[AttentionTap(0, [0], pairs, "pattern", RowSink())])


@torch.inference_mode()
def _warm_up_rows(
    model: Transformer, cache: KVCache, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    """Run rows through `_depth` blocks: the products of the others have the same shapes."""
    rows, depth = max_num_batched_tokens, _depth(model.config)
    encoder = model.config if model.config.kind == "encoder" else model.config.encoder
    piece = min(_PIECE, max_model_len) if encoder is None else min(_PIECE, max_model_len, encoder.max_model_len)
    counts = [min(piece, rows - start) for start in range(0, rows, piece)]
    if encoder is not None:
        model.encode(Batch.unchunked([[0] * n for n in counts], cache.block_size, model.device, [1] * len(counts)))
    if model.decoder is not None:
        if encoder is not None:
            model.decoder.blocks[0].cross_attention.kv(model.tokens.new_zeros(rows, encoder.hidden_size))
        spans = [_padding_span(n, depth, cache.block_size, model.config.cross_attention) for n in counts]
        model.forward(Batch(spans, cache.block_size, model.device), cache)
        # Scores of the longest context in every thread: for single rows, and for rows that share their keys.
        for num_spans, num_rows in ((2 * num_threads(), 1), (1, min(TILE_ROWS, max_model_len))):
            last = _padding_span(max_model_len, depth, cache.block_size, model.config.cross_attention)
            span = replace(last, token_ids=[0] * num_rows, start=max_model_len - num_rows)
            model.forward(Batch([span] * num_spans, cache.block_size, model.device), cache)
    if model.head is not None:
        hidden = model.tokens.new_zeros(max_num_seqs, model.config.hidden_size)
        largest(model.logits(hidden, widen=False), model.kernels)
        model.largest_logits(hidden[:1])


def _padding_span(count: int, num_layers: int, block_size: int, has_cross: bool) -> Span:
    """Return `count` rows for `num_layers` layers, with all keys and values in the null block."""
    return Span([0] * count, 0, [NULL_BLOCK] * -(-count // block_size), num_layers, [NULL_BLOCK], 1 if has_cross else 0)
