"""Runs a decoder's blocks for a few rows in one call, with the same bits as its kernels one by one: `cpu/decoder.h`.

Each product of such a step takes microseconds, and the Python code between products would take as long again. A block
is x += scale * out(attention(qkv(norm(x)))), x += scale * down(silu(gate) * up) of gate_up(norm(x)); adapters add to
each product. The ctypes structures have the fields of `cpu/decoder.h`, which describes them.

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
from lightwell.model.kernels.checks import SUFFIXES, address_of, check_tensor
from lightwell.model.kernels.library import fields, kernels
from lightwell.model.kernels.products import BLOCK, BlockedWeight, LaidWeight

_FLOAT32 = (torch.float32,)

PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The products of a layer, in their order."""


class CProduct(ctypes.Structure):
    """`Product` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "form", "num_inputs", "num_outputs"))


class CDecoderLayer(ctypes.Structure):
    """`DecoderLayer` of decoder.h."""

    _fields_ = (
        *((name, CProduct) for name in PRODUCTS),
        *fields("p", "before_attention", "before_mlp", "q_norm", "k_norm", "cos", "sin"),
        *fields("l", "q_norm_width", "k_norm_width", "num_rotated", "key_range"),
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


class CDecoderStep(ctypes.Structure):
    """`DecoderStep` of decoder.h."""

    _fields_ = (
        *fields("p", "key_ranges", "items", "slots", "alone", "memory", "final_norm", "out", "adapted"),
        *fields("l", "num_items", "num_rows", "width", "num_adapted", "max_rank", "rounds_once"),
        *fields("f", "eps", "residual_scale"),
    )


@dataclass(frozen=True, slots=True)
class Product:
    """A weight to multiply by, with a bias [outputs] of the residual stream's dtype."""

    weight: LaidWeight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One block's weights. All norms have the residual stream's dtype, or all are float32 and round once."""

    qkv: Product
    """d to (H + 2K) D: query heads, key heads, value heads."""
    out: Product
    """H D to d."""
    gate_up: Product
    """d to 2 ff: gate, then up."""
    down: Product
    """ff to d."""
    before_attention: Tensor
    """The norm's weight, [d]."""
    before_mlp: Tensor
    """[d]"""
    q_norm: Tensor | None = None
    """The weight of each head's norm, [D], or of one norm over all, [H D], or None if there is none."""
    k_norm: Tensor | None = None
    """The same for keys: [D] or [K D]."""
    rotary_tables: tuple[Tensor, Tensor] | None = None
    """cos and sin [positions, rotated] float32, as in `rows.rotate_and_store`; None rotates nothing."""
    key_range: int = 0
    """The index of the layer's key range among the step's `key_ranges`."""


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
    """[L, 4]"""
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
    """The blocks of one decoder, and the norm after them."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        final_norm: Tensor | None,
        *,
        dtype: torch.dtype,
        num_heads: int,
        num_key_heads: int,
        head_dim: int,
        eps: float,
        scale: float,
        softcap: float | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        """Check and keep the layers.

        dtype: of the residual stream and the cache. final_norm [d]. eps: of all norms. scale, softcap: as in `attend`.
        residual_scale: the factor of each sublayer's output before it is added to the stream.
        """
        if dtype not in SUFFIXES:
            raise ValueError(f"dtype is {dtype}; {', '.join(map(str, SUFFIXES))} are accepted")
        if not layers:
            raise ValueError("layers is empty; at least one is accepted")
        if num_key_heads < 1 or num_heads < 1 or num_heads % num_key_heads:
            raise ValueError(f"there are {num_heads} heads for {num_key_heads} key heads; a multiple is accepted")
        self.dtype, self.width = dtype, layers[0].qkv.weight.num_inputs
        self.num_heads, self.num_key_heads, self.head_dim = num_heads, num_key_heads, head_dim
        self._norm_dtype = layers[0].before_attention.dtype
        self._rule = {"scale": scale, "softcap": softcap or 0.0}
        self._eps, self._residual_scale = eps, residual_scale
        self._kept = [*layers], final_norm
        self._layers = (CDecoderLayer * len(layers))(*map(self._layer, layers))
        self._final_norm = None if final_norm is None else self._norm("final_norm", final_norm, self.width)
        self._num_key_ranges = 1 + max(layer.key_range for layer in layers)
        lengths = [len(layer.rotary_tables[0]) for layer in layers if layer.rotary_tables is not None]
        self._num_positions = min(lengths) if lengths else None

    def run(
        self,
        x: Tensor,
        rows: DecoderRows,
        caches: LayerCaches,
        *,
        first_layer: int = 0,
        end_layer: int | None = None,
        queries: Mapping[int, Tensor] | None = None,
        adapted: Sequence[tuple[slice, AdapterChanges]] = (),
    ) -> Tensor:
        """Run layers first_layer <= n < end_layer (None: to the last) on x [R, d], in place.

        Returns the final-normed rows after the last layer of a decoder with such a norm, else x. queries: room for the
        queries of some layers, [R, H, D] float32. adapted: rows with adapters, and their changes.
        """
        num_layers, num_rows = len(self._layers), rows.num_rows
        end = num_layers if end_layer is None else end_layer
        check_tensor("x", x, (self.dtype,), (num_rows, self.width))
        if not 0 <= first_layer <= end <= num_layers:
            raise ValueError(f"layers from {first_layer} to {end} are requested; there are {num_layers}")
        self._check_rows(rows, caches)
        memory = caches.memory
        if queries:
            memory = (CMemory * num_layers).from_buffer_copy(memory)
            for n, q in queries.items():
                if not 0 <= n < num_layers:
                    raise ValueError(f"queries has layer {n}; there are {num_layers}")
                check_tensor(f"queries of layer {n}", q, _FLOAT32, (num_rows, self.num_heads, self.head_dim))
                memory[n].queries = q.data_ptr()
        out = torch.empty_like(x) if self._final_norm is not None and end == num_layers else x
        key_ranges = self._key_ranges(rows)
        adapters = self._adapted(adapted, first_layer, num_rows)
        step = CDecoderStep(
            key_ranges=ctypes.addressof(key_ranges),
            items=rows.items.address,
            slots=rows.slots.ctypes.data,
            alone=rows.alone.ctypes.data,
            memory=ctypes.addressof(memory) + first_layer * ctypes.sizeof(CMemory),
            final_norm=None if out is x else self._final_norm,
            out=out.data_ptr(),
            adapted=ctypes.addressof(adapters),
            num_adapted=len(adapters),
            max_rank=max((changes.max_rank for _, changes in adapted), default=0),
            num_items=len(rows.items.array),
            num_rows=num_rows,
            width=self.width,
            rounds_once=self._norm_dtype != self.dtype,
            eps=self._eps,
            residual_scale=self._residual_scale,
        )
        layers = ctypes.addressof(self._layers) + first_layer * ctypes.sizeof(CDecoderLayer)
        kernels().call(
            f"run_decoder_{SUFFIXES[self.dtype]}",
            "plpp",
            *(layers, end - first_layer, ctypes.addressof(step), x.data_ptr()),
        )
        return out

    def changes(self, layers: Sequence[Mapping[str, Change]]) -> AdapterChanges:
        """Return an adapter's changes for `run`. layers: for each layer changes of some of `PRODUCTS`. Raises
        ValueError for a change that does not fit its product.
        """
        array, kept = (CChange * (len(PRODUCTS) * len(self._layers)))(), []
        for n, (own, layer) in enumerate(zip(layers, self._layers, strict=True)):
            for name, change in own.items():
                product, rank = getattr(layer, name), change.down.weight.num_outputs
                if not all(isinstance(each.weight, BlockedWeight) for each in (change.down, change.up)):
                    raise ValueError(f"the change of {name} is quantised; numbers in the stream's dtype are accepted")
                ranks = _ranks_of(change.up.weight.to_dense())
                kept.append(ranks)
                array[n * len(PRODUCTS) + PRODUCTS.index(name)] = CChange(
                    down=self._product(f"down of {name}", change.down, product.num_inputs, rank),
                    up=self._product(f"up of {name}", change.up, rank, product.num_outputs),
                    ranks=ranks.data_ptr(),
                )
        return AdapterChanges(array, [*layers, *kept], max(change.down.num_outputs for change in array))

    def _adapted(self, adapted: Sequence[tuple[slice, AdapterChanges]], first_layer: int, num_rows: int) -> Any:
        skipped = first_layer * len(PRODUCTS) * ctypes.sizeof(CChange)
        found = (CAdaptedRows * len(adapted))()
        for i, (rows, changes) in enumerate(adapted):
            if not 0 <= rows.start <= rows.stop <= num_rows:
                raise ValueError(f"an adapter's rows {rows.start} to {rows.stop} are not in {num_rows} rows")
            if len(changes.array) != len(PRODUCTS) * len(self._layers):
                raise ValueError(f"an adapter is of another decoder, with {len(changes.array) // len(PRODUCTS)} layers")
            found[i] = CAdaptedRows(rows.start, rows.stop, ctypes.addressof(changes.array) + skipped)
        return found

    def _key_ranges(self, rows: DecoderRows) -> Any:
        """Return an array of the key ranges, after one that is read for rotations only."""
        shape = {"num_heads": self.num_heads, "num_key_heads": self.num_key_heads, "dim": self.head_dim, **self._rule}
        ranges = (rows.key_ranges[0], *rows.key_ranges)
        found = (AttentionArguments * len(ranges))(
            *(AttentionArguments(block_size=each.block_size, **shape, **each.addresses) for each in ranges)
        )
        found[0].positions = rows.rotary_rows.ctypes.data
        return found

    def _check_rows(self, rows: DecoderRows, caches: LayerCaches) -> None:
        shape = caches.dtype, caches.num_key_heads, caches.dim, len(caches.memory)
        if shape != (self.dtype, self.num_key_heads, self.head_dim, len(self._layers)):
            raise ValueError(
                f"caches are of {shape}; {self.dtype}, {self.num_key_heads} key heads of {self.head_dim} dimensions "
                f"and {len(self._layers)} layers are accepted"
            )
        if rows.num_key_heads != self.num_key_heads or len(rows.key_ranges) < self._num_key_ranges:
            raise ValueError(
                f"rows have {len(rows.key_ranges)} key ranges and items for {rows.num_key_heads} key heads; "
                f"{self._num_key_ranges} and {self.num_key_heads} are accepted"
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

    def _layer(self, layer: DecoderLayer) -> CDecoderLayer:
        width, heads, key_heads = self.width, self.num_heads * self.head_dim, self.num_key_heads * self.head_dim
        inside = layer.down.weight.num_inputs
        found = CDecoderLayer(
            qkv=self._product("qkv", layer.qkv, width, heads + 2 * key_heads),
            out=self._product("out", layer.out, heads, width),
            gate_up=self._product("gate_up", layer.gate_up, width, 2 * inside),
            down=self._product("down", layer.down, inside, width),
            before_attention=self._norm("before_attention", layer.before_attention, width),
            before_mlp=self._norm("before_mlp", layer.before_mlp, width),
            key_range=1 + layer.key_range,
        )
        if layer.key_range < 0:
            raise ValueError(f"key_range is {layer.key_range}; ranges count from 0")
        for name, norm, whole in (("q_norm", layer.q_norm, heads), ("k_norm", layer.k_norm, key_heads)):
            if norm is not None:
                length = self.head_dim if len(norm) == self.head_dim else whole
                setattr(found, name, self._norm(name, norm, length))
                setattr(found, f"{name}_width", length)
        if layer.rotary_tables is not None:
            cos, sin = layer.rotary_tables
            for name, table in (("cos", cos), ("sin", sin)):
                check_tensor(name, table, _FLOAT32, tuple(cos.shape))
            if cos.dim() != 2 or cos.shape[1] % 2 or cos.shape[1] > self.head_dim:
                raise ValueError(f"cos is {list(cos.shape)}; an even number up to {self.head_dim} can be rotated")
            found.cos, found.sin, found.num_rotated = cos.data_ptr(), sin.data_ptr(), cos.shape[1]
        return found

    def _norm(self, name: str, weight: Tensor, width: int) -> int:
        if self._norm_dtype not in (self.dtype, torch.float32):
            raise ValueError(f"norms' weights are {self._norm_dtype}; {self.dtype} or float32 is accepted")
        check_tensor(name, weight, (self._norm_dtype,), (width,))
        return weight.data_ptr()

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


def _ranks_of(up: Tensor) -> Tensor:
    """Return the range first <= k < end of ranks with numbers other than 0, for each block of outputs of up [N, rank]:
    int64 [blocks, 2]. Parts of one matrix, such as queries, keys and values, use separate ranks.
    """
    found = []
    for block in torch.split(up != 0, BLOCK):
        used = block.any(0).nonzero()
        found.append([int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0])
    return torch.tensor(found)
