"""Runs a step of few rows through all blocks of a decoder in one call, with the bits of the blocks one by one.

Such a step's products take microseconds each, and what torch and Python do between them takes as long again. This
module knows which blocks the kernels can replace; it computes nothing itself.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeGuard, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from model.batch import Batch
from model.hooks.attention_hooks import Attended, deliver_rows
from model.hooks.hooks import Hooks
from model.kernels.attention import AttentionItems
from model.kernels.decoder import Decoder
from model.kernels.decoder_parts import AdapterChanges, Change, DecoderLayer, DecoderRows, LayerCaches, Product
from model.kernels.forms import LaidWeight
from model.kernels.library import num_threads
from model.kv_cache import LayerCache
from model.layers.attention import NativeAttention
from model.layers.linear import Linear
from model.layers.lora import AdaptedRows, Adapter
from model.layers.norm import Norm, RmsNorm
from model.layers.rope import Rope, rotary_rows
from model.network.block import Block, Residual
from model.network.sublayers import SelfAttention

_WORK_BETWEEN_CHECKS = 1 << 25
"""Most weights that one call reads, or one layer's: some milliseconds. A key of a head counts as 64; adapters do not
count.
"""

MOST_ROWS = 256
"""The most rows of a step that `can_run`: with more, the products take so long that Python's and torch's time is
negligible.
"""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a block that the kernels replace."""

    attention: SelfAttention
    gate_up: Linear
    down: Linear
    before_attention: RmsNorm
    before_mlp: RmsNorm

    @classmethod
    def of(cls, block: Block) -> Self | None:
        """Return the parts, or None if the block has something else."""
        if block.parallel or block.cross is not None or not block.is_plain:
            return None
        attention, mlp = block.attention.f, block.one_mlp
        if not isinstance(attention, SelfAttention) or attention.gated:
            return None
        before_attention, before_mlp = _norm_before(block.attention), _norm_before(block.mlp)
        if before_attention is None or before_mlp is None or mlp is None or mlp.gate != "silu":
            return None
        rule = attention.heads.rule
        if rule.bias is not None or rule.sinks is not None:
            return None
        if not isinstance(attention.heads.attention, NativeAttention):
            return None
        return cls(attention, mlp.up, mlp.down, before_attention, before_mlp)

    def linears(self) -> dict[str, Linear]:
        """Return the layers of the products by the kernels' names."""
        heads = self.attention.heads
        return {"qkv": self.attention.qkv, "out": heads.out, "gate_up": self.gate_up, "down": self.down}

    def norms(self) -> list[RmsNorm]:
        of_heads = self.attention.q_norm, self.attention.k_norm
        return [self.before_attention, self.before_mlp, *(norm for norm in of_heads if _is_native(norm))]

    def layer(self, rope: Rope | None, key_range: int) -> DecoderLayer:
        """Return the parts in the form that the kernels take."""
        q_norm, k_norm = (
            None if norm is None else norm.weight for norm in (self.attention.q_norm, self.attention.k_norm)
        )
        return DecoderLayer(
            **{name: _product(linear) for name, linear in self.linears().items()},
            before_attention=self.before_attention.weight,
            before_mlp=self.before_mlp.weight,
            q_norm=q_norm,
            k_norm=k_norm,
            rotary_tables=None if rope is None else (rope.cos, rope.sin),
            key_range=key_range,
        )


def _product(linear: Linear) -> Product:
    return Product(cast(LaidWeight, linear.weight), linear.bias)  # of a block whose attention and norms are native


def _norm_before(residual: Residual[Any]) -> RmsNorm | None:
    """Return the only norm of a residual, or None if the kernels cannot compute it."""
    alone = residual.after is None and residual.of_sum is None
    return residual.before if alone and _is_native(residual.before) else None


def _is_native(norm: Norm | None) -> TypeGuard[RmsNorm]:
    return isinstance(norm, RmsNorm) and norm.native


class DecodeStep:
    """The blocks of one decoder, and the norm after them."""

    def __init__(
        self,
        parts: Sequence[_Parts],
        final_norm: RmsNorm | None,
        ropes: Sequence[Rope | None],
        residual_scale: float,
    ) -> None:
        """Keep the parts. ropes: one for each layer; residual_scale: of what each sublayer adds. All parts have norms
        of one kind, and one rule of attention.
        """
        self._parts = parts
        self._windows = list(dict.fromkeys(each.attention.window for each in parts))
        layers = [
            each.layer(rope, self._windows.index(each.attention.window))
            for each, rope in zip(parts, ropes, strict=True)
        ]
        first, norm = parts[0].attention, parts[0].before_attention
        self._num_heads, self._num_kv_heads, self._head_dim = first.num_heads, first.num_kv_heads, first.head_dim
        self._decoder = Decoder(
            layers,
            None if final_norm is None else final_norm.weight,
            dtype=layers[0].qkv.weight.row_dtype,
            num_heads=first.num_heads,
            num_key_heads=first.num_kv_heads,
            head_dim=first.head_dim,
            eps=norm.eps,
            scale=first.heads.rule.scale,
            softcap=first.heads.rule.softcap,
            residual_scale=residual_scale,
        )
        self._num_weights = sum(each.in_features * each.out_features for each in parts[0].linears().values())
        self._changes: WeakKeyDictionary[Adapter, AdapterChanges] = WeakKeyDictionary()
        self._caches: Sequence[LayerCache] = ()
        self._layer_caches: LayerCaches | None = None

    @classmethod
    def of(cls, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> Self | None:
        """Return the step of a causal stack, or None if the kernels cannot replace its blocks here. ropes: one for
        each block.
        """
        parts = [part for block in blocks if (part := _Parts.of(block)) is not None]
        if len(parts) < len(blocks) or not parts:
            return None
        if not (final_norm is None or _is_native(final_norm)):
            return None
        rules = {(part.attention.heads.rule.scale, part.attention.heads.rule.softcap) for part in parts}
        norms = [norm for part in parts for norm in part.norms()] + ([final_norm] if final_norm else [])
        if len(rules) > 1 or len({(norm.eps, norm.rounds_once) for norm in norms}) > 1:
            return None
        scales = {residual.scale for block in blocks for residual in block.residuals}
        return cls(parts, final_norm, ropes, scales.pop()) if len(scales) == 1 else None

    def can_run(self, batch: Batch, hooks: Hooks | None) -> bool:
        """Return whether there are few rows that see few keys and need all layers, and whether hooks read at most
        attention.
        """
        last = len(self._parts) - 1
        if batch.num_rows > MOST_ROWS or batch.num_rows_at(last) < batch.num_rows:
            return False
        if not batch.needs_output_of(last):
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
        """Return the final-normed rows [R, d] of x [R, d], which may be overwritten; keys and values are written to the
        caches.

        Raises what `batch.check` raises, between two calls; the caches then hold the rows of some layers.
        """
        x = x.contiguous()
        key_ranges = [batch.key_range(True, window) for window in self._windows]
        shape = batch.num_rows, self._num_heads, self._head_dim
        found = {} if hooks is None else {n: hooks.at(n) for n in range(len(caches))}
        wanted = {n: layer_hooks for n, layer_hooks in found.items() if layer_hooks is not None}
        queries = {n: torch.empty(shape) for n in wanted}
        counts = np.diff(batch.first_rows)
        (items,) = self._items(batch)
        alone = np.repeat(counts == 1, counts)
        rows = DecoderRows(
            [each.seen for each in key_ranges],
            items,
            batch.slots_array,
            alone,
            self._num_kv_heads,
            rotary_rows(batch),
        )
        memory, num_layers, out = self._memory(caches), len(caches), x
        changes = [] if adapted is None else [(run, self._changes_of(adapter)) for run, adapter in adapted.runs]
        work = self._num_weights * (1 + len(x) // 16) + 64 * int(key_ranges[0].last_array.sum()) * self._num_heads
        step = max(1, _WORK_BETWEEN_CHECKS // work)
        for start in range(0, num_layers, step):
            batch.check()
            end = min(start + step, num_layers)
            out = self._decoder.run(x, rows, memory, first_layer=start, end_layer=end, queries=queries, adapted=changes)
        for n, layer_hooks in wanted.items():  # whose keys are in the caches
            attention = self._parts[n].attention
            heads, key_range = attention.heads, key_ranges[self._windows.index(attention.window)]
            deliver_rows(
                Attended(heads.attention, heads.rule, queries[n], caches[n], key_range, False, batch.check), layer_hooks
            )
        return out

    def _memory(self, caches: Sequence[LayerCache]) -> LayerCaches:
        """Return the caches in the form that the kernels take; they are the same in every step of a server."""
        if self._layer_caches is None or caches is not self._caches:
            self._layer_caches = LayerCaches([(each.keys, each.values) for each in caches])
            self._caches = caches
        return self._layer_caches

    def _changes_of(self, adapter: Adapter) -> AdapterChanges:
        """Return what an adapter changes in the form that the kernels take, which is kept as long as the adapter is."""
        found = self._changes.get(adapter)
        if found is None:
            found = self._changes[adapter] = self._decoder.changes(
                [
                    {
                        name: Change(_product(change.down), _product(change.up))
                        for name, linear in part.linears().items()
                        if (change := adapter.changes.get(linear)) is not None
                    }
                    for part in self._parts
                ]
            )
        return found
