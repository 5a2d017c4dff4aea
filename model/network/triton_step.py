"""Runs all blocks of a stack by our Triton kernels: one launch between two products, or two for batches with both
decoded and prompt rows.

Its hooks read only patterns, which attention writes; the separate blocks serve all other hooks.

Axes: T rows, H query heads, K key heads, D head dimension, d model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import ClampedGate
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.hooks.pattern_plan import PatternPlan
from lightwell.model.kernels.cuda.add_norm import MAX_WIDTH, add_norm
from lightwell.model.kernels.cuda.gate import gated
from lightwell.model.kernels.cuda.norms import NormWeights
from lightwell.model.kernels.cuda.paged_keys import Arrivals, PatternRows
from lightwell.model.kernels.cuda.rotate_and_store import rotate_and_store
from lightwell.model.kernels.cuda.token_ids import known_tokens
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.device_batch import DeviceBatch, Packing
from lightwell.model.layers.norm import LayerNorm, Norm, RmsNorm
from lightwell.model.layers.rope import Rope
from lightwell.model.layers.triton_attention import TritonAttention, attend
from lightwell.model.network.block import Block, Residual
from lightwell.model.network.embedding import Embedding
from lightwell.model.network.sublayers import CrossAttention, SelfAttention


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """The inputs of one pass."""

    inputs: DeviceBatch
    caches: Sequence[LayerCache]
    max_len: int
    """An upper bound of the keys of a span."""
    patterns: Tensor | None
    """[n] float32: the buffer of the patterns, or None."""

    def pattern_rows(self, layer: int, num_heads: int) -> PatternRows | None:
        """Return the places of one layer's patterns, or None."""
        if self.patterns is None:
            return None
        inputs = self.inputs
        slots = inputs.tail[layer * num_heads :]
        return PatternRows(slots, inputs.row_slots, inputs.pattern_starts, inputs.pattern_strides, self.patterns)


class TritonStep:
    """The embedding, blocks and final norm of one stack."""

    def __init__(
        self, embedding: Embedding, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]
    ) -> None:
        """Keep the parts, which `of` has checked. ropes: one for each block."""
        self._embedding = embedding
        self._blocks = blocks
        self._final_norm = None if final_norm is None else _weights_of(final_norm)
        self._tables = [None if rope is None else (rope.cos, rope.sin) for rope in ropes]
        self._norms = {id(norm): _weights_of(norm) for block in blocks for norm in _norms(block)}
        self._arrivals = Arrivals()

    @classmethod
    def of(
        cls, embedding: Embedding, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]
    ) -> Self | None:
        """Return the step of a stack, or None if our Triton kernels cannot run it. ropes: one for each block."""
        if not all(map(_is_supported, blocks)):
            return None
        norms = [norm for block in blocks for norm in _norms(block)] + ([] if final_norm is None else [final_norm])
        if not all(isinstance(norm, RmsNorm | LayerNorm) and len(norm.weight) <= MAX_WIDTH for norm in norms):
            return None
        return cls(embedding, blocks, final_norm, ropes)

    @property
    def device(self) -> torch.device:
        return self._embedding.tokens.device

    @property
    def serves_hooks(self) -> bool:
        """Return whether attention writes patterns for hooks, which requires all heads."""
        return self._blocks[0].self_attention.heads.are_all

    def plan(self, batch: Batch, hooks: Hooks | None) -> PatternPlan | None:
        """Return the patterns that attention writes, or None if the hooks read something else.

        A rank with only some of the heads serves no hooks.
        """
        if hooks is not None and not self.serves_hooks:
            return None
        return PatternPlan.of(hooks or Hooks(), batch)

    def __call__(self, batch: Batch, caches: Sequence[LayerCache], plan: PatternPlan) -> Tensor:
        """Run a batch, deliver the patterns, and return the result of `Stack.__call__`.

        Exceptions of `batch.check`, between two blocks, are passed on; the caches then hold the rows of some layers.
        """
        packing = Packing.of(batch, plan.rooms)
        patterns = torch.empty(plan.size, dtype=torch.float32, device=self.device) if plan.size else None
        hidden = self.run(DeviceBatch.upload(packing, self.device), caches, packing.longest, patterns)
        if patterns is not None:
            plan.deliver(patterns.cpu())
        return hidden

    def run(
        self, inputs: DeviceBatch, caches: Sequence[LayerCache], max_len: int, patterns: Tensor | None = None
    ) -> Tensor:
        """Run a batch that is on the device. max_len: an upper bound of the keys of a span."""
        step = _Pass(inputs, caches, max_len, patterns)
        if inputs.last_tokens is not None:
            inputs.token_ids = known_tokens(inputs.token_ids, inputs.last_tokens)
        x = self._embedding(inputs)
        normed: Tensor | None = None
        for block, following in pairwise((*self._blocks, None)):
            assert block is not None
            rows = inputs.num_rows_at(block.index)
            if rows == 0:
                return x[:0]
            inputs.check()
            x = x[:rows]
            if normed is None:
                normed = self._normed(block.attention, x)
            if not inputs.needs_output_of(block.index):
                write = self._queries if patterns is None else self._values  # `_values` also writes patterns
                write(block, normed[:rows], step)
                return x[:0]
            last = self._final_norm if following is None else self._weights(following.attention.before)
            x, normed = self._block(block, x, normed[:rows], last, step)
        assert normed is not None
        return normed  # the stream itself without a final norm

    def _block(
        self, block: Block, x: Tensor, normed: Tensor, last: NormWeights | None, step: _Pass
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream [T, d] after a block, and the input of the next block's attention."""
        added = block.self_attention.heads.out(self._values(block, normed, step).flatten(1))
        if block.parallel:
            mlp = block.mlp.scaled(_feed_forward(block, self._normed(block.mlp, x)))
            return _both(add_norm(x, (mlp, block.attention.scaled(added)), before=last))
        for residual, following in pairwise((*block.residuals, None)):
            assert residual is not None
            if residual is block.mlp:
                added = _feed_forward(block, normed)
            elif residual is block.cross:
                added = self._attend_across(block, normed, step)
            x, normed = _both(
                add_norm(
                    x,
                    (residual.scaled(added),),
                    after=self._weights(residual.after),
                    of_sum=self._weights(residual.of_sum),
                    before=last if following is None else self._weights(following.before),
                )
            )
        return x, normed

    def _weights(self, norm: Norm | None) -> NormWeights | None:
        return None if norm is None else self._norms[id(norm)]

    def _normed(self, residual: Residual[Any], x: Tensor) -> Tensor:
        """Return a sublayer's input for the stream x [T, d]."""
        return x if residual.before is None else _both(add_norm(x, (), before=self._weights(residual.before)))[1]

    def _queries(self, block: Block, normed: Tensor, step: _Pass) -> Tensor:
        """Return rotated queries [T, H, D], and write keys and values to the cache."""
        own, inputs, cache = block.self_attention, step.inputs, step.caches[block.index]
        qkv = own.qkv(normed).view(len(normed), -1, own.head_dim)
        return rotate_and_store(
            qkv,
            self._tables[block.index],
            inputs.rotary_rows[: len(qkv)],
            inputs.slots[: len(qkv)],
            cache.rows_of_keys,
            cache.values,
            q_norm=self._weights(own.q_norm),
            k_norm=self._weights(own.k_norm),
        )

    def _values(self, block: Block, normed: Tensor, step: _Pass) -> Tensor:
        """Return the heads' results [T, H, D], and write the patterns."""
        own = block.self_attention
        q = self._queries(block, normed, step)
        keys = step.inputs.keys(causal=own.causal, window=own.window)
        patterns = step.pattern_rows(block.index, own.num_heads)
        return attend(
            q, step.caches[block.index], step.inputs, keys, own.heads.rule, step.max_len, self._arrivals, patterns
        )

    def _attend_across(self, block: Block, normed: Tensor, step: _Pass) -> Tensor:
        """Return the output of cross attention [T, d]."""
        own: CrossAttention = block.cross_attention
        q = own.q(normed).view(len(normed), -1, own.head_dim)
        keys = step.inputs.keys(causal=False, is_cross=True)
        z = attend(q, step.caches[block.index], step.inputs, keys, own.heads.rule, step.max_len, self._arrivals)
        return own.heads.out(z.flatten(1))


def _is_supported(block: Block) -> bool:
    """Return whether the kernels support a block. It has attention with its own keys and values, without gates and a
    norm of values, and an mlp without a clamped gate: the rows of experts are not known before a step. No sublayer is
    scaled before a norm, no factor or gate follows the last one.
    """
    attention, mlp = block.attention.f, block.one_mlp
    if not isinstance(attention, SelfAttention) or not isinstance(attention.heads.attention, TritonAttention):
        return False
    if mlp is None or isinstance(mlp.gate, ClampedGate) or block.per_layer is not None:
        return False
    if not attention.has_kv or attention.v_norm is not None or attention.gated:
        return False
    is_scaled = any(each.scale != 1 and each.after is not None for each in block.residuals)
    return not is_scaled and block.residuals[-1].stream_scale is None


def _feed_forward(block: Block, normed: Tensor) -> Tensor:
    """Return the output of the mlp [T, d]."""
    own = block.one_mlp
    assert own is not None
    assert not isinstance(own.gate, ClampedGate)
    up = own.up(normed)
    return own.down(up if own.gate is None else gated(up, own.gate))


def _both(found: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return a stream and the next sublayer's input, which is the stream itself without a norm."""
    x, normed = found
    return x, x if normed is None else normed


def _norms(block: Block) -> list[Norm]:
    """Return all norms of a block."""
    of_heads = block.self_attention.q_norm, block.self_attention.k_norm
    around = (norm for each in block.residuals for norm in (each.before, each.after, each.of_sum))
    return [norm for norm in (*of_heads, *around) if norm is not None]


def _weights_of(norm: Norm) -> NormWeights:
    """Return a norm in the kernels' form."""
    if isinstance(norm, RmsNorm):
        return NormWeights("rmsnorm", norm.weight, norm.eps, rounds_once=norm.rounds_once)
    assert isinstance(norm, LayerNorm)
    return NormWeights("layernorm", norm.weight, norm.eps, norm.bias)
