"""Attention over the paged cache: one seam, two ways. Knows spans and blocks; knows nothing of requests.

`CompiledAttention` (CPU, float32 and bfloat16) gives each row the same bits whatever stands beside it.
`PlainAttention` (any device, any dtype) is the few torch operations that anyone would write, sequence by sequence: the
slow version the other is proved against, and the way on a GPU until fused kernels come.

Axes: T rows, H query heads, K key heads, D head dimension, S keys.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from model.batch import Batch
from model.kv_cache import LayerCache
from model.layers.arrays import bits, why_not_compiled
from model.layers.rope import Rope

Turns = tuple[torch.Tensor, torch.Tensor]
_NO_TURNS = np.empty((0, 0), np.float32)


class Attention(Protocol):
    """What a decoder layer asks of its attention."""

    def enter(self, qkv: torch.Tensor, turns: Turns | None, cache: LayerCache, batch: Batch) -> torch.Tensor:
        """Turn queries and keys by their positions and put keys and values where the batch says.

        qkv [T, H + 2K, D] of the batch's first T rows: query heads, key heads, value heads. turns: cos and sin
        [T, 1, D] of `Rope.at`, None without rotary positions. Returns q [T, H, D] for `attend` and `rows`.
        """

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch, scale: float) -> torch.Tensor:
        """softmax(scale * q K^T, causal) V for the batch's first T rows: q [T, H, D] -> [T, H, D]."""

    def rows(
        self,
        q: torch.Tensor,
        heads: Sequence[int],
        cache: LayerCache,
        batch: Batch,
        span: int,
        positions: Sequence[int],
        scale: float,
        kind: str,
    ) -> torch.Tensor:
        """What chosen heads of one span attend to: q [rows, H, D] at `positions` -> [len(heads), rows, S].

        S is the span's `num_keys`. kind: "pattern" (rows sum to 1, unseen keys 0), "scores" (scaled, unseen keys -inf)
        or "dots" (the bare q.k, unseen keys -inf).
        """


class PlainAttention:
    """One sequence at a time, whole rows, torch operations."""

    def enter(self, qkv: torch.Tensor, turns: Turns | None, cache: LayerCache, batch: Batch) -> torch.Tensor:
        key_heads = cache.keys.shape[1]
        heads = qkv.shape[1] - 2 * key_heads
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + key_heads], qkv[:, heads + key_heads :]
        if turns is not None:
            cos, sin = turns[0][: len(q)], turns[1][: len(q)]
            q, k = Rope.turn(q, cos, sin), Rope.turn(k, cos, sin)
        slots = torch.from_numpy(batch.slots_array[: len(k)]).to(k.device)
        blocks, places = slots // batch.block_size, slots % batch.block_size
        cache.keys[blocks, :, :, places] = k.to(cache.keys.dtype)
        cache.values[blocks, :, places] = v.to(cache.values.dtype)
        return q

    def _gather(self, cache: LayerCache, batch: Batch, span: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A span's keys [H, S, D] and values [H, S, D], one copy a query head."""
        num_keys = batch.spans[span].num_keys
        num_blocks = -(-num_keys // batch.block_size)
        table = torch.from_numpy(batch.tables_array[span, :num_blocks]).to(cache.keys.device)
        keys = cache.keys[table].permute(1, 0, 3, 2).flatten(1, 2)[:, :num_keys]  # [K, S, D]
        values = cache.values[table].permute(1, 0, 2, 3).flatten(1, 2)[:, :num_keys]
        return keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch, scale: float) -> torch.Tensor:
        group = q.shape[1] // cache.keys.shape[1]
        out = torch.empty_like(q)
        for span, first in enumerate(batch.first_rows[:-1]):
            if first >= len(q):
                break
            last = batch.first_rows[span + 1]
            keys, values = self._gather(cache, batch, span, group)
            scores = self._masked(
                q[first:last].transpose(0, 1) @ keys.transpose(1, 2) * scale, batch.positions[first:last]
            )
            pattern = torch.softmax(scores, -1, dtype=_at_least_float32(q.dtype)).to(q.dtype)
            out[first:last] = (pattern @ values).transpose(0, 1)
        return out

    def rows(
        self,
        q: torch.Tensor,
        heads: Sequence[int],
        cache: LayerCache,
        batch: Batch,
        span: int,
        positions: Sequence[int],
        scale: float,
        kind: str,
    ) -> torch.Tensor:
        keys, _ = self._gather(cache, batch, span, q.shape[1] // cache.keys.shape[1])
        wide = _at_least_float32(q.dtype)
        chosen = torch.tensor(list(heads), device=q.device)
        dots = q.to(wide).transpose(0, 1)[chosen] @ keys.to(wide)[chosen].transpose(1, 2)  # [heads, rows, S]
        where = torch.tensor(list(positions), device=q.device)
        scores = self._masked(dots if kind == "dots" else dots * scale, where)
        return torch.softmax(scores, -1) if kind == "pattern" else scores

    @staticmethod
    def _masked(scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keys after the query's own position are not seen: scores [heads, rows, S]."""
        seen = torch.arange(scores.shape[-1], device=scores.device) <= positions[:, None]
        return scores.masked_fill(~seen, float("-inf"))


class CompiledAttention:
    """`attention_kernels` on CPU tensors of float32 or bfloat16."""

    def __init__(self) -> None:
        # Imported here: compiling takes seconds, and a GPU server never needs it.
        from model.layers import attention_kernels, row_kernels

        self._kernels = attention_kernels
        self._rotate_and_store = row_kernels.rotate_and_store
        self._kinds = {
            "pattern": attention_kernels.PATTERN,
            "scores": attention_kernels.SCORES,
            "dots": attention_kernels.DOTS,
        }

    def enter(self, qkv: torch.Tensor, turns: Turns | None, cache: LayerCache, batch: Batch) -> torch.Tensor:
        key_heads = cache.keys.shape[1]
        q = torch.empty(len(qkv), qkv.shape[1] - 2 * key_heads, qkv.shape[2], dtype=torch.float32)
        cos, sin = (_NO_TURNS, _NO_TURNS) if turns is None else (table[: len(qkv), 0].numpy() for table in turns)
        slots = batch.slots_array[: len(qkv)]
        self._rotate_and_store(bits(qkv), cos, sin, slots, q.numpy(), bits(cache.keys), bits(cache.values))
        return q

    @staticmethod
    def _items(batch: Batch, num_rows: int, num_key_heads: int) -> np.ndarray:
        """What threads share out, [item, 5] as the kernel takes it: tiles of one row with all their heads, so that
        whole blocks are read in memory order, and tiles of many rows, or too few tiles for the threads, head by head.
        """
        tiles = batch.tiles_array[: batch.num_tiles_at(num_rows)]
        whole = (tiles[:, 2] == 1) & (len(tiles) >= 2 * torch.get_num_threads())
        counts = np.where(whole, 1, num_key_heads)
        items = np.empty((counts.sum(), 5), np.int32)
        items[:, :3] = tiles.repeat(counts, 0)
        items[:, 3] = np.arange(len(items)) - (counts.cumsum() - counts).repeat(counts)
        items[:, 4] = np.where(whole, num_key_heads, 1).repeat(counts)
        return items

    def attend(self, q: torch.Tensor, cache: LayerCache, batch: Batch, scale: float) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=torch.float32)
        self._kernels.attend(
            q.numpy(),
            bits(cache.keys),
            bits(cache.values),
            batch.tables_array,
            self._items(batch, len(q), cache.keys.shape[1]),
            batch.positions_array,
            np.float32(scale),
            out.numpy(),
        )
        return out.to(cache.values.dtype)

    def rows(
        self,
        q: torch.Tensor,
        heads: Sequence[int],
        cache: LayerCache,
        batch: Batch,
        span: int,
        positions: Sequence[int],
        scale: float,
        kind: str,
    ) -> torch.Tensor:
        group = q.shape[1] // cache.keys.shape[1]
        out = torch.empty(len(heads), len(q), batch.spans[span].num_keys)
        self._kernels.attention_rows(
            q.transpose(0, 1)[list(heads)].contiguous().numpy(),
            np.array(heads, np.int64) // group,
            bits(cache.keys),
            batch.tables_array[span],
            np.array(positions, np.int64),
            np.float32(scale),
            self._kinds[kind],
            out.numpy(),
        )
        return out


def attention_for(dtype: torch.dtype, device: torch.device, *, batch_invariant: bool = True) -> Attention:
    """The fastest way that can serve these, the invariant one where there is one."""
    if batch_invariant and why_not_compiled(dtype, device) is None:
        return CompiledAttention()
    return PlainAttention()


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32
