"""The first steps, run before anyone waits for them: kernels compile, oneDNN writes the code of its products.

It writes code for each number of rows that a product meets, in a millisecond and a tenth of a megabyte or more. Where
memory is limited that may come to fail long after the start, and with it a step that asked for nothing new. So every
number of rows that serving can meet is met here (`padded_sizes`), and what the tensors took is given back. Kernels of
ours are the same for any number of rows beyond some, so where all products are theirs, fewer will do.
"""

from collections.abc import Sequence

import numpy as np
import torch

from model.batch import Batch, Span, padded_sizes
from model.capture import AttentionTap, Looks
from model.inside.live_weights import linears_of
from model.kv_cache import KVCache
from model.layers.linear import Linear
from model.row_search import largest
from model.stack import Stack
from model.transformer import Transformer
from server.engine.block_manager import NULL_BLOCK
from server.engine.memory_limit import give_back_memory

_PROMPT = 96
"""Tokens, enough for the kernels that spread many rows over threads; one more token takes those for a few rows."""
_PIECE = 64
"""Most rows of one sequence where only the products count: attention over a long one would take longest."""
_ALIKE = 256
"""Rows beyond which kernels of ours are the same for any number: one such is met."""


def warm_up(
    model: Transformer, cache: KVCache, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    """Run a prompt through each stack, and one more token in the cache's first blocks, which hold nothing yet; on a CPU
    then every number of rows up to `max_num_batched_tokens` through one block, and up to `max_num_seqs` the head.
    """
    encoder = model.config if model.config.kind == "encoder" else model.config.encoder
    room = (cache.num_blocks - 1) * cache.block_size
    num_cross = 0
    if encoder is not None:
        length = max(1, min(_PROMPT, max_model_len, encoder.max_model_len))
        batch = Batch.unchunked([[0] * length], cache.block_size, model.device, [encoder.num_layers])
        model.encode(batch)
        hidden = model.encode(batch, _look())
        if model.config.kind == "encoder-decoder":
            num_cross = min(length, room // 2)
            model.enter_cross(hidden[:num_cross], cache, np.arange(num_cross) + cache.block_size)
    if model.config.kind != "encoder":
        _warm_up_decoder(model, cache, min(max_model_len, room), num_cross)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    if model.device.type == "cpu":
        _warm_up_products(model, cache, max_model_len, max_num_seqs, max_num_batched_tokens)
        give_back_memory()


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


@torch.inference_mode()
def _warm_up_products(
    model: Transformer, cache: KVCache, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    """All blocks have products of the same shapes, so one that oneDNN has a part in will do."""
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    sizes = padded_sizes(max_num_batched_tokens)
    num_layers = max(map(_layers_to_code, stacks))
    if not num_layers:
        sizes, num_layers = [*(size for size in sizes[:-1] if size <= _ALIKE), sizes[-1]], 1
    encoder = model.config if model.config.kind == "encoder" else model.config.encoder
    piece = min(_PIECE, max_model_len) if encoder is None else min(_PIECE, max_model_len, encoder.max_model_len)
    for rows in sizes:
        counts = _counts(rows, piece)
        if encoder is not None:
            layers = [min(num_layers, encoder.num_layers)] * len(counts)
            model.encode(Batch.unchunked([[0] * n for n in counts], cache.block_size, model.device, layers))
        if model.decoder is None:
            continue
        if encoder is not None:
            model.decoder.blocks[0].cross_attention.kv(model.tokens.new_zeros(rows, encoder.hidden_size))
        depth = min(num_layers, model.config.num_layers)
        spans = [_nobodys_span(n, depth, cache.block_size, model.config.cross_attention) for n in counts]
        model.forward(Batch(spans, cache.block_size, model.device), cache)
    if model.head is not None:
        for rows in padded_sizes(max_num_seqs):
            largest(model.logits(model.tokens.new_zeros(rows, model.config.hidden_size), widen=False))
        model.largest_logits(model.tokens.new_zeros(1, model.config.hidden_size))


def _layers_to_code(stack: Stack) -> int:
    """How many layers a pass needs to meet every product that oneDNN writes code for, which it does for each number of
    rows; 0 if none. Most stacks have blocks of one kind, but some weights of a checkpoint may be narrow and others not.
    """
    met: set[str] = set()
    needed = 0
    for i, block in enumerate(stack.blocks):
        coded = {name for name, linear in linears_of(block).items() if _is_coded(linear)}
        needed = needed if coded <= met else i + 1
        met |= coded
    return needed


def _is_coded(linear: Linear) -> bool:
    return linear.narrow is None and linear.tiles is None and linear.int8 is None


def _counts(rows: int, piece: int) -> Sequence[int]:
    """`rows` as lengths of sequences: pieces, and what is left."""
    rest = [rows % piece] if rows % piece else []
    return [piece] * (rows // piece) + rest


def _nobodys_span(count: int, num_layers: int, block_size: int, has_cross: bool) -> Span:
    """Rows for so many layers, whose keys and values all go to the block that nobody reads."""
    return Span([0] * count, 0, [NULL_BLOCK] * -(-count // block_size), num_layers, [NULL_BLOCK], 1 if has_cross else 0)
