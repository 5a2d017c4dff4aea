"""Attention over the paged KV cache, for rows and the ranges of keys that they see.

The score of a row and a key is q.k * scale, then capped (Gemma 2), plus a bias by distance (T5), and -inf where the row
does not see the key. `KeyRange` holds the visible keys, so one implementation serves causal, windowed, bidirectional
and cross attention. A head may have a sink (gpt-oss): an additional score without a key, which takes part of each row's
weight.

`NativeAttention` uses our CPU kernels (float32 and bfloat16): each row has the same bits in any batch. `PlainAttention`
uses torch operations on one sequence at a time, on any device and in any dtype, as the reference for the others; with
`InvariantArithmetic` it is batch invariant too. `BatchedAttention` and `TritonAttention` extend it.

Axes: T rows, H query heads, K key heads, D head dimension, S keys of one sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch, KeyRange
from lightwell.model.kernels.attention import PatternOutput, attend, attention_rows, mix_rows, softmax_rows
from lightwell.model.kernels.encoder import attend_texts
from lightwell.model.kernels.library import num_threads
from lightwell.model.kernels.products import DOT
from lightwell.model.kernels.rows import rotate_and_store
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention_arithmetic import Arithmetic, at_least_float32, softmax_with_sinks
from lightwell.model.layers.rope import Rope

RotaryTables = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRule:
    """The formula of scores."""

    scale: float
    """Factor of q.k."""
    softcap: float | None = None
    """Cap of softcap * tanh(score / softcap), applied before the bias, or None."""
    bias: Tensor | None = None
    """Bias by distance, [H, 2 * reach - 1], float32 (float64 in float64), or None: bias[h, key - query + reach - 1] is
    added. Positions must be less than `reach`.
    """
    sinks: Tensor | None = None
    """Score of each head's sink (Xiao et al. 2023, arXiv:2309.17453, section 3.2), [H], float32 (float64 in float64),
    or None. Its weight is part of the softmax's sum, and is left out of the pattern.
    """

    def sinks_of(self, heads: Sequence[int]) -> Tensor | None:
        """Return the sinks [n] of these heads, or None."""
        return None if self.sinks is None else self.sinks[list(heads)]


@dataclass(frozen=True, slots=True, eq=False)
class CachedKV:
    """The cached keys and values of one sequence of a batch."""

    cache: LayerCache
    key_range: KeyRange
    index: int
    """The index of the sequence's span in the batch."""

    @property
    def num_keys(self) -> int:
        return self.key_range.num_keys(self.index)

    def keys(self) -> Tensor:
        """Return a copy [S, K, D] of the cached (rotated) keys in order."""
        blocks = self.cache.keys[self._table()]  # [J, K, D, B]
        return blocks.permute(0, 3, 1, 2).flatten(0, 1)[: self.num_keys]

    def values(self) -> Tensor:
        """Return a copy [S, K, D] of the values in order."""
        blocks = self.cache.values[self._table()]  # [J, K, B, D]
        return blocks.permute(0, 2, 1, 3).flatten(0, 1)[: self.num_keys]

    def _table(self) -> Tensor:
        num_blocks = -(-self.num_keys // self.key_range.block_size)
        return self.key_range.tables(self.cache.keys.device)[self.index, :num_blocks]


class AttentionRows(Protocol):
    """The interface for hooks: scores, patterns and mixed values of chosen rows and heads."""

    def rows(
        self, q: Tensor, rows: Sequence[int], heads: Sequence[int], span: CachedKV, rule: AttentionRule, kind: str
    ) -> Tensor:
        """Return numbers [heads, rows, S] of batch rows of one span, float32 (float64 in float64), for q [T, H, D].

        kind: "pattern" (rows sum to 1 without sinks; unseen keys are 0), "scores" (unseen keys are -inf) or "dots"
        (q.k, unseen keys are -inf).
        """

    def softmax(self, scores: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Return the pattern of scores [heads, rows, S], by the steps of `attend`; sinks [heads]."""

    def mix(self, pattern: Tensor, heads: Sequence[int], num_heads: int, span: CachedKV) -> Tensor:
        """Return pattern [heads, rows, S] times the values of one span, by the steps of `attend`.

        num_heads is H. The result is [heads, rows, D] in the cache's dtype.
        """


class Attention(AttentionRows, Protocol):
    """The interface of every implementation of attention."""

    def write_kv(self, qkv: Tensor, rotary_tables: RotaryTables | None, cache: LayerCache, batch: Batch) -> Tensor:
        """Rotate queries and keys, and write keys and values to the cache at the slots of the batch's first T rows.

        qkv [T, H + 2K, D]: query heads, key heads, value heads. rotary_tables: cos and sin [T, 1, R] of `Rope.at`,
        which rotate the first R <= D dimensions; None without rotary positions. Returns the rotated queries [T, H, D].
        """

    def write_cross_kv(self, kv: Tensor, cache: LayerCache, slots: np.ndarray) -> None:
        """Write keys and values of cross attention to the cache.

        kv [E, 2K, D]: key heads, value heads; slots [E] int64: block * block_size + place.
        """

    def attend(self, q: Tensor, cache: LayerCache, batch: Batch, key_range: KeyRange, rule: AttentionRule) -> Tensor:
        """Return softmax(scores) V of the batch's first T rows, whole spans: q [T, H, D] -> [T, H, D].

        q has the dtype of `write_kv`'s result or of the cache. Raises ValueError when the rule's bias is too short.
        """


class PlainAttention:
    """Attention by torch operations, one sequence at a time."""

    def __init__(self, arithmetic: Arithmetic | None = None) -> None:
        self._arithmetic = arithmetic or Arithmetic()

    def write_kv(self, qkv: Tensor, rotary_tables: RotaryTables | None, cache: LayerCache, batch: Batch) -> Tensor:
        key_heads = cache.keys.shape[1]
        turned, v = qkv[:, :-key_heads], qkv[:, -key_heads:]
        if rotary_tables is not None:
            turned = Rope.rotate(turned, rotary_tables[0][: len(qkv)], rotary_tables[1][: len(qkv)])
        self._store(turned[:, -key_heads:], v, cache, self._slots(batch)[: len(qkv)])
        return turned[:, :-key_heads]

    def write_cross_kv(self, kv: Tensor, cache: LayerCache, slots: np.ndarray) -> None:
        k, v = kv.chunk(2, 1)
        self._store(k, v, cache, torch.from_numpy(slots).to(kv.device))

    def _slots(self, batch: Batch) -> Tensor:
        """Return the slots [T] of the batch's rows on its device."""
        return torch.from_numpy(batch.slots_array).to(batch.device)

    @staticmethod
    def _store(k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
        blocks, places = slots // cache.values.shape[2], slots % cache.values.shape[2]
        cache.keys[blocks, :, :, places] = k.to(cache.keys.dtype)
        cache.values[blocks, :, places] = v.to(cache.values.dtype)

    def attend(self, q: Tensor, cache: LayerCache, batch: Batch, key_range: KeyRange, rule: AttentionRule) -> Tensor:
        check_reach(rule, key_range)
        heads = torch.arange(q.shape[1], device=q.device)
        readers = _key_heads(heads, q.shape[1], cache)
        out = torch.empty_like(q)
        for span, first in enumerate(batch.first_rows[:-1]):
            if first >= len(q):
                break
            batch.check()
            rows = slice(first, batch.first_rows[span + 1])
            cached = CachedKV(cache, key_range, span)
            keys, values = cached.keys(), cached.values()
            dots = self._arithmetic.dots(q[rows].transpose(0, 1), keys[:, readers].permute(1, 2, 0))  # [H, rows, S]
            scores = self._scores(dots, heads, key_range, rows, rule)
            pattern = self.softmax(scores, rule.sinks)
            out[rows] = self._arithmetic.mix(pattern, values[:, readers].transpose(0, 1)).transpose(0, 1)
        return out

    def rows(
        self, q: Tensor, rows: Sequence[int], heads: Sequence[int], span: CachedKV, rule: AttentionRule, kind: str
    ) -> Tensor:
        check_reach(rule, span.key_range)
        wide = at_least_float32(q.dtype)
        chosen, where = torch.tensor(list(heads), device=q.device), np.array(rows, np.int64)
        keys = span.keys()[:, _key_heads(chosen, q.shape[1], span.cache)].to(wide)  # [S, heads, D]
        queries = q[torch.from_numpy(where).to(q.device)][:, chosen].to(wide)
        dots = self._arithmetic.dots(queries.transpose(0, 1), keys.permute(1, 2, 0))  # [heads, rows, S]
        if kind == "dots":
            return self._masked(dots, span.key_range, where)
        scores = self._scores(dots, chosen, span.key_range, where, rule)
        return self.softmax(scores, rule.sinks_of(heads)) if kind == "pattern" else scores

    def _scores(
        self, dots: Tensor, heads: Tensor, key_range: KeyRange, rows: slice | np.ndarray, rule: AttentionRule
    ) -> Tensor:
        """Return the scores [heads, rows, S] of dots of the same shape, for these batch rows."""
        scores = dots * rule.scale
        if rule.softcap is not None:
            scores = rule.softcap * self._arithmetic.tanh(scores / rule.softcap)
        if rule.bias is not None:
            reach = (rule.bias.shape[1] + 1) // 2
            positions = torch.from_numpy(key_range.positions_array[rows]).to(dots.device)
            distances = torch.arange(dots.shape[-1], device=dots.device) - positions[:, None]  # [rows, S]
            scores = scores + rule.bias[heads][:, distances + reach - 1]
        return self._masked(scores, key_range, rows)

    @staticmethod
    def _masked(scores: Tensor, key_range: KeyRange, rows: slice | np.ndarray) -> Tensor:
        """Return scores [heads, rows, S] with -inf for unseen keys."""
        first, last = (
            torch.from_numpy(a[rows]).to(scores.device)[:, None] for a in (key_range.first_array, key_range.last_array)
        )
        keys = torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill((keys < first) | (keys >= last), float("-inf"))

    def softmax(self, scores: Tensor, sinks: Tensor | None = None) -> Tensor:
        return softmax_with_sinks(self._arithmetic.softmax, scores, None if sinks is None else sinks[:, None, None])

    def mix(self, pattern: Tensor, heads: Sequence[int], num_heads: int, span: CachedKV) -> Tensor:
        readers = _key_heads(torch.tensor(list(heads), device=pattern.device), num_heads, span.cache)
        values = span.values()[:, readers]  # [S, heads, D]
        return self._arithmetic.mix(pattern, values.transpose(0, 1))


class NativeAttention:
    """Attention by our kernels, for CPU tensors of float32 or bfloat16."""

    def write_kv(self, qkv: Tensor, rotary_tables: RotaryTables | None, cache: LayerCache, batch: Batch) -> Tensor:
        num_rows = len(qkv)
        tables = None if rotary_tables is None else (rotary_tables[0][:num_rows, 0], rotary_tables[1][:num_rows, 0])
        slots = torch.from_numpy(batch.slots_array[:num_rows])
        return rotate_and_store(qkv.contiguous(), tables, slots, cache.keys, cache.values)

    def write_cross_kv(self, kv: Tensor, cache: LayerCache, slots: np.ndarray) -> None:
        rotate_and_store(kv.contiguous(), None, torch.from_numpy(slots), cache.keys, cache.values)

    def attend(
        self,
        q: Tensor,
        cache: LayerCache,
        batch: Batch,
        key_range: KeyRange,
        rule: AttentionRule,
        pattern_output: PatternOutput | None = None,
    ) -> Tensor:
        """Return softmax(scores) V, as in `Attention.attend`, and write the patterns listed in `pattern_output`."""
        out = torch.empty(q.shape, dtype=cache.values.dtype)
        q = q.float().contiguous()
        for items in batch.attention_items(len(q), cache.keys.shape[1], num_threads()):
            batch.check()
            attend(
                q,
                cache.keys,
                cache.values,
                key_range.seen,
                items,
                scale=rule.scale,
                softcap=rule.softcap,
                bias=rule.bias,
                sinks=rule.sinks,
                pattern_output=pattern_output,
                out=out,
            )
        return out

    def rows(
        self, q: Tensor, rows: Sequence[int], heads: Sequence[int], span: CachedKV, rule: AttentionRule, kind: str
    ) -> Tensor:
        return attention_rows(
            q.float().contiguous(),
            rows,
            heads,
            span.cache.keys,
            span.key_range.seen,
            span.index,
            span.num_keys,
            kind,
            scale=rule.scale,
            softcap=rule.softcap,
            bias=rule.bias,
            sinks=rule.sinks,
        )

    def softmax(self, scores: Tensor, sinks: Tensor | None = None) -> Tensor:
        return softmax_rows(scores, sinks)

    def mix(self, pattern: Tensor, heads: Sequence[int], num_heads: int, span: CachedKV) -> Tensor:
        readers = _key_heads(torch.tensor(list(heads)), num_heads, span.cache).tolist()
        return mix_rows(pattern, readers, span.cache.values, span.key_range.seen, span.index)


def _key_heads(heads: Tensor, num_heads: int, cache: LayerCache) -> Tensor:
    """Return the key head of each query head; consecutive heads share one (Ainslie et al. 2023, arXiv:2305.13245)."""
    return heads // (num_heads // cache.keys.shape[1])


def check_reach(rule: AttentionRule, key_range: KeyRange) -> None:
    if rule.bias is not None and rule.bias.shape[1] < 2 * key_range.longest - 1:
        reach = (rule.bias.shape[1] + 1) // 2
        raise ValueError(f"the position bias reaches {reach} positions; a sequence has {key_range.longest}")


class TextAttention(NativeAttention):
    """Attention of encoders by products of bfloat16, for rows that see their whole text: no bias, cap or mask, and one
    key head for each query head.

    Without hooks, `EncodeStep` computes this attention; with hooks, this class computes the same bits of `attend`.
    `rows`, `softmax` and `mix` compute in float32, so they agree with `attend` to the precision of bfloat16. Networks
    in float32, or with bfloat16 widened, use `NativeAttention`, which agrees to the last bit.
    """

    def attend(
        self,
        q: Tensor,
        cache: LayerCache,
        batch: Batch,
        key_range: KeyRange,
        rule: AttentionRule,
        pattern_output: PatternOutput | None = None,
    ) -> Tensor:
        if pattern_output is not None:  # writes the patterns; the answers keep the bits that they have without them
            super().attend(q, cache, batch, key_range, rule, pattern_output)
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
