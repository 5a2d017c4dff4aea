"""Runs a decoder's blocks for a few rows in one call, with the bits of its kernels one by one: `cpu/decoder.h`.

Such a step's products take microseconds each, and the Python between them takes as long again. A block is x +=
out(attention(qkv(norm(x)))), x += down(silu(gate) * up) of gate_up(norm(x)).

Axes: R rows, d model width, H query heads, K key heads, D head dimension, B keys to a block of the cache, L layers.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.kernels.attention import AttentionArguments, AttentionItems, VisibleKeys
from model.kernels.checks import SUFFIXES, check_tensor
from model.kernels.forms import LaidWeight
from model.kernels.library import kernels

_FLOAT32 = (torch.float32,)
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The products of a layer, in their order."""


class _CProduct(ctypes.Structure):
    """`Product` of decoder.h, which says what the fields of these structs are."""

    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias")),
        *((name, _LONG) for name in ("form", "num_inputs", "num_outputs")),
    )


class _CDecoderLayer(ctypes.Structure):
    """`DecoderLayer` of decoder.h."""

    _fields_ = (
        *((name, _CProduct) for name in PRODUCTS),
        *((name, _POINTER) for name in ("before_attention", "before_mlp", "q_norm", "k_norm", "cos", "sin")),
        *((name, _LONG) for name in ("q_norm_width", "k_norm_width", "num_rotated", "key_range")),
    )


class _CChange(ctypes.Structure):
    """`Change` of decoder.h."""

    _fields_ = (("down", _CProduct), ("up", _CProduct))


class _CAdaptedRows(ctypes.Structure):
    """`AdaptedRows` of decoder.h."""

    _fields_ = (("first", _LONG), ("end", _LONG), ("changes", _POINTER))


class _CMemory(ctypes.Structure):
    """`LayerMemory` of decoder.h."""

    _fields_ = tuple((name, _POINTER) for name in ("keys", "values", "queries"))


class _CDecoderStep(ctypes.Structure):
    """`DecoderStep` of decoder.h."""

    _fields_ = (
        *(
            (name, _POINTER)
            for name in ("key_ranges", "items", "slots", "alone", "memory", "final_norm", "out", "adapted")
        ),
        *((name, _LONG) for name in ("num_items", "num_rows", "width", "num_adapted", "rounds_once")),
        ("eps", ctypes.c_float),
        ("residual_scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class Product:
    """A weight to multiply by, with a bias [outputs] of the residual stream's dtype."""

    weight: LaidWeight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One block's weights. Those of norms have the residual stream's dtype, or are all float32: norms then round
    once.
    """

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
    """What an adapter adds to a product: up(down(x)), each rounded as a product of its own."""

    down: Product
    """The product's inputs to the adapter's rank."""
    up: Product
    """The rank to the product's outputs."""


class AdapterChanges:
    """What an adapter changes of a decoder. `Decoder.changes` checks and makes it, once."""

    def __init__(self, array: "ctypes.Array[_CChange]", kept: object) -> None:
        """Keep an array [L, 4] of changes, and what its addresses are of."""
        self.array, self._kept = array, kept


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
        self.memory = (_CMemory * len(caches))(*(_CMemory(k.data_ptr(), v.data_ptr()) for k, v in caches))
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
    ) -> None:
        """Check and keep the arrays.

        key_ranges: one for each kind of layer that sees differently far; tables and positions are those of the first
        one. items: each row and key head once. slots [R] int64: block * B + the place in the block. alone [R] bool:
        whether a row is the only one of its sequence, and its last.
        """
        num_rows, first = key_ranges[0].num_rows, key_ranges[0]
        for name, array, dtype in (("slots", slots, np.int64), ("alone", alone, np.bool_)):
            if array.dtype != dtype or array.shape != (num_rows,) or not array.flags.c_contiguous:
                raise ValueError(f"{name} is {array.dtype} {array.shape}; contiguous {dtype} of {num_rows} is accepted")
        if slots.min(initial=0) < 0:
            raise ValueError(f"slots holds {slots.min()}; slots count from 0")
        for key_range in key_ranges:
            if key_range.num_rows != num_rows or key_range.block_size != first.block_size:
                raise ValueError(f"key ranges are of {key_range.num_rows} and {num_rows} rows; all must have the same")
            if not np.array_equal(key_range.last[alone], key_range.positions[alone] + 1):
                raise ValueError("a row that is alone must see all keys up to its own, and no other")
        sizes, found = (len(first.tables), num_rows, num_key_heads), items.array[:, 2] @ items.array[:, 4]
        if any(needed > size for needed, size in zip(items.sizes, sizes, strict=True)):
            raise ValueError(f"items need {items.sizes} sequences, rows and key heads; there are {sizes}")
        if found != num_rows * num_key_heads:
            raise ValueError(f"items have {found} rows and key heads; there are {num_rows} times {num_key_heads}")
        if alone[items.array[items.array[:, 2] > 1, 1]].any():
            raise ValueError("items have rows of several, of which one is alone")
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
        residual_scale: the factor of what attention and the gated network add to the stream.
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
        self._layers = (_CDecoderLayer * len(layers))(*map(self._layer, layers))
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
        """Run layers first_layer <= n < end_layer (None: all that follow) on x [R, d], in place.

        Returns the final-normed rows if that was the last layer and there is such a norm, else x. queries: where to
        write those of some layers, [R, H, D] float32. adapted: rows that have adapters, and what these change.
        """
        num_layers, num_rows = len(self._layers), rows.num_rows
        end = num_layers if end_layer is None else end_layer
        check_tensor("x", x, (self.dtype,), (num_rows, self.width))
        if not 0 <= first_layer <= end <= num_layers:
            raise ValueError(f"layers from {first_layer} to {end} are asked for; there are {num_layers}")
        self._check_rows(rows, caches)
        memory = caches.memory
        if queries:
            memory = (_CMemory * num_layers).from_buffer_copy(memory)
            for n, q in queries.items():
                if not 0 <= n < num_layers:
                    raise ValueError(f"queries has layer {n}; there are {num_layers}")
                check_tensor(f"queries of layer {n}", q, _FLOAT32, (num_rows, self.num_heads, self.head_dim))
                memory[n].queries = q.data_ptr()
        out = torch.empty_like(x) if self._final_norm is not None and end == num_layers else x
        key_ranges = (AttentionArguments * len(rows.key_ranges))(
            *(
                AttentionArguments(
                    num_heads=self.num_heads,
                    num_key_heads=self.num_key_heads,
                    dim=self.head_dim,
                    block_size=key_range.block_size,
                    **self._rule,
                    **key_range.addresses,
                )
                for key_range in rows.key_ranges
            )
        )
        adapters = self._adapted(adapted, first_layer, num_rows)
        step = _CDecoderStep(
            key_ranges=ctypes.addressof(key_ranges),
            items=rows.items.address,
            slots=rows.slots.ctypes.data,
            alone=rows.alone.ctypes.data,
            memory=ctypes.addressof(memory) + first_layer * ctypes.sizeof(_CMemory),
            final_norm=None if out is x else self._final_norm,
            out=out.data_ptr(),
            adapted=ctypes.addressof(adapters),
            num_adapted=len(adapters),
            num_items=len(rows.items.array),
            num_rows=num_rows,
            width=self.width,
            rounds_once=self._norm_dtype != self.dtype,
            eps=self._eps,
            residual_scale=self._residual_scale,
        )
        layers = ctypes.addressof(self._layers) + first_layer * ctypes.sizeof(_CDecoderLayer)
        kernels().call(
            f"run_decoder_{SUFFIXES[self.dtype]}",
            "plpp",
            *(layers, end - first_layer, ctypes.addressof(step), x.data_ptr()),
        )
        return out

    def changes(self, layers: Sequence[Mapping[str, Change]]) -> AdapterChanges:
        """Return what an adapter changes, for `run`: of each layer some of `PRODUCTS`. Raises ValueError for a change
        that does not fit its product.
        """
        array = (_CChange * (len(PRODUCTS) * len(self._layers)))()
        for n, (own, layer) in enumerate(zip(layers, self._layers, strict=True)):
            for name, change in own.items():
                product, rank = getattr(layer, name), change.down.weight.num_outputs
                array[n * len(PRODUCTS) + PRODUCTS.index(name)] = _CChange(
                    down=self._product(f"down of {name}", change.down, product.num_inputs, rank),
                    up=self._product(f"up of {name}", change.up, rank, product.num_outputs),
                )
        return AdapterChanges(array, [*layers])

    def _adapted(self, adapted: Sequence[tuple[slice, AdapterChanges]], first_layer: int, num_rows: int) -> Any:
        """Return the rows that have adapters as the kernels take them."""
        skipped = first_layer * len(PRODUCTS) * ctypes.sizeof(_CChange)
        found = (_CAdaptedRows * len(adapted))()
        for i, (rows, changes) in enumerate(adapted):
            if not 0 <= rows.start <= rows.stop <= num_rows or len(changes.array) != len(PRODUCTS) * len(self._layers):
                raise ValueError(f"an adapter is of rows {rows.start} to {rows.stop}; there are {num_rows}")
            found[i] = _CAdaptedRows(rows.start, rows.stop, ctypes.addressof(changes.array) + skipped)
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
        longest = max(key_range.longest for key_range in rows.key_ranges)
        if self._num_positions is not None and longest > self._num_positions:
            raise ValueError(f"cos and sin are for {self._num_positions} positions; a row has position {longest - 1}")

    def _layer(self, layer: DecoderLayer) -> _CDecoderLayer:
        width, heads, key_heads = self.width, self.num_heads * self.head_dim, self.num_key_heads * self.head_dim
        inside = layer.down.weight.num_inputs
        found = _CDecoderLayer(
            qkv=self._product("qkv", layer.qkv, width, heads + 2 * key_heads),
            out=self._product("out", layer.out, heads, width),
            gate_up=self._product("gate_up", layer.gate_up, width, 2 * inside),
            down=self._product("down", layer.down, inside, width),
            before_attention=self._norm("before_attention", layer.before_attention, width),
            before_mlp=self._norm("before_mlp", layer.before_mlp, width),
            key_range=layer.key_range,
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
        """Return the address of a norm's weight."""
        if self._norm_dtype not in (self.dtype, torch.float32):
            raise ValueError(f"norms' weights are {self._norm_dtype}; {self.dtype} or float32 is accepted")
        check_tensor(name, weight, (self._norm_dtype,), (width,))
        return weight.data_ptr()

    def _product(self, name: str, product: Product, num_inputs: int, num_outputs: int) -> _CProduct:
        weight, bias = product.weight, product.bias
        if (weight.num_inputs, weight.num_outputs) != (num_inputs, num_outputs) or min(num_inputs, num_outputs) < 1:
            found = f"{weight.num_inputs} inputs and {weight.num_outputs} outputs"
            raise ValueError(f"{name} has {found}; {num_inputs} and {num_outputs} are accepted")
        if bias is not None:
            check_tensor(f"bias of {name}", bias, (self.dtype,), (num_outputs,))
        if weight.row_dtype != self.dtype:
            raise ValueError(f"{name} multiplies rows of {weight.row_dtype}; {self.dtype} is accepted")
        return _CProduct(
            weight=weight.packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            form=weight.form,
            num_inputs=num_inputs,
            num_outputs=num_outputs,
        )
