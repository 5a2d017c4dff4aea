"""Runs a step of few rows through all blocks of a decoder in one call, with the same bits as the separate blocks.

The products of such a step take microseconds each, and the overhead of torch and Python between them takes as long.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, L layers.
"""

from collections.abc import Sequence
from typing import Self, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.attention_hooks import Attended, deliver_rows
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.kernels.attention import AttentionItems
from lightwell.model.kernels.decoder import (
    AdapterChanges,
    Change,
    Decoder,
    DecoderLayer,
    DecoderRows,
    LayerCaches,
    Product,
)
from lightwell.model.kernels.library import num_threads
from lightwell.model.kernels.products import LaidWeight
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import NativeAttention
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import AdaptedRows, Adapter
from lightwell.model.layers.norm import Norm, RmsNorm
from lightwell.model.layers.rope import Rope, rotary_rows
from lightwell.model.network.block import Block

_WORK_BETWEEN_CHECKS = 1 << 25
"""Largest number of weights that one call reads, if it runs several layers: some milliseconds. A key of a head counts
as 64 weights; adapters do not count.
"""

MOST_ROWS = 256
"""Largest number of rows of a step. With more rows, the overhead of Python and torch is negligible."""


def _is_supported(block: Block) -> bool:
    """Return whether the kernels can replace a block."""
    mlp = block.one_mlp
    if block.parallel or block.cross is not None or not block.is_plain or mlp is None or mlp.gate != "silu":
        return False
    heads = block.self_attention.heads
    if heads.rule.bias is not None or heads.rule.sinks is not None or not isinstance(heads.attention, NativeAttention):
        return False
    return all(each.after is None and each.of_sum is None and _is_native(each.before) for each in block.residuals)


def _is_native(norm: Norm | None) -> bool:
    return isinstance(norm, RmsNorm) and norm.native


def _norms(block: Block) -> list[RmsNorm]:
    """Return the norms of a supported block: before attention, before the mlp, and of queries and keys if present."""
    attention = block.self_attention
    norms = block.attention.before, block.mlp.before, attention.q_norm, attention.k_norm
    return [norm for norm in norms if isinstance(norm, RmsNorm)]


def _linears(block: Block) -> dict[str, Linear]:
    """Return the matrices of a supported block by the kernels' names."""
    own = block.linears
    return {"qkv": own["qkv"], "out": own["attn_out"], "gate_up": own["up"], "down": own["down"]}


def _product(linear: Linear) -> Product:
    return Product(cast(LaidWeight, linear.weight), linear.bias)  # native, like the block's attention and norms


def _layer(block: Block, rope: Rope | None, key_range: int) -> DecoderLayer:
    """Return a supported block in the kernels' form. key_range: the index of its range of keys."""
    own = block.self_attention
    before_attention, before_mlp, *_ = _norms(block)
    return DecoderLayer(
        **{name: _product(linear) for name, linear in _linears(block).items()},
        before_attention=before_attention.weight,
        before_mlp=before_mlp.weight,
        q_norm=None if own.q_norm is None else own.q_norm.weight,
        k_norm=None if own.k_norm is None else own.k_norm.weight,
        rotary_tables=None if rope is None else (rope.cos, rope.sin),
        key_range=key_range,
    )


class DecodeStep:
    """The blocks of one decoder, and the norm after them."""

    def __init__(self, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> None:
        """Keep the blocks, which `of` has checked. ropes: one for each block."""
        self._blocks = blocks
        windows = [block.self_attention.window for block in blocks]
        self._windows = list(dict.fromkeys(windows))
        layers = [
            _layer(block, rope, self._windows.index(window))
            for block, rope, window in zip(blocks, ropes, windows, strict=True)
        ]
        first = blocks[0].self_attention
        self._num_heads, self._num_kv_heads, self._head_dim = first.num_heads, first.num_kv_heads, first.head_dim
        self._decoder = Decoder(
            layers,
            None if final_norm is None else final_norm.weight,
            dtype=layers[0].qkv.weight.row_dtype,
            num_heads=first.num_heads,
            num_key_heads=first.num_kv_heads,
            head_dim=first.head_dim,
            eps=_norms(blocks[0])[0].eps,
            scale=first.heads.rule.scale,
            softcap=first.heads.rule.softcap,
            residual_scale=blocks[0].attention.scale,
        )
        self._num_weights = sum(each.in_features * each.out_features for each in _linears(blocks[0]).values())
        self._changes: WeakKeyDictionary[Adapter, AdapterChanges] = WeakKeyDictionary()
        self._caches: Sequence[LayerCache] = ()
        self._layer_caches: LayerCaches | None = None

    @classmethod
    def of(cls, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> Self | None:
        """Return the step of a causal stack, or None if the kernels cannot replace its blocks."""
        if not blocks or not all(map(_is_supported, blocks)) or not (final_norm is None or _is_native(final_norm)):
            return None
        norms = [norm for block in blocks for norm in _norms(block)]
        norms += [final_norm] if isinstance(final_norm, RmsNorm) else []
        rules = [block.self_attention.heads.rule for block in blocks]
        kinds = (
            {(rule.scale, rule.softcap) for rule in rules},
            {(norm.eps, norm.rounds_once) for norm in norms},
            {residual.scale for block in blocks for residual in block.residuals},
        )
        return cls(blocks, final_norm, ropes) if all(len(kind) == 1 for kind in kinds) else None

    def can_run(self, batch: Batch, hooks: Hooks | None) -> bool:
        """Return whether the batch has few rows with few keys, which all need all layers, and whether hooks read at
        most attention.
        """
        last = len(self._blocks) - 1
        if batch.num_rows > MOST_ROWS or batch.num_rows_at(last) < batch.num_rows or not batch.needs_output_of(last):
            return False
        if hooks is not None and (hooks.reads or hooks.changes or hooks.attention_changes):
            return False
        return len(self._items(batch)) == 1

    def _items(self, batch: Batch) -> list[AttentionItems]:
        return batch.attention_items(batch.num_rows, self._num_kv_heads, num_threads())

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        caches: Sequence[LayerCache],
        hooks: Hooks | None,
        adapted: AdaptedRows | None = None,
    ) -> Tensor:
        """Return the final-normed rows [R, d] of x [R, d], which may be overwritten, and write keys and values to the
        caches.

        Exceptions of `batch.check`, between two calls, are passed on; the caches then hold the rows of some layers.
        """
        x = x.contiguous()
        key_ranges = [batch.key_range(True, window) for window in self._windows]
        shape = batch.num_rows, self._num_heads, self._head_dim
        wanted = {} if hooks is None else {n: own for n in range(len(caches)) if (own := hooks.at(n)) is not None}
        queries = {n: torch.empty(shape) for n in wanted}
        counts = np.diff(batch.first_rows)
        (items,) = self._items(batch)
        alone = np.repeat(counts == 1, counts)
        rows = DecoderRows(
            [each.seen for each in key_ranges], items, batch.slots_array, alone, self._num_kv_heads, rotary_rows(batch)
        )
        memory, num_layers, out = self._memory(caches), len(caches), x
        changes = [] if adapted is None else [(run, self._changes_of(adapter)) for run, adapter in adapted.runs]
        work = self._num_weights * (1 + len(x) // 16) + 64 * int(key_ranges[0].last_array.sum()) * self._num_heads
        step = max(1, _WORK_BETWEEN_CHECKS // work)
        for start in range(0, num_layers, step):
            batch.check()
            end = min(start + step, num_layers)
            out = self._decoder.run(x, rows, memory, first_layer=start, end_layer=end, queries=queries, adapted=changes)
        for n, layer_hooks in wanted.items():  # after the kernels have written the keys
            attention = self._blocks[n].self_attention
            heads, key_range = attention.heads, key_ranges[self._windows.index(attention.window)]
            deliver_rows(
                Attended(heads.attention, heads.rule, queries[n], caches[n], key_range, False, batch.check), layer_hooks
            )
        return out

    def _memory(self, caches: Sequence[LayerCache]) -> LayerCaches:
        """Return the caches in the kernels' form. A server's steps all use the same caches."""
        if self._layer_caches is None or caches is not self._caches:
            self._layer_caches = LayerCaches([(each.keys, each.values) for each in caches])
            self._caches = caches
        return self._layer_caches

    def _changes_of(self, adapter: Adapter) -> AdapterChanges:
        """Return an adapter's changes in the kernels' form, which is kept as long as the adapter."""
        found = self._changes.get(adapter)
        if found is None:
            found = self._changes[adapter] = self._decoder.changes(
                [
                    {
                        name: Change(_product(change.down), _product(change.up))
                        for name, linear in _linears(block).items()
                        if (change := adapter.changes.get(linear)) is not None
                    }
                    for block in self._blocks
                ]
            )
        return found
