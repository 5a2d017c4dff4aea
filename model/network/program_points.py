"""The points of a decoder's program: the place of each point's numbers between two steps.

Axes: n rows that a hook reads, R rows, d model width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.attention_hooks import Attended, deliver_rows
from lightwell.model.hooks.hooks import AttentionTap, Hooks, LayerHooks, Read
from lightwell.model.kernels.decoder import Taken
from lightwell.model.kernels.program.steps import Register
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.lora import AdaptedRows
from lightwell.model.network.block import Block
from lightwell.model.network.sublayers import SelfAttention, keys_at

Finish = Callable[[Tensor, AdaptedRows | None], Tensor]
"""Computes a point [n, ...] from the numbers [n, ...] at its place and the adapters of these rows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Some columns of a register between two steps."""

    step: int
    """The number of steps before it."""
    register: Register | None = None
    """None for queries, cached keys, scores and patterns, which attention keeps or computes again."""
    first: int = 0
    """The first column."""
    shape: tuple[int, ...] = ()
    """The numbers of a row: [d], or [heads, D]."""
    finish: Finish | None = None
    """The computation of the point from these numbers, or None if they are the point."""


Points = Mapping[str, Place]
"""The places of one layer's points, by short name."""


Order = tuple[int, int, int]
"""Steps before a point, its layer and its place among the layer's points."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A change of the residual stream, between two calls."""

    order: Order
    point: str
    hooks: LayerHooks


_OF_ATTENTION = "attn.hook_rot_q", "attn.hook_rot_k"


class ProgramReads:
    """The hooks that read numbers of a program's layers: room for the numbers before a call, delivery after it."""

    def __init__(self, batch: Batch, x: Tensor, written: Sequence[AttentionTap]) -> None:
        """x: the stream [R, d]. written: the taps with patterns that attention writes itself."""
        self._batch, self._x, self._written = batch, x, written
        self.queries: dict[int, Tensor] = {}
        """Room for the queries of layers."""
        self.cuts: list[Cut] = []
        """The changes of the stream, in order."""
        self._taken: list[tuple[Order, Taken]] = []
        self._layers: list[tuple[LayerHooks, Attended]] = []
        self._reads: list[tuple[Read, Place, Tensor]] = []

    @classmethod
    def of(
        cls,
        blocks: Sequence[Block],
        points: Sequence[Points],
        x: Tensor,
        batch: Batch,
        caches: Sequence[LayerCache],
        hooks: Hooks | None,
        written: Sequence[AttentionTap],
    ) -> Self:
        """Return the reads of the hooks of some blocks, with their points and caches, for the rows x [R, d]."""
        reads = cls(batch, x, written)
        for block, places, cache in zip(blocks, points, caches, strict=True):
            own = None if hooks is None else hooks.at(block.index)
            if own is None:
                continue
            is_read = own.wants(*_OF_ATTENTION) or any(tap not in written for tap in own.attention)
            if is_read and isinstance(attention := block.attention.f, SelfAttention):
                queries = reads.queries[block.index] = torch.empty(len(x), attention.num_heads, attention.head_dim)
                key_range = batch.key_range(attention.causal, attention.window)
                heads = attention.heads
                attended = Attended(heads.attention, heads.rule, queries, cache, key_range, False, batch.check)
                reads._layers.append((own, attended))
            if own.reads or own.changes:
                reads._add(places, own)
        return reads

    def _add(self, points: Points, hooks: LayerHooks) -> None:
        """Add a layer's hooks, of its points."""
        for number, (name, place) in enumerate(points.items()):
            order = place.step, hooks.layer or 0, number
            if name in hooks.changes:
                self.cuts.append(Cut(order, name, hooks))
            if name in hooks.changes or place.register is None:
                continue
            for read in hooks.reads.get(name, ()):
                numbers = self._x.new_empty(len(read.rows), *place.shape)
                rows = torch.tensor(read.rows, dtype=torch.int64)
                self._taken.append((order, Taken(place.step, place.register, place.first, rows, numbers.flatten(1))))
                self._reads.append((read, place, numbers))

    def taken_between(self, after: Cut | None, before: Cut | None) -> list[Taken]:
        """Return the numbers that are read between two changes."""
        return [
            each
            for order, each in self._taken
            if (after is None or after.order < order) and (before is None or order < before.order)
        ]

    def deliver(self, adapted: AdaptedRows | None) -> None:
        """Give the numbers to the hooks. adapted: the adapters of the batch's rows."""
        for read, place, numbers in self._reads:
            if place.finish is not None:
                numbers = place.finish(numbers, None if adapted is None else adapted.at(read.rows))
            read.deliver(numbers if read.heads is None else numbers[:, list(read.heads)])
        for hooks, attended in self._layers:
            hooks("attn.hook_rot_q", attended.q)
            hooks.derive("attn.hook_rot_k", partial(keys_at, self._batch, attended.cache))
            deliver_rows(attended, hooks, written=self._written)
