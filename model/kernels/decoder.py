"""Runs a decoder's blocks for a few rows in one call, as a program of steps: `cpu/decoder.h`. The bits are those of the
kernels one by one.

Each product of such a step takes microseconds, and the Python code between products would take as long again. The
ctypes structures have the fields of `cpu/decoder.h`, which describes them; adapters add to each product.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, B keys to a block of the cache, L layers.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightwell.model.kernels.attention import AttentionArguments, AttentionItems, VisibleKeys
from lightwell.model.kernels.checks import ACTIVATIONS, SUFFIXES, address_of, check_activation, check_tensor
from lightwell.model.kernels.library import fields, kernels
from lightwell.model.kernels.products import BLOCK, BlockedWeight
from lightwell.model.kernels.program import (
    AddRows,
    Attend,
    EnterHeads,
    GateRows,
    JoinRows,
    Multiply,
    NormRows,
    NormWeights,
    Product,
    Register,
    ScaleRows,
    Step,
)

_FLOAT32 = (torch.float32,)
_RMS, _RMS_ONCE, _LAYER = range(3)
_NORM, _MULTIPLY, _ENTER, _ATTEND, _READY, _GATE, _ADD, _JOIN, _SCALE = range(9)
"""`Op` of decoder.h."""


class CProduct(ctypes.Structure):
    """`Product` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "form", "num_inputs", "num_outputs"))


class CNorm(ctypes.Structure):
    """`Norm` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "kind", "width"), *fields("f", "eps"))


class CStep(ctypes.Structure):
    """`Step` of decoder.h."""

    _fields_ = (
        *fields("l", "op", "source", "target", "layer"),
        *fields("p", "next"),
        ("product", CProduct),
        *fields("l", "number", "adds", "activation"),
        *((name, CNorm) for name in ("norm", "k_norm", "v_norm")),
        *fields("p", "cos", "sin"),
        *fields("l", "num_rotated"),
        *fields("p", "bias", "sinks"),
        *fields("l", "bias_width", "key_range"),
        *fields("f", "score_scale", "softcap", "scale"),
    )


class CChange(ctypes.Structure):
    """`Change` of decoder.h."""

    _fields_ = (("down", CProduct), ("up", CProduct), *fields("p", "ranks"))


class CAdaptedRows(ctypes.Structure):
    """`AdaptedRows` of decoder.h."""

    _fields_ = (*fields("l", "first", "end"), *fields("p", "changes"))


class CMemory(ctypes.Structure):
    """`LayerMemory` of decoder.h."""

    _fields_ = fields("p", "keys", "values", "queries")


class CRows(ctypes.Structure):
    """`Rows` of decoder.h."""

    _fields_ = (
        *fields("p", "key_ranges", "items", "slots", "alone", "memory", "out", "adapted"),
        *fields("l", "num_items", "num_rows", "width", "num_adapted", "max_rank"),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """An adapter's summand of a product: up(down(x)), each rounded as a separate product."""

    down: Product
    """The product's inputs to the adapter's rank."""
    up: Product
    """The adapter's rank to the product's outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterChanges:
    """An adapter's changes of a decoder's products, which `Decoder.changes` has checked."""

    array: "ctypes.Array[CChange]"
    """Of each product of the program."""
    kept: object
    """The tensors at the addresses in `array`."""
    max_rank: int


class LayerCaches:
    """The caches to which the layers write keys and values. They are checked once, for all steps."""

    def __init__(self, caches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Check and keep keys [block, K, D, B] and values [block, K, B, D] of each layer; all have the same shapes."""
        if not caches:
            raise ValueError("caches is empty; one for each layer is accepted")
        keys = caches[0][0]
        if keys.dtype not in SUFFIXES or keys.dim() != 4:
            raise ValueError(f"keys are {keys.dtype} {list(keys.shape)}; float32 or bfloat16 of 4 axes is accepted")
        self.num_blocks, self.num_key_heads, self.dim, self.block_size = keys.shape
        self.dtype = keys.dtype
        for n, (k, v) in enumerate(caches):
            check_tensor(f"keys of layer {n}", k, (keys.dtype,), tuple(keys.shape))
            check_tensor(f"values of layer {n}", v, (keys.dtype,), (*keys.shape[:2], keys.shape[3], keys.shape[2]))
        self.memory = (CMemory * len(caches))(*(CMemory(k.data_ptr(), v.data_ptr()) for k, v in caches))
        self._kept = [*caches]


class DecoderRows:
    """The rows of a step. They are checked once; the arrays must not change."""

    def __init__(
        self,
        key_ranges: Sequence[VisibleKeys],
        items: AttentionItems,
        slots: np.ndarray,
        alone: np.ndarray,
        num_key_heads: int,
        rotary_rows: np.ndarray | None = None,
    ) -> None:
        """Check and keep the arrays.

        key_ranges: one for each attention window of the layers; the first one has the tables and positions of all.
        items: each row and key head once. slots [R] int64: block * B + the place in the block. alone [R] bool: whether
        a row is the only one of its sequence, and its last. rotary_rows [R] int64: the rows of the rotary tables, by
        default the positions.
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
                raise ValueError(f"{name} holds {array.min()}; {name} count from 0")
        for key_range in key_ranges:
            if key_range.num_rows != num_rows or key_range.block_size != first.block_size:
                raise ValueError(f"key ranges are of {key_range.num_rows} and {num_rows} rows; all must have the same")
            if not np.array_equal(key_range.last[alone], key_range.positions[alone] + 1):
                raise ValueError("a single row must see all keys up to its own, and no others")
        sizes, found = (len(first.tables), num_rows, num_key_heads), items.array[:, 2] @ items.array[:, 4]
        if any(needed > size for needed, size in zip(items.sizes, sizes, strict=True)):
            raise ValueError(f"items need {items.sizes} sequences, rows and key heads; there are {sizes}")
        if found != num_rows * num_key_heads:
            raise ValueError(f"items have {found} rows and key heads; there are {num_rows} times {num_key_heads}")
        if alone[items.array[items.array[:, 2] > 1, 1]].any():
            raise ValueError("items have rows of several, and one is single")
        self.key_ranges, self.items, self.slots, self.alone = tuple(key_ranges), items, slots, alone
        self.num_rows, self.num_key_heads = num_rows, num_key_heads
        self.end_slot = int(slots.max(initial=-1)) + 1


class Decoder:
    """A program of steps."""

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        dtype: torch.dtype,
        width: int,
        num_heads: int,
        num_key_heads: int,
        head_dim: int,
    ) -> None:
        """Check and keep the steps.

        dtype: of the residual stream and the cache. width: of the stream. Raises ValueError for steps that do not fit.
        """
        if dtype not in SUFFIXES:
            raise ValueError(f"dtype is {dtype}; {', '.join(map(str, SUFFIXES))} are accepted")
        if not steps:
            raise ValueError("steps is empty; at least one is accepted")
        if num_key_heads < 1 or num_heads < 1 or num_heads % num_key_heads:
            raise ValueError(f"there are {num_heads} heads for {num_key_heads} key heads; a multiple is accepted")
        self.dtype, self.width = dtype, width
        self.num_heads, self.num_key_heads, self.head_dim = num_heads, num_key_heads, head_dim
        self._steps = [*steps]
        self._products = [step.product for step in steps if isinstance(step, Multiply)]
        attends = [step for step in steps if isinstance(step, Attend)]
        self._num_layers, self._key_ranges = len(attends), {step.key_range for step in attends}
        if min(self._key_ranges, default=0) < 0:
            raise ValueError(f"key_range is {min(self._key_ranges)}; ranges count from 0")
        tables = [step.rotary_tables for step in steps if isinstance(step, EnterHeads)]
        self._num_positions = min((len(each[0]) for each in tables if each is not None), default=None)
        self._reach = min(((step.bias.shape[1] + 1) // 2 for step in attends if step.bias is not None), default=None)
        self._compile()

    def _compile(self) -> None:
        """Translate the steps: the step before a `Multiply` makes its rows ready, or one that does nothing else."""
        widths, found = {Register.STREAM: self.width}, []
        self._starts, number = [], 0
        """The translated step with which each step begins."""
        for i, step in enumerate(self._steps):
            self._starts.append(len(found))
            before = self._steps[i - 1] if i else None
            if isinstance(step, Multiply) and not _writes_rows(before, step.source):
                found.append(CStep(op=_READY, source=step.source))
            found.append(self._translated(step, widths))
            if isinstance(step, Multiply):
                found[-1].number, number = number, number + 1
        self._starts.append(len(found))
        self._array = (CStep * len(found))(*found)
        for n, each in enumerate(found[1:], 1):
            if each.op == _MULTIPLY:
                self._array[n - 1].next = ctypes.addressof(self._array) + n * ctypes.sizeof(CStep)

    def _translated(self, step: Step, widths: dict[Register, int]) -> CStep:
        """Return a step in the kernels' form. widths: of the rows of each register, which it changes."""
        width, heads, key_heads = self.width, self.num_heads * self.head_dim, self.num_key_heads * self.head_dim
        match step:
            case NormRows(norm, source, target):
                _check_width(step, source, widths, width)
                widths[target] = width
                return CStep(op=_NORM, source=source, target=target, norm=self._norm("norm", norm, width))
            case Multiply(product, source, target, activation, adds):
                check_activation(activation)
                _check_width(step, source, widths, product.weight.num_inputs)
                outputs = widths[target] = product.weight.num_outputs
                if outputs != width and (target != Register.WIDE or adds is not None):
                    raise ValueError(f"a product for {target.name} has {outputs} outputs; {width} are accepted")
                return CStep(
                    op=_MULTIPLY,
                    source=source,
                    target=target,
                    product=self._product("product", product, product.weight.num_inputs, outputs),
                    adds=adds is not None,
                    scale=adds or 0.0,
                    activation=ACTIVATIONS[activation],
                )
            case EnterHeads(layer, q_norm, k_norm, v_norm, tables):
                _check_width(step, Register.WIDE, widths, heads + 2 * key_heads)
                found = CStep(op=_ENTER, source=Register.WIDE, layer=layer)
                for name, norm, whole in (
                    ("norm", q_norm, heads),
                    ("k_norm", k_norm, key_heads),
                    ("v_norm", v_norm, 0),
                ):
                    if norm is not None:
                        length = self.head_dim if len(norm.weight) == self.head_dim else whole
                        setattr(found, name, self._norm(name, norm, length))
                if tables is not None:
                    cos, sin = tables
                    for name, table in (("cos", cos), ("sin", sin)):
                        check_tensor(name, table, _FLOAT32, tuple(cos.shape))
                    if cos.dim() != 2 or cos.shape[1] % 2 or cos.shape[1] > self.head_dim:
                        raise ValueError(
                            f"cos is {list(cos.shape)}; an even number up to {self.head_dim} can be rotated"
                        )
                    found.cos, found.sin, found.num_rotated = cos.data_ptr(), sin.data_ptr(), cos.shape[1]
                return found
            case Attend(layer, scale, softcap, bias, sinks, key_range):
                _check_width(step, Register.WIDE, widths, heads + 2 * key_heads)
                widths[Register.MIXED] = heads
                bias_width = 0 if bias is None else bias.shape[1]
                return CStep(
                    op=_ATTEND,
                    source=Register.WIDE,
                    target=Register.MIXED,
                    layer=layer,
                    bias=address_of("bias", bias, _FLOAT32, (self.num_heads, bias_width)),
                    sinks=address_of("sinks", sinks, _FLOAT32, (self.num_heads,)),
                    bias_width=bias_width,
                    key_range=1 + key_range,
                    score_scale=scale,
                    softcap=softcap or 0.0,
                )
            case GateRows(activation):
                check_activation(activation)
                inside = widths[Register.MIXED] = widths.get(Register.WIDE, 0) // 2
                _check_width(step, Register.WIDE, widths, 2 * inside)
                places = {"source": Register.WIDE, "target": Register.MIXED}
                return CStep(op=_GATE, **places, activation=ACTIVATIONS[activation])
            case AddRows(scale):
                _check_width(step, Register.NORMED, widths, width)
                return CStep(op=_ADD, scale=scale)
            case JoinRows():
                _check_width(step, Register.NORMED, widths, width)
                _check_width(step, Register.ASIDE, widths, width)
                return CStep(op=_JOIN)
            case ScaleRows(scale):
                return CStep(op=_SCALE, scale=scale)

    def run(
        self,
        x: Tensor,
        rows: DecoderRows,
        caches: LayerCaches,
        *,
        first: int = 0,
        end: int | None = None,
        queries: Mapping[int, Tensor] | None = None,
        adapted: Sequence[tuple[slice, AdapterChanges]] = (),
    ) -> Tensor:
        """Run the steps first <= n < end (None: to the last) on x [R, d], in place. Only the stream and the caches are
        kept between two calls.

        Returns the rows of OUT if the last of these steps writes them, else x. queries: room for the queries of some
        layers, [R, H, D] float32. adapted: rows with adapters, and their changes.
        """
        num_rows, end = rows.num_rows, len(self._steps) if end is None else end
        check_tensor("x", x, (self.dtype,), (num_rows, self.width))
        if not 0 <= first <= end <= len(self._steps):
            raise ValueError(f"steps from {first} to {end} are requested; there are {len(self._steps)}")
        self._check_rows(rows, caches)
        memory = caches.memory
        if queries:
            memory = (CMemory * self._num_layers).from_buffer_copy(memory)
            for n, q in queries.items():
                if not 0 <= n < self._num_layers:
                    raise ValueError(f"queries has layer {n}; there are {self._num_layers}")
                check_tensor(f"queries of layer {n}", q, _FLOAT32, (num_rows, self.num_heads, self.head_dim))
                memory[n].queries = q.data_ptr()
        last = self._steps[end - 1] if end > first else None
        out = torch.empty_like(x) if isinstance(last, NormRows) and last.target == Register.OUT else x
        key_ranges = self._ranges(rows)
        adapters = self._adapted(adapted, num_rows)
        given = CRows(
            key_ranges=ctypes.addressof(key_ranges),
            items=rows.items.address,
            slots=rows.slots.ctypes.data,
            alone=rows.alone.ctypes.data,
            memory=ctypes.addressof(memory),
            out=out.data_ptr(),
            adapted=ctypes.addressof(adapters),
            num_adapted=len(adapters),
            max_rank=max((changes.max_rank for _, changes in adapted), default=0),
            num_items=len(rows.items.array),
            num_rows=num_rows,
            width=self.width,
        )
        start, stop = self._starts[first], self._starts[end]
        steps = ctypes.addressof(self._array) + start * ctypes.sizeof(CStep)
        arguments = steps, stop - start, ctypes.addressof(given), x.data_ptr()
        kernels().call(f"run_decoder_{SUFFIXES[self.dtype]}", "plpp", *arguments)
        return out

    def changes(self, products: Sequence[Change | None]) -> AdapterChanges:
        """Return an adapter's changes for `run`: one for each product of the program, or None. Raises ValueError for a
        change that does not fit its product.
        """
        array, kept = (CChange * len(self._products))(), []
        for n, (change, product) in enumerate(zip(products, self._products, strict=True)):
            if change is None:
                continue
            inputs, outputs, rank = (
                product.weight.num_inputs,
                product.weight.num_outputs,
                change.down.weight.num_outputs,
            )
            if not all(isinstance(each.weight, BlockedWeight) for each in (change.down, change.up)):
                raise ValueError(f"the change of product {n} is quantised; numbers in the stream's dtype are accepted")
            ranks = _ranks_of(change.up.weight.to_dense())
            kept.append(ranks)
            array[n] = CChange(
                down=self._product(f"down of product {n}", change.down, inputs, rank),
                up=self._product(f"up of product {n}", change.up, rank, outputs),
                ranks=ranks.data_ptr(),
            )
        return AdapterChanges(array, [*products, *kept], max(change.down.num_outputs for change in array))

    def _adapted(self, adapted: Sequence[tuple[slice, AdapterChanges]], num_rows: int) -> Any:
        found = (CAdaptedRows * len(adapted))()
        for i, (rows, changes) in enumerate(adapted):
            if not 0 <= rows.start <= rows.stop <= num_rows:
                raise ValueError(f"an adapter's rows {rows.start} to {rows.stop} are not in {num_rows} rows")
            if len(changes.array) != len(self._products):
                raise ValueError(f"an adapter is of another decoder, with {len(changes.array)} products")
            found[i] = CAdaptedRows(rows.start, rows.stop, ctypes.addressof(changes.array))
        return found

    def _ranges(self, rows: DecoderRows) -> Any:
        """Return an array of the key ranges, after one that is read for rotations only."""
        shape = {"num_heads": self.num_heads, "num_key_heads": self.num_key_heads, "dim": self.head_dim}
        ranges = (rows.key_ranges[0], *rows.key_ranges)
        found = (AttentionArguments * len(ranges))(
            *(AttentionArguments(block_size=each.block_size, **shape, **each.addresses) for each in ranges)
        )
        found[0].positions = rows.rotary_rows.ctypes.data
        return found

    def _check_rows(self, rows: DecoderRows, caches: LayerCaches) -> None:
        shape = caches.dtype, caches.num_key_heads, caches.dim, len(caches.memory)
        if shape != (self.dtype, self.num_key_heads, self.head_dim, self._num_layers):
            raise ValueError(
                f"caches are of {shape}; {self.dtype}, {self.num_key_heads} key heads of {self.head_dim} dimensions "
                f"and {self._num_layers} layers are accepted"
            )
        num_ranges = 1 + max(self._key_ranges, default=-1)
        if rows.num_key_heads != self.num_key_heads or len(rows.key_ranges) < num_ranges:
            raise ValueError(
                f"rows have {len(rows.key_ranges)} key ranges and items for {rows.num_key_heads} key heads; "
                f"{num_ranges} and {self.num_key_heads} are accepted"
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
        last = int(rows.rotary_rows.max(initial=-1))
        if self._num_positions is not None and last >= self._num_positions:
            raise ValueError(f"cos and sin are for {self._num_positions} positions; a row has position {last}")
        longest = max(key_range.longest for key_range in rows.key_ranges)
        if self._reach is not None and longest > self._reach:
            raise ValueError(f"the position bias reaches {self._reach} positions; a sequence has {longest}")

    def _norm(self, name: str, norm: NormWeights, width: int) -> CNorm:
        kinds = (self.dtype,) if norm.is_centred else (self.dtype, torch.float32)
        check_tensor(name, norm.weight, kinds, (width,))
        kind = _LAYER if norm.is_centred else _RMS if norm.weight.dtype == self.dtype else _RMS_ONCE
        bias = address_of(f"bias of {name}", norm.bias, (self.dtype,), (width,))
        return CNorm(weight=norm.weight.data_ptr(), bias=bias, kind=kind, width=width, eps=norm.eps)

    def _product(self, name: str, product: Product, num_inputs: int, num_outputs: int) -> CProduct:
        weight, bias = product.weight, product.bias
        if (weight.num_inputs, weight.num_outputs) != (num_inputs, num_outputs) or min(num_inputs, num_outputs) < 1:
            found = f"{weight.num_inputs} inputs and {weight.num_outputs} outputs"
            raise ValueError(f"{name} has {found}; {num_inputs} and {num_outputs} are accepted")
        bias_address = address_of(f"bias of {name}", bias, (self.dtype,), (num_outputs,))
        if weight.row_dtype != self.dtype:
            raise ValueError(f"{name} multiplies rows of {weight.row_dtype}; {self.dtype} is accepted")
        return CProduct(
            weight=weight.packed.data_ptr(),
            bias=bias_address,
            form=weight.form,
            num_inputs=num_inputs,
            num_outputs=num_outputs,
        )


def _writes_rows(step: Step | None, register: Register) -> bool:
    """Return whether a step writes whole rows of a register, so that it can make them ready for a product. The product
    of the stream may be in another call.
    """
    if isinstance(step, GateRows):
        return register == Register.MIXED
    return isinstance(step, NormRows) and step.target == register != Register.STREAM


def _check_width(step: Step, register: Register, widths: Mapping[Register, int], width: int) -> None:
    if widths.get(register) != width:
        name = f"{type(step).__name__} takes {width} numbers of {register.name}"
        raise ValueError(f"{name}; a row has {widths.get(register, 'none')} there")


def _ranks_of(up: Tensor) -> Tensor:
    """Return the range first <= k < end of ranks with numbers other than 0, for each block of outputs of up [N, rank]:
    int64 [blocks, 2]. Parts of one matrix, such as queries, keys and values, use separate ranks.
    """
    found = []
    for block in torch.split(up != 0, BLOCK):
        used = block.any(0).nonzero()
        found.append([int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0])
    return torch.tensor(found)
