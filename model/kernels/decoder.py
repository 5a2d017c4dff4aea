"""Runs a decoder's blocks in one call, as a program of steps: `cpu/decoder.h`. The kernels one by one
give the same bits.

Each product of such a step takes microseconds, and the Python code between products would take as long again. The
ctypes structures have the fields of `cpu/decoder.h`, which describes them; adapters add to each product.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, B keys to a block of the cache, L layers.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightwell.model.kernels.attention import AttentionArguments, AttentionItems, PatternOutput, VisibleKeys
from lightwell.model.kernels.checks import SUFFIXES, address_of, check_axes, check_tensor
from lightwell.model.kernels.delta import RowSpan, StateCache, spans_of
from lightwell.model.kernels.library import fields, kernels
from lightwell.model.kernels.products import BLOCK, BlockedWeight
from lightwell.model.kernels.program.steps import (
    AddToOthers,
    ApplyDelta,
    Attend,
    Convolve,
    CorrectStreams,
    EnterHeads,
    EnterQueries,
    GateTokens,
    Heads,
    Multiply,
    NormRows,
    PredictStreams,
    Product,
    Register,
    Step,
)
from lightwell.model.kernels.program.translation import TAKE, CProduct, CStep, c_product, translate

_FLOAT32 = (torch.float32,)


class CChange(ctypes.Structure):
    """`Change` of decoder.h."""

    _fields_ = (("down", CProduct), ("up", CProduct), *fields("p", "ranks"))


class CAdaptedRows(ctypes.Structure):
    """`AdaptedRows` of decoder.h."""

    _fields_ = (*fields("l", "first", "end"), *fields("p", "changes"))


class CMemory(ctypes.Structure):
    """`LayerMemory` of decoder.h."""

    _fields_ = fields("p", "keys", "values", "queries", "patterns", "inputs", "memory")


class CTaken(ctypes.Structure):
    """`Taken` of decoder.h."""

    _fields_ = (*fields("p", "rows", "memory"), *fields("l", "num_rows", "source", "row_width", "first", "width"))


class CItems(ctypes.Structure):
    """`Items` of decoder.h."""

    _fields_ = (*fields("p", "items", "lists"), *fields("l", "num_lists"))


class CRows(ctypes.Structure):
    """`Rows` of decoder.h."""

    _fields_ = (
        *fields(
            "p", "key_ranges", "items", "slots", "alone", "memory", "spans", "out", "of_tokens", "others", "adapted"
        ),
        *fields("l", "num_rows", "width", "num_adapted", "max_rank", "num_spans", "num_token_layers"),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """An adapter's summand of a product: up(down(x)), each rounded as a separate product."""

    down: Product
    """The product's inputs to the adapter's rank."""
    up: Product
    """The adapter's rank to the product's outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Numbers that a program copies between two steps."""

    step: int
    """The number of steps before it."""
    register: Register
    """A register of rows, up to OUT."""
    first: int
    """The first column."""
    rows: Tensor
    """[n] int64"""
    numbers: Tensor
    """Room for the numbers, [n, columns], of the stream's dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterChanges:
    """An adapter's changes of a decoder's products, which `Decoder.changes` has checked."""

    array: "ctypes.Array[CChange]"
    """The change of each product of the program, by its number."""
    kept: object
    """The tensors at the addresses in `array`."""
    max_rank: int


class LayerCaches:
    """The caches to which the layers write keys and values. They are checked once, for all steps."""

    def __init__(self, caches: Sequence[tuple[Tensor, Tensor] | StateCache]) -> None:
        """Check and keep keys [block, K, D, B] and values [block, K, B, D] of each layer with attention, all of the
        same blocks, and the states of the others.
        """
        of_attention = [each for each in caches if isinstance(each, tuple)]
        if not of_attention:
            raise ValueError("caches has no layer with attention; at least one is accepted")
        keys = of_attention[0][0]
        if keys.dtype not in SUFFIXES or keys.dim() != 4:
            raise ValueError(f"keys are {keys.dtype} {list(keys.shape)}; float32 or bfloat16 of 4 axes is accepted")
        self.num_blocks, _, _, self.block_size = keys.shape
        self.shapes = {
            n: (each[0].shape[1], each[0].shape[2]) for n, each in enumerate(caches) if isinstance(each, tuple)
        }
        """K and D of each layer with attention."""
        self.dtype = keys.dtype
        self.memory, self.num_states = (CMemory * len(caches))(), None
        for n, each in enumerate(caches):
            if isinstance(each, tuple):
                (k, v), (heads, dim) = each, self.shapes[n]
                check_tensor(f"keys of layer {n}", k, (keys.dtype,), (self.num_blocks, heads, dim, self.block_size))
                check_tensor(f"values of layer {n}", v, (keys.dtype,), (self.num_blocks, heads, self.block_size, dim))
                self.memory[n] = CMemory(k.data_ptr(), v.data_ptr())
            else:
                count = len(each.inputs)
                check_axes(f"inputs of layer {n}", each.inputs, (keys.dtype,), 3)
                if each.memory is not None:
                    check_tensor(f"memory of layer {n}", each.memory, _FLOAT32, (count, *each.memory.shape[1:]))
                address = None if each.memory is None else each.memory.data_ptr()
                self.memory[n] = CMemory(inputs=each.inputs.data_ptr(), memory=address)
                self.num_states = min(count, self.num_states or count)
        self.states = {n: each.sizes for n, each in enumerate(caches) if isinstance(each, StateCache)}
        """The sizes of one state of each layer without attention."""
        self._kept = [*caches]


class DecoderRows:
    """The rows of a step. They are checked once; the arrays must not change."""

    def __init__(
        self,
        key_ranges: Sequence[VisibleKeys],
        items: Mapping[int, AttentionItems],
        slots: np.ndarray,
        alone: np.ndarray,
        rotary_rows: np.ndarray | None = None,
        cross: VisibleKeys | None = None,
        spans: Sequence[RowSpan] = (),
    ) -> None:
        """Check and keep the arrays.

        key_ranges: one for each attention window and heads of the layers; the first one has the tables and positions of
        all. items: each row and key head once, by the number of key heads. slots [R] int64: block * B + the place in
        the block. alone [R] bool: whether a row is the only one of its sequence, and its last. rotary_rows [R] int64:
        the rows of the rotary tables, by default the positions. cross: the keys of cross attention, which follows the
        other ranges in `key_ranges`.
        spans: one for each sequence; needed for layers without attention.
        """
        num_rows, first = key_ranges[0].num_rows, key_ranges[0]
        self.rotary_rows = first.positions if rotary_rows is None else rotary_rows
        for name, array, dtype in (
            ("slots", slots, np.int64),
            ("alone", alone, np.bool_),
            ("rotary_rows", self.rotary_rows, np.int64),
        ):
            if array.dtype != dtype or array.shape != (num_rows,) or not array.flags.c_contiguous:
                raise ValueError(f"{name} is {array.dtype} {array.shape}; contiguous {dtype} of {num_rows} is accepted")
        for name, array in (("slots", slots), ("rotary_rows", self.rotary_rows)):
            if array.min(initial=0) < 0:
                raise ValueError(f"{name} contains {array.min()}; 0 and above are accepted")
        self.key_ranges = (*key_ranges, *(() if cross is None else (cross,)))
        for key_range in self.key_ranges:
            if key_range.num_rows != num_rows or key_range.block_size != first.block_size:
                raise ValueError(f"key ranges are of {key_range.num_rows} and {num_rows} rows; all must have the same")
            if len(key_range.tables) != len(first.tables):
                raise ValueError(f"key ranges are of {len(key_range.tables)} and {len(first.tables)} sequences")
            if key_range is not cross and not np.array_equal(key_range.last[alone], key_range.positions[alone] + 1):
                raise ValueError("a single row must see all keys up to its own, and no others")
        for num_key_heads, own in items.items():
            sizes, found = (len(first.tables), num_rows, num_key_heads), own.array[:, 2] @ own.array[:, 4]
            if any(needed > size for needed, size in zip(own.sizes, sizes, strict=True)):
                raise ValueError(f"items need {own.sizes} sequences, rows and key heads; there are {sizes}")
            if found != num_rows * num_key_heads:
                raise ValueError(f"items have {found} rows and key heads; there are {num_rows} times {num_key_heads}")
            if alone[own.array[own.array[:, 2] > 1, 1]].any():
                raise ValueError("an item has several rows, and one of them is marked as single")
        self.spans = spans_of(spans, num_rows if spans else 0)
        self.end_state = 1 + max((max(read, write) for _, _, read, write, _ in spans), default=-1)
        self.items, self.slots, self.alone = items, slots, alone
        self.num_rows = num_rows
        self.end_slot = int(slots.max(initial=-1)) + 1


class Decoder:
    """A program of steps."""

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        dtype: torch.dtype,
        width: int,
        heads: Sequence[Heads],
    ) -> None:
        """Check and keep the steps.

        dtype: of the residual stream and the cache. width: of the stream. heads: of each key range. Raises ValueError
        for steps that do not fit.
        """
        if dtype not in SUFFIXES:
            raise ValueError(f"dtype is {dtype}; {', '.join(map(str, SUFFIXES))} are accepted")
        if not steps:
            raise ValueError("steps is empty; at least one is accepted")
        for each in heads:
            if min(each) < 1 or each.num_heads % each.num_key_heads:
                raise ValueError(f"heads are {each}; positive numbers and a multiple of the key heads are accepted")
        self.dtype, self.width, self.heads = dtype, width, tuple(heads)
        self._steps = [*steps]
        self._products = [step for step in steps if isinstance(step, Multiply)]
        attends = [step for step in steps if isinstance(step, Attend)]
        mixers = [step for step in steps if isinstance(step, Attend | Convolve | ApplyDelta)]
        self._num_layers = 1 + max((step.layer for step in mixers), default=-1)
        of_tokens = [step.layer for step in steps if isinstance(step, GateTokens)]
        self._token_layers = 1 + max(of_tokens, default=-1)
        self._token_width = next(
            (
                step.product.weight.num_inputs
                for gate, step in pairwise(steps)
                if isinstance(gate, GateTokens) and isinstance(step, Multiply)
            ),
            0,
        )
        self._states = {step.layer: step.state_sizes for step in steps if isinstance(step, Convolve | ApplyDelta)}
        self._attends = attends
        counts = {step.num_streams for step in steps if isinstance(step, PredictStreams | CorrectStreams | AddToOthers)}
        if len(counts) > 1 or min(counts, default=2) < 2:
            raise ValueError(f"steps have {sorted(counts)} streams; one number from 2 on is accepted")
        self._num_others = max(counts, default=1) - 1
        tables = [step.rotary_tables for step in steps if isinstance(step, EnterHeads | EnterQueries)]
        self._num_positions = min((len(each[0]) for each in tables if each is not None), default=None)
        self._reaches = [(step.key_range, (step.bias.shape[1] + 1) // 2) for step in attends if step.bias is not None]
        self._array, self._starts, self._widths, self._kept = translate(
            self._steps, dtype=dtype, width=width, heads=self.heads
        )
        self._shapes = {step.layer: self.heads[step.key_range][1:] for step in attends}
        """K and D of each layer with attention."""

    def run(
        self,
        x: Tensor,
        rows: DecoderRows,
        caches: LayerCaches,
        *,
        first: int = 0,
        end: int | None = None,
        queries: Mapping[int, Tensor] | None = None,
        patterns: PatternOutput | None = None,
        taken: Sequence[Taken] = (),
        of_tokens: Tensor | None = None,
        others: Tensor | None = None,
        adapted: Sequence[tuple[slice, AdapterChanges]] = (),
    ) -> Tensor:
        """Run the steps first <= n < end (None: to the last) on x [R, d], in place. Only the streams and the caches are
        kept between two calls.

        Returns the rows of OUT if the last of these steps writes them, else x. queries: room for the queries of some
        layers, [R, H, D] float32. patterns: room for patterns. taken: numbers to copy between these steps. of_tokens:
        the inputs of each layer, [R, layers, P], for steps `GateTokens`. others: the other residual streams,
        [N - 1, R, d], in place, for steps of N streams. adapted: rows with adapters, and their changes.
        """
        num_rows, end = rows.num_rows, len(self._steps) if end is None else end
        check_tensor("x", x, (self.dtype,), (num_rows, self.width))
        if not 0 <= first <= end <= len(self._steps):
            raise ValueError(f"steps from {first} to {end} are requested; there are {len(self._steps)}")
        self._check_rows(rows, caches)
        if others is None and self._num_others:
            raise ValueError(f"others is None; {self._num_others} streams are accepted")
        memory = caches.memory
        if queries or patterns is not None:
            memory = (CMemory * self._num_layers).from_buffer_copy(memory)
            self._add_room(memory, rows, queries or {}, patterns)
        last = self._steps[end - 1] if end > first else None
        out = torch.empty_like(x) if isinstance(last, NormRows) and last.target == Register.OUT else x
        key_ranges, items = self._ranges(rows), self._items(rows)
        adapters = self._adapted(adapted, num_rows)
        given = CRows(
            key_ranges=ctypes.addressof(key_ranges),
            items=ctypes.addressof(items),
            slots=rows.slots.ctypes.data,
            alone=rows.alone.ctypes.data,
            memory=ctypes.addressof(memory),
            spans=ctypes.addressof(rows.spans),
            out=out.data_ptr(),
            adapted=ctypes.addressof(adapters),
            num_adapted=len(adapters),
            max_rank=max((changes.max_rank for _, changes in adapted), default=0),
            of_tokens=self._tokens(of_tokens, num_rows),
            others=address_of("others", others, (self.dtype,), (self._num_others, num_rows, self.width)),
            num_spans=len(rows.spans),
            num_token_layers=0 if of_tokens is None else of_tokens.shape[1],
            num_rows=num_rows,
            width=self.width,
        )
        start, stop = self._starts[first], self._starts[end]
        steps, num_steps = ctypes.addressof(self._array) + start * ctypes.sizeof(CStep), stop - start
        if taken:
            array, _kept = self._with_taken(taken, first, end, num_rows)
            steps, num_steps = ctypes.addressof(array), len(array)
        arguments = steps, num_steps, ctypes.addressof(given), x.data_ptr()
        kernels().call(f"run_decoder_{SUFFIXES[self.dtype]}", "plpp", *arguments)
        return out

    def _add_room(
        self, memory: Any, rows: DecoderRows, queries: Mapping[int, Tensor], patterns: PatternOutput | None
    ) -> None:
        for n, q in queries.items():
            heads = next((self.heads[step.key_range] for step in self._attends if step.layer == n), None)
            if heads is None:
                raise ValueError(f"queries has layer {n}, which has no attention; there are {self._num_layers} layers")
            check_tensor(f"queries of layer {n}", q, _FLOAT32, (rows.num_rows, heads.num_heads, heads.dim))
            memory[n].queries = q.data_ptr()
        if patterns is not None:
            found = len(patterns.addresses), *patterns.shape
            wanted = self._num_layers, len(rows.key_ranges[0].tables), self.heads[0].num_heads
            if found != wanted:
                raise ValueError(f"patterns are for {found} layers, spans and heads; {wanted} are accepted")
            for own, address in zip(memory, patterns.addresses, strict=True):
                own.patterns = address

    def _with_taken(self, taken: Sequence[Taken], first: int, end: int, num_rows: int) -> tuple[Any, object]:
        """Return the translated steps first <= n < end with copies of numbers between them, and an object that must be
        kept as long as they run.
        """
        by_step: dict[int, list[CTaken]] = {}
        for each in taken:
            name, width = f"numbers of {each.register.name} before step {each.step}", each.numbers.shape[1]
            row_width = self._widths[each.step].get(each.register, 0) if first <= each.step <= end else 0
            if each.register > Register.OUT or not 0 <= each.first <= row_width - width:
                raise ValueError(f"{name} are columns {each.first} to {each.first + width}; a row has {row_width}")
            check_tensor(name, each.numbers, (self.dtype,), (len(each.rows), width))
            check_tensor(f"rows of {name}", each.rows, (torch.int64,), (len(each.rows),))
            if len(each.rows) and not 0 <= int(each.rows.min()) <= int(each.rows.max()) < num_rows:
                raise ValueError(f"{name} are of rows {each.rows.tolist()}; 0 to {num_rows - 1} are accepted")
            places = (each.rows.data_ptr(), each.numbers.data_ptr())
            found = CTaken(*places, len(each.rows), each.register, row_width, each.first, width)
            by_step.setdefault(each.step, []).append(found)
        parts, kept, start = list[CStep](), list[object](), self._starts[first]
        for step in sorted(by_step):
            stop = self._starts[step]
            array = (CTaken * len(by_step[step]))(*by_step[step])
            kept.append(array)
            parts += [*self._array[start:stop], CStep(op=TAKE, taken=ctypes.addressof(array), num_taken=len(array))]
            start = stop
        parts += self._array[start : self._starts[end]]
        return (CStep * len(parts))(*parts), kept

    def changes(self, products: Sequence[Change | None]) -> AdapterChanges:
        """Return an adapter's changes for `run`: one for each product of the program, or None. Raises ValueError for a
        change that does not fit its product, or that an activation follows.
        """
        array, kept = (CChange * len(self._products))(), []
        for n, (change, step) in enumerate(zip(products, self._products, strict=True)):
            if change is None:
                continue
            if step.activation is not None:
                raise ValueError(f"product {n} has an activation; changes of products without one are accepted")
            weight, rank = step.product.weight, change.down.weight.num_outputs
            inputs, outputs = weight.num_inputs, weight.num_outputs
            if not all(isinstance(each.weight, BlockedWeight) for each in (change.down, change.up)):
                raise ValueError(f"the change of product {n} is quantised; numbers in the stream's dtype are accepted")
            ranks = _ranks_of(change.up.weight.to_dense())
            kept.append(ranks)
            array[n] = CChange(
                down=c_product(self.dtype, f"down of product {n}", change.down, inputs, rank),
                up=c_product(self.dtype, f"up of product {n}", change.up, rank, outputs),
                ranks=ranks.data_ptr(),
            )
        return AdapterChanges(array, [*products, *kept], max(change.down.num_outputs for change in array))

    def _adapted(self, adapted: Sequence[tuple[slice, AdapterChanges]], num_rows: int) -> Any:
        found = (CAdaptedRows * len(adapted))()
        for i, (rows, changes) in enumerate(adapted):
            if not 0 <= rows.start <= rows.stop <= num_rows:
                raise ValueError(f"an adapter's rows {rows.start} to {rows.stop} are not in {num_rows} rows")
            if len(changes.array) != len(self._products):
                raise ValueError(
                    f"an adapter has changes of {len(changes.array)} products; {len(self._products)} are accepted"
                )
            found[i] = CAdaptedRows(rows.start, rows.stop, ctypes.addressof(changes.array))
        return found

    def _ranges(self, rows: DecoderRows) -> Any:
        """Return an array of the key ranges, after one that is read for rotations only."""
        found = (AttentionArguments * (1 + len(self.heads)))()
        found[0].positions = rows.rotary_rows.ctypes.data
        for n, (each, heads) in enumerate(zip(rows.key_ranges, self.heads, strict=False), 1):
            shape = {"num_heads": heads.num_heads, "num_key_heads": heads.num_key_heads, "dim": heads.dim}
            found[n] = AttentionArguments(block_size=each.block_size, **shape, **each.addresses)
        return found

    def _items(self, rows: DecoderRows) -> Any:
        """Return an array of the items of each key range, after an empty one."""
        own = (rows.items[heads.num_key_heads] for heads in self.heads)
        return (CItems * (1 + len(self.heads)))(
            CItems(), *(CItems(each.address, each.lists.ctypes.data, len(each.lists) - 1) for each in own)
        )

    def _tokens(self, of_tokens: Tensor | None, num_rows: int) -> int | None:
        if not self._token_layers:
            return None
        if of_tokens is None:
            raise ValueError("of_tokens is None; a tensor with the inputs of each layer is accepted")
        check_tensor("of_tokens", of_tokens, (self.dtype,), (num_rows, of_tokens.shape[1], self._token_width))
        if of_tokens.shape[1] < self._token_layers:
            raise ValueError(f"of_tokens has {of_tokens.shape[1]} layers; {self._token_layers} are accepted")
        return of_tokens.data_ptr()

    def _check_rows(self, rows: DecoderRows, caches: LayerCaches) -> None:
        shapes = caches.dtype, caches.shapes, len(caches.memory)
        if shapes != (self.dtype, self._shapes, self._num_layers):
            raise ValueError(f"caches are of {shapes}; {self.dtype}, {self._shapes}, {self._num_layers} are accepted")
        key_heads = {heads.num_key_heads for heads in self.heads}
        if not key_heads <= rows.items.keys() or len(rows.key_ranges) < len(self.heads):
            raise ValueError(
                f"rows have {len(rows.key_ranges)} key ranges and items for {[*rows.items]} key heads; "
                f"{len(self.heads)} and {[*key_heads]} are accepted"
            )
        size, blocks = caches.block_size, max(key_range.num_blocks for key_range in rows.key_ranges)
        if (
            rows.key_ranges[0].block_size != size
            or blocks > caches.num_blocks
            or rows.end_slot > caches.num_blocks * size
        ):
            raise ValueError(
                f"caches have {caches.num_blocks} blocks of {size} keys; rows take {blocks} of "
                f"{rows.key_ranges[0].block_size}, and the slot {rows.end_slot - 1}"
            )
        if self._states != caches.states or (self._states and rows.end_state > (caches.num_states or 0)):
            found = f"caches have {caches.num_states} states of {caches.states}"
            raise ValueError(f"{found}; {rows.end_state} of {self._states} are accepted")
        if self._states and not len(rows.spans):
            raise ValueError("rows have no spans; layers without attention need them")
        last = int(rows.rotary_rows.max(initial=-1))
        if self._num_positions is not None and last >= self._num_positions:
            raise ValueError(f"cos and sin are for {self._num_positions} positions; a row has position {last}")
        for key_range, reach in self._reaches:
            if (longest := rows.key_ranges[key_range].longest) > reach:
                raise ValueError(f"the position bias reaches {reach} positions; a sequence has {longest}")


def _ranks_of(up: Tensor) -> Tensor:
    """Return the range first <= k < end of ranks with numbers other than 0, for each block of outputs of up [N, rank]:
    int64 [blocks, 2]. Parts of one matrix, such as queries, keys and values, use separate ranks.
    """
    found = []
    for block in torch.split(up != 0, BLOCK):
        used = block.any(0).nonzero()
        found.append([int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0])
    return torch.tensor(found)
