"""Attention by torch operations for several sequences at once, where none of our kernels can be used.

Decoded rows of all sequences are computed together; prompts use torch's fused kernels. It supports any device and
dtype. Hooks get the results of `PlainAttention`. The bits of a row may depend on its batch.

Axes: R rows of spans with one row, n rows of one span, H query heads, K key heads, G = H / K, D head dimension,
J blocks of a row, B places of a block, S keys.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.batch import Batch, KeyRange
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import AttentionRule, CachedKV, PlainAttention, check_reach
from lightwell.model.layers.attention_arithmetic import at_least_float32, softmax_with_sinks

_T = TypeVar("_T")
GATHER_BYTES = 1 << 29
"""Largest number of bytes of keys, and of values, that are gathered together."""


@dataclass(frozen=True, eq=False)
class RowKeyRange:
    """The cached keys visible to each row, for one row per sequence."""

    tables: Tensor
    """[R, J]: the blocks of each row's keys, in order."""
    positions: Tensor
    """[R]"""
    unseen: Tensor
    """[R, S] bool."""

    def of_rows(self, rows: slice) -> "RowKeyRange":
        return RowKeyRange(self.tables[rows], self.positions[rows], self.unseen[rows])

    @property
    def longest(self) -> int:
        """Return S, the largest number of keys of a row."""
        return self.unseen.shape[1]


class BatchedAttention(PlainAttention):
    """`PlainAttention` with one operation for several sequences."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: Batch | None = None
        self._made: dict[Hashable, Any] = {}
        """The tensors shared by the layers of that batch, on its device."""

    def _slots(self, batch: Batch) -> Tensor:
        return self._shared(batch, "slots", partial(super()._slots, batch))

    def attend(self, q: Tensor, cache: LayerCache, batch: Batch, key_range: KeyRange, rule: AttentionRule) -> Tensor:
        spans = range(np.searchsorted(batch.first_rows, len(q)))
        longer = [span for span in spans if batch.spans[span].num_rows > 1]
        if longer and (rule.softcap is not None or rule.bias is not None or rule.sinks is not None):
            return super().attend(q, cache, batch, key_range, rule)  # torch's kernels support none of them
        check_reach(rule, key_range)
        batch.check()
        alone = [span for span in spans if batch.spans[span].num_rows == 1]
        if not longer:
            return _attend_rows(q, cache, self._row_key_range(batch, key_range, alone), rule)
        out = torch.empty_like(q)
        if alone:
            places = torch.tensor([batch.first_rows[span] for span in alone], device=q.device)
            out[places] = _attend_rows(q[places], cache, self._row_key_range(batch, key_range, alone), rule)
        whole = [span for span in longer if _is_whole_prompt(batch, key_range, span)]
        for group in _of_like_length(key_range, whole):
            batch.check()
            prompts = self._shared(batch, ("prompts", key_range, *group), partial(_Prompts.of, batch, key_range, group))
            out[prompts.own_rows] = prompts.attend(q, cache, rule)
        for span in [span for span in longer if span not in whole]:
            batch.check()
            rows = slice(batch.first_rows[span], batch.first_rows[span + 1])
            out[rows] = self._attend_span(q[rows], batch, CachedKV(cache, key_range, span), rule)
        return out

    def _attend_span(self, q: Tensor, batch: Batch, span: CachedKV, rule: AttentionRule) -> Tensor:
        """Return the attention of all rows of one span: q [n, H, D] -> [n, H, D]."""
        keys, values = span.keys(), span.values()  # [S, K, D]
        group = q.shape[1] // keys.shape[1]
        if group > 1:
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        q, keys, values = (x.transpose(0, 1)[None] for x in (q.to(keys.dtype), keys, values))  # [1, H, n or S, D]
        mask = self._mask(batch, span.key_range, span.index)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=rule.scale)[0].transpose(0, 1)

    def _mask(self, batch: Batch, key_range: KeyRange, span: int) -> Tensor | None:
        """Return the visible keys of a span's rows, [n, S] bool, or None if all are visible."""
        rows = slice(batch.first_rows[span], batch.first_rows[span + 1])
        first, last, num_keys = key_range.first_array[rows], key_range.last_array[rows], key_range.num_keys(span)
        if not first.any() and (last == num_keys).all():
            return None

        def make() -> Tensor:
            keys = np.arange(num_keys)
            return torch.from_numpy((keys >= first[:, None]) & (keys < last[:, None])).to(batch.device)

        return self._shared(batch, ("mask", key_range, span), make)

    def _row_key_range(self, batch: Batch, key_range: KeyRange, alone: list[int]) -> RowKeyRange:
        """Return the key range of the spans with one row."""

        def make() -> RowKeyRange:
            rows = np.take(batch.first_rows, alone)
            width = -(-int(key_range.lengths_array[alone].max()) // key_range.block_size)
            of_rows = (key_range.positions_array[rows], key_range.first_array[rows], key_range.last_array[rows])
            packed = np.column_stack((key_range.tables_array[alone, :width], *of_rows))  # [R, J + 3]
            numbers = torch.from_numpy(packed).to(batch.device)  # one copy to the device
            positions, first, last = numbers[:, width:].unbind(1)
            keys = torch.arange(width * key_range.block_size, device=batch.device)
            return RowKeyRange(numbers[:, :width], positions, (keys >= last[:, None]) | (keys < first[:, None]))

        return self._shared(batch, ("rows", key_range, len(alone)), make)

    def _shared(self, batch: Batch, name: Hashable, make: Callable[[], _T]) -> _T:
        """Return the result of `make`, which runs in the first layer of a batch and is kept for the others."""
        if batch is not self._batch:
            self._batch, self._made = batch, {}
        if name not in self._made:
            self._made[name] = make()
        made: _T = self._made[name]
        return made


def _is_whole_prompt(batch: Batch, key_range: KeyRange, span: int) -> bool:
    """Return whether a span begins at position 0 and its mask is causal without a window."""
    rows = slice(batch.first_rows[span], batch.first_rows[span + 1])
    positions = key_range.positions_array[rows]
    return bool(
        positions[0] == 0
        and not key_range.first_array[rows].any()
        and (key_range.last_array[rows] == positions + 1).all()
    )


def _of_like_length(key_range: KeyRange, spans: list[int]) -> list[list[int]]:
    """Return groups of spans. The longest span of a group is at most twice as long as the shortest."""
    groups: list[list[int]] = []
    for span in sorted(spans, key=key_range.num_keys, reverse=True):
        if groups and 2 * key_range.num_keys(span) >= key_range.num_keys(groups[-1][0]):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


@dataclass(frozen=True, slots=True, eq=False)
class _Prompts:
    """P whole prompts, padded at the end to S rows."""

    tables: Tensor
    """[P, J]"""
    rows: Tensor
    """[P, S]: rows of the batch; the last row of a prompt is repeated as padding."""
    beyond: Tensor
    """[P, S] bool: true for padding."""
    own: Tensor
    """[n]: flat indices into [P, S] of the rows without padding."""
    own_rows: Tensor
    """[n]: the batch rows at these indices."""

    @classmethod
    def of(cls, batch: Batch, key_range: KeyRange, spans: list[int]) -> "_Prompts":
        lengths = key_range.lengths_array[spans][:, None]
        width = -(-int(lengths.max()) // key_range.block_size)
        positions = np.arange(width * key_range.block_size)
        rows = np.take(batch.first_rows, spans)[:, None] + np.minimum(positions, lengths - 1)
        beyond = positions >= lengths
        own = np.flatnonzero(~beyond)
        arrays = (key_range.tables_array[spans, :width], rows, beyond, own, rows.ravel()[own])
        return cls(*(torch.from_numpy(array).to(batch.device) for array in arrays))

    def attend(self, q: Tensor, cache: LayerCache, rule: AttentionRule) -> Tensor:
        """Return the attention [n, H, D] of the prompts' rows, for q [T, H, D] of the batch."""
        beyond = self.beyond[:, None, :, None]  # the blocks may contain NaN there
        keys = cache.keys[self.tables].permute(0, 2, 1, 4, 3).flatten(2, 3).masked_fill(beyond, 0)  # [P, K, S, D]
        values = cache.values[self.tables].permute(0, 2, 1, 3, 4).flatten(2, 3).masked_fill(beyond, 0)
        group = q.shape[1] // keys.shape[1]
        if group > 1:
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        queries = q[self.rows].to(keys.dtype).transpose(1, 2)  # [P, H, S, D]
        z = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=rule.scale)
        return z.transpose(1, 2).flatten(0, 1)[self.own]


def _attend_rows(q: Tensor, cache: LayerCache, key_range: RowKeyRange, rule: AttentionRule) -> Tensor:
    """Return the attention of one row per sequence, q [R, H, D] -> [R, H, D], in pieces within GATHER_BYTES."""
    _, key_heads, dim, _ = cache.keys.shape
    step = max(1, GATHER_BYTES // (key_range.longest * key_heads * dim * cache.keys.itemsize))
    if len(q) <= step:
        return _attend_some_rows(q, cache, key_range, rule)
    starts = range(0, len(q), step)
    return torch.cat(
        [_attend_some_rows(q[i : i + step], cache, key_range.of_rows(slice(i, i + step)), rule) for i in starts]
    )


def _attend_some_rows(q: Tensor, cache: LayerCache, key_range: RowKeyRange, rule: AttentionRule) -> Tensor:
    num_rows, num_heads, dim = q.shape
    key_heads = cache.keys.shape[1]
    keys = cache.keys.transpose(0, 1)[:, key_range.tables]  # [K, R, J, D, B]
    values = cache.values.transpose(0, 1)[:, key_range.tables].flatten(2, 3)  # [K, R, S, D]
    # Unused places and places of other sequences may contain NaN, which a weight of 0 does not remove.
    values = values.masked_fill_(key_range.unseen[:, :, None], 0)
    queries = q.to(keys.dtype).view(num_rows, key_heads, -1, dim).transpose(0, 1)  # [K, R, G, D]
    dots = (queries[:, :, None] @ keys).transpose(2, 3).flatten(3)  # [K, R, G, S]
    scores = dots.to(at_least_float32(dots.dtype)) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.bias is not None:
        reach = (rule.bias.shape[1] + 1) // 2
        distances = torch.arange(key_range.longest, device=q.device) - key_range.positions[:, None]  # [R, S]
        bias = rule.bias[:, (distances + reach - 1).clamp(0, 2 * reach - 2)]  # [H, R, S]; clamped keys are unseen
        scores = scores + bias.view(key_heads, -1, *distances.shape).transpose(1, 2)
    sinks = None if rule.sinks is None else rule.sinks.view(key_heads, 1, -1, 1)
    scores = scores.masked_fill_(key_range.unseen[:, None], float("-inf"))
    pattern = softmax_with_sinks(partial(torch.softmax, dim=-1), scores, sinks)
    z = pattern.to(values.dtype) @ values  # [K, R, G, D]
    return z.transpose(0, 1).reshape(num_rows, num_heads, dim)
