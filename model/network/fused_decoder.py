"""Runs the blocks of a stack in one call, with the same bits as the separate blocks.

The blocks become one program (`block_program.py`). The products of a few rows take microseconds each, and the overhead
of torch and Python between them takes as long.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, L layers.
"""

from collections.abc import Sequence
from typing import Self, cast
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.attention_hooks import written_patterns
from lightwell.model.hooks.hooks import Hooks, LayerHooks
from lightwell.model.kernels.attention import AttentionItems
from lightwell.model.kernels.decoder import AdapterChanges, Change, Decoder, DecoderRows, LayerCaches
from lightwell.model.kernels.delta import StateCache
from lightwell.model.kernels.library import num_threads
from lightwell.model.kernels.products import LaidWeight
from lightwell.model.kernels.program.steps import Register
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.lora import AdaptedRows, Adapter
from lightwell.model.layers.norm import Norm
from lightwell.model.layers.rope import Rope, rotary_rows
from lightwell.model.network.block import Block
from lightwell.model.network.block_program import Program, is_supported, product_of
from lightwell.model.network.program_points import ProgramReads
from lightwell.model.network.recurrences import row_spans
from lightwell.model.network.sublayers import SelfAttention

_WORK_BETWEEN_CHECKS = 1 << 25
"""Largest number of weights that one call reads, if it runs several layers: some milliseconds. A key of a head counts
as 64 weights; adapters do not count.
"""

_MOST_LISTS = 32
"""Most lists of attention items of a layer in one call: some tenths of a second."""


class DecodeStep:
    """The blocks of one stack, and the norm after them."""

    def __init__(self, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> None:
        """Keep the blocks, which `of` has checked. ropes: one for each block."""
        self._blocks = blocks
        attentions = [block.self_attention for block in blocks if isinstance(block.attention.f, SelfAttention)]
        self.program = program = Program(blocks, final_norm, ropes)
        self._key_ranges = program.key_ranges
        self._causal = attentions[0].causal
        self._has_states = len(attentions) < len(blocks)
        self._is_divisible = blocks[0].altup is None and all(each.has_kv for each in attentions)
        """True if some layers may run without the others: not with several streams, or with keys of another layer."""
        heads = [heads for _, heads in self._key_ranges]
        self._counts_of_kv_heads = {each.num_key_heads for each in heads}
        self._decoder = Decoder(
            program.steps,
            dtype=cast(LaidWeight, attentions[0].qkv.weight).row_dtype,
            width=attentions[0].qkv.in_features,
            heads=[*heads, *heads[:1]] if blocks[0].cross is not None else heads,
        )
        self._activated = [linear for linear in program.linears if linear.activation is not None]
        of_all = sum(linear.in_features * linear.out_features for linear in program.linears)
        self._num_weights = of_all // len(blocks)
        self._expert_weights = program.num_expert_weights // max(1, program.num_experts) // len(blocks)
        self._changes: WeakKeyDictionary[Adapter, AdapterChanges] = WeakKeyDictionary()
        self._kept_caches: tuple[Sequence[LayerCache], LayerCaches] | None = None
        """The caches of the last step, and their addresses; one attribute, as threads may share a network."""

    @classmethod
    def of(cls, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> Self | None:
        """Return the step of a stack, or None if the kernels cannot replace its blocks."""
        if not blocks or not all(is_supported(block) and _is_native(block) for block in blocks):
            return None
        return cls(blocks, final_norm, ropes)

    def end_of_run(self, first: int, batch: Batch, hooks: Hooks | None, adapted: AdaptedRows | None = None) -> int:
        """Return the end of the layers first <= n < end that one run can replace: all have the same rows, hooks change
        only the stream, and adapters change no product with an activation.
        """
        if adapted is not None and any(
            linear in adapter.changes for _, adapter in adapted.runs for linear in self._activated
        ):
            return first
        if hooks is not None and not self._is_divisible and hooks.has_points_of_layers:
            return first
        rows, count = batch.num_rows_at(first), len(self._blocks)
        if any(len(lists) > _MOST_LISTS for lists in self._items(batch, rows).values()):
            return first

        def has_rows(layer: int) -> bool:
            return batch.num_rows_at(layer) == rows and batch.needs_output_of(layer)

        end = count if has_rows(count - 1) else next(n for n in range(first, count) if not has_rows(n))
        if hooks is not None:
            own = ((n, hooks.at(n)) for n in range(first, end))
            end = next((n for n, each in own if each is not None and not self._has_points(n, each)), end)
        is_part = first > 0 or end < count
        return first if is_part and not self._is_divisible else end

    def _has_points(self, layer: int, hooks: LayerHooks) -> bool:
        """Return whether a layer's hooks read only numbers that the program has, and change only the stream."""
        if hooks.attention_changes or any(tap.cross for tap in hooks.attention):
            return False
        if not (hooks.reads or hooks.changes):
            return True
        points = self.program.points[layer]
        stream = {name for name, each in points.items() if each.register == Register.STREAM and each.finish is None}
        return hooks.changes.keys() <= stream and hooks.reads.keys() <= points.keys()

    def _items(self, batch: Batch, num_rows: int) -> dict[int, list[AttentionItems]]:
        """Return the items of attention by the number of key heads."""
        threads = num_threads()
        return {count: batch.attention_items(num_rows, count, threads) for count in self._counts_of_kv_heads}

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        caches: Sequence[LayerCache],
        hooks: Hooks | None,
        adapted: AdaptedRows | None = None,
        layers: tuple[int, int] | None = None,
        of_tokens: Tensor | None = None,
        others: Tensor | None = None,
    ) -> Tensor:
        """Return x [R, d], which may be overwritten, after the layers first <= n < end of `end_of_run` (None: after all
        layers and the final norm), and write keys and values to the caches. of_tokens: the layers' inputs [T, L, P], or
        None. others: the other residual streams [N - 1, R, d], which are overwritten, or None.

        Exceptions of `batch.check`, between two calls, are passed on; the caches then hold the rows of some layers.
        """
        x = out = x.contiguous()
        rows, memory = self._rows(batch, len(x)), self._memory(caches)
        given = None if of_tokens is None else of_tokens[: len(x)]
        changes = [
            (slice(run.start, min(run.stop, len(x))), self._changes_of(adapter))
            for run, adapter in (() if adapted is None else adapted.runs)
            if run.start < len(x)
        ]
        step, (first, end) = self._layers_of_a_call(rows), layers or (0, len(self._blocks))
        if hooks is not None and end > 1 and caches[0] is caches[1]:  # a layer replaces the keys of the one before
            step = 1
        taps = () if hooks is None else hooks.attention
        written, patterns = written_patterns(
            taps,
            batch,
            batch.key_range(self._causal),
            self._key_ranges[0][1].num_heads,
            range(len(self._blocks) if taps else 0),
        )
        for start in range(first, end, step):
            batch.check()
            stop = min(start + step, end)
            blocks = self._blocks[start:stop]
            points, own = self.program.points[start:stop], caches[start:stop]
            reads = ProgramReads.of(blocks, points, x, batch, own, hooks, written)
            at, last = self.program.layers[start], self.program.layers[stop] if layers or stop < end else None
            for cut, before in zip([*reads.cuts, None], [None, *reads.cuts], strict=True):
                upto, taken = cut.order[0] if cut else last, reads.taken_between(before, cut)
                out = self._decoder.run(
                    x,
                    rows,
                    memory,
                    first=at,
                    end=upto,
                    queries=reads.queries,
                    patterns=patterns if written else None,
                    taken=taken,
                    of_tokens=given,
                    others=others,
                    adapted=changes,
                )
                if cut is not None:
                    x.copy_(cut.hooks(cut.point, x))
                    at = cut.order[0]
            reads.deliver(adapted)
        return out

    def _layers_of_a_call(self, rows: DecoderRows) -> int:
        work = self._num_weights * (1 + rows.num_rows // 16)
        work += self._expert_weights * min(self.program.num_experts, rows.num_rows * self.program.num_chosen)
        work += 64 * int(rows.key_ranges[0].last.sum()) * self._key_ranges[0][1].num_heads
        return max(1, _WORK_BETWEEN_CHECKS // work)

    def _rows(self, batch: Batch, num_rows: int) -> DecoderRows:
        """Return the first rows of a batch, in whole spans, in the kernels' form."""
        key_ranges = [batch.key_range(self._causal, window) for window, _ in self._key_ranges]
        cross = batch.cross_key_range if self._blocks[0].cross is not None else None
        counts = np.diff(batch.first_rows)
        return DecoderRows(
            [each.of_first(num_rows) for each in key_ranges],
            {count: AttentionItems.joined(lists) for count, lists in self._items(batch, num_rows).items()},
            batch.slots_array[:num_rows],
            np.repeat(counts == 1, counts)[:num_rows],
            rotary_rows(batch)[:num_rows],
            None if cross is None else cross.of_first(num_rows),
            [span for span in row_spans(batch) if span[0] < num_rows] if self._has_states else (),
        )

    def _memory(self, caches: Sequence[LayerCache]) -> LayerCaches:
        """Return the caches in the kernels' form. A server's steps all use the same caches."""
        kept = self._kept_caches
        if kept is not None and kept[0] is caches:
            return kept[1]
        found = LayerCaches(
            [
                (each.keys, each.values) if each.states is None else StateCache(each.states.inputs, each.states.memory)
                for each in caches
            ]
        )
        if caches[0] is not caches[-1]:  # an encoder's buffer must be free before a larger one is allocated
            self._kept_caches = caches, found
        return found

    def _changes_of(self, adapter: Adapter) -> AdapterChanges:
        """Return an adapter's changes in the kernels' form, which is kept as long as the adapter."""
        found = self._changes.get(adapter)
        if found is None:
            changes = [adapter.changes.get(linear) for linear in self.program.linears]
            found = self._changes[adapter] = self._decoder.changes(
                [None if each is None else Change(product_of(each.down), product_of(each.up)) for each in changes]
            )
        return found


def _is_native(block: Block) -> bool:
    """Return whether our kernels have the matrices of a block, and the experts' in one form."""
    forms: set[tuple[int, int]] = set()
    for each in () if block.mixture is None else block.mixture.experts:
        if isinstance(up := each.up.weight, LaidWeight) and isinstance(down := each.down.weight, LaidWeight):
            forms.add((up.form, down.form))
    return all(each.native for each in block.matrices) and len(forms) <= 1
