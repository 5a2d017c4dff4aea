"""What `decoder.py` gives the kernels: a decoder's blocks, what adapters change of them, the caches and the rows of a
step. The structs have the fields of `cpu/decoder.h`.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, B keys to a block of the cache, L layers.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from model.kernels.attention import AttentionItems, VisibleKeys
from model.kernels.checks import SUFFIXES, check_tensor
from model.kernels.forms import LaidWeight

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The products of a layer, in their order."""


class CProduct(ctypes.Structure):
    """`Product` of decoder.h, which says what the fields of these structs are."""

    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias")),
        *((name, _LONG) for name in ("form", "num_inputs", "num_outputs")),
    )


class CDecoderLayer(ctypes.Structure):
    """`DecoderLayer` of decoder.h."""

    _fields_ = (
        *((name, CProduct) for name in PRODUCTS),
        *((name, _POINTER) for name in ("before_attention", "before_mlp", "q_norm", "k_norm", "cos", "sin")),
        *((name, _LONG) for name in ("q_norm_width", "k_norm_width", "num_rotated", "key_range")),
    )


class CChange(ctypes.Structure):
    """`Change` of decoder.h."""

    _fields_ = (("down", CProduct), ("up", CProduct), ("ranks", _POINTER))


class CAdaptedRows(ctypes.Structure):
    """`AdaptedRows` of decoder.h."""

    _fields_ = (("first", _LONG), ("end", _LONG), ("changes", _POINTER))


class CMemory(ctypes.Structure):
    """`LayerMemory` of decoder.h."""

    _fields_ = tuple((name, _POINTER) for name in ("keys", "values", "queries"))


class CDecoderStep(ctypes.Structure):
    """`DecoderStep` of decoder.h."""

    _fields_ = (
        *(
            (name, _POINTER)
            for name in ("key_ranges", "items", "slots", "alone", "memory", "final_norm", "out", "adapted")
        ),
        *((name, _LONG) for name in ("num_items", "num_rows", "width", "num_adapted", "max_rank", "rounds_once")),
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

    def __init__(self, array: "ctypes.Array[CChange]", kept: object) -> None:
        """Keep an array [L, 4] of changes, and what its addresses are of."""
        self.array, self._kept = array, kept
        self.max_rank = max(change.down.num_outputs for change in array)


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

        key_ranges: one for each kind of layer that sees differently far; tables and positions are those of the first
        one. items: each row and key head once. slots [R] int64: block * B + the place in the block. alone [R] bool:
        whether a row is the only one of its sequence, and its last. rotary_rows [R] int64: the rows of the rotary
        tables, by default the positions.
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
