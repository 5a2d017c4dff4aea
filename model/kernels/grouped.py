"""Multiplies rows with a weight whose inputs share scales in groups, as `cpu/products/grouped.h` stores it.

Axes: R rows, K inputs, N outputs.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.config import Activation
from model.kernels.checks import SUFFIXES, check_indices, check_product
from model.kernels.library import kernels
from model.kernels.products import BLOCK, DOT, Arithmetic, compute_product, search_product
from model.quantized import GroupedRows

_LINE = 64
"""Bytes that a block's grouping takes."""
_FORM, _DOT_FORM, _BYTES_FORM = 4, 5, 6
"""`Form` of `cpu/decoder.h`."""
_ROUNDS_TO_BYTES = 2
"""The arithmetic of `product_grouped.cpp` that rounds rows to bytes."""
GROUPS = (16, 32, 64, 128)
"""The numbers of inputs that may share a factor, or a scale where there are none."""
SCALES = (torch.float16, torch.bfloat16)
"""The dtypes of scales and mins."""


class _Grouping(ctypes.Structure):
    """`Grouping` of `grouped.h`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("bits", "group", "superblock", "has_min", "is_nested", "is_bfloat16")),
        ("values", ctypes.c_int8 * 16),
    )


def why_not_grouped(parts: Sequence[GroupedRows]) -> str | None:
    """Return why the kernels have no form of a weight of some rows, or None if they have one."""
    if any(part.shape[0] % BLOCK for part in parts[:-1]):
        return f"its parts have {[part.shape[0] for part in parts]} outputs, which are no multiples of {BLOCK}"
    if len(widths := {part.shape[1] for part in parts}) > 1:
        return f"its parts have {' and '.join(map(str, sorted(widths)))} inputs; one number is accepted"
    for part in parts:
        if part.group not in GROUPS:
            return f"its groups have {part.group} inputs; {', '.join(map(str, GROUPS))} are accepted"
        if part.scales.dtype not in SCALES:
            return f"its scales are {part.scales.dtype}; float16 or bfloat16 is accepted"
    return None


class GroupedWeight:
    """A weight [N, K] of rows of one or several kinds, in the layout that the kernels read."""

    def __init__(
        self,
        parts: Sequence[GroupedRows],
        row_dtype: torch.dtype,
        arithmetic: Arithmetic,
        *,
        int8_activations: bool = False,
    ) -> None:
        """Copy the rows. row_dtype: float32 or bfloat16, of the rows that the weight is to multiply. arithmetic: of
        bfloat16 rows. int8_activations: whether these are rounded to 8 bits first, as `cpu/products/bytes.h` says.

        Raises ValueError if there is a reason in `why_not_grouped`.
        """
        reason = why_not_grouped(parts)
        if reason is not None or row_dtype not in SUFFIXES:
            raise ValueError(reason or f"row_dtype is {row_dtype}; float32 or bfloat16 is accepted")
        self.row_dtype, self._rounds_to_bytes = row_dtype, int8_activations
        self._arithmetic = _ROUNDS_TO_BYTES if int8_activations else int(arithmetic)
        self.num_outputs, self.num_inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        self.stored = " or ".join(dict.fromkeys(part.stored for part in parts))
        """The formats of all rows, as text for people: parts of a matrix may be stored differently."""
        groupings = [_grouping(part) for part in parts]
        counts = [-(-part.shape[0] // BLOCK) for part in parts]
        sizes = [_block_bytes(grouping, self.num_inputs) for grouping in groupings]
        begin = -(-sum(counts) * 8 // _LINE) * _LINE
        num_bytes = begin + sum(count * size for count, size in zip(counts, sizes, strict=True))
        room = torch.empty(num_bytes + _LINE, dtype=torch.uint8)
        self.packed = room[-room.data_ptr() % _LINE :][:num_bytes]
        """The memory, bytes."""
        block = 0
        for part, grouping, count, size in zip(parts, groupings, counts, sizes, strict=True):
            self._pack(part, grouping, block, begin)
            block, begin = block + count, begin + count * size

    def _pack(self, part: GroupedRows, grouping: _Grouping, block: int, begin: int) -> None:
        arrays = [part.codes, part.scales, part.mins, part.scale_factors, part.min_factors]
        kept = [None if each is None else each.contiguous() for each in arrays]
        kernels().call(
            "pack_grouped",
            "pppppppllll",
            *(None if each is None else each.data_ptr() for each in kept),
            *(ctypes.addressof(grouping), self.packed.data_ptr(), block, begin, self.num_inputs, part.shape[0]),
        )

    @property
    def form(self) -> int:
        if self._rounds_to_bytes:
            return _BYTES_FORM
        return _DOT_FORM if self._arithmetic == DOT and self.row_dtype == torch.bfloat16 else _FORM

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows `ids` [T] int64 of the weight, rounded to the dtype of the rows it multiplies: [T, K].

        Raises ValueError for an index that there is not.
        """
        ids = ids.contiguous()
        check_indices("ids", ids, self.num_outputs)
        found = torch.empty(len(ids), self.num_inputs, dtype=self.row_dtype)
        addresses = self.packed.data_ptr(), ids.data_ptr(), len(ids), self.num_inputs, found.data_ptr()
        kernels().call(f"gather_grouped_{SUFFIXES[self.row_dtype]}", "ppllp", *addresses)
        return found

    def to_dense(self) -> Tensor:
        """Return the numbers of the weight [N, K], in the dtype of its rows."""
        return self.rows(torch.from_numpy(np.arange(self.num_outputs)))

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number of each row of `multiply(x)`, int64 [R], and that number,
        float32 [R], or None if a number of the product is not finite. x is the same as in `multiply`.
        """
        kind = check_product(x, None, None, self.num_inputs, self.num_outputs)
        return search_product(f"find_largest_grouped_{kind}", (self._arithmetic,), x, self.packed, self.num_outputs)

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K], contiguous -> [R, N] of the dtype of x.

        bias [N] is of the dtype of x. Only AMX rounds the weight's numbers to bfloat16 first. Dot products of bfloat16
        multiply the values of its codes, which bfloat16 holds, rows rounded to bytes those values as whole numbers, and
        everything else its numbers in float32.
        """
        kind = check_product(x, bias, activation, self.num_inputs, self.num_outputs)
        name, width = f"product_grouped_{kind}", self.num_outputs
        return compute_product(name, x, self.packed, width, bias, activation, self._arithmetic)


def _grouping(part: GroupedRows) -> _Grouping:
    """Return how a part's inputs are grouped, as the kernels read it."""
    return _Grouping(
        bits=8 if part.values is None else 4,
        group=part.group,
        superblock=part.superblock,
        has_min=part.mins is not None,
        is_nested=part.scale_factors is not None,
        is_bfloat16=part.scales.dtype == torch.bfloat16,
        values=(ctypes.c_int8 * 16)(*(part.values or ())),
    )


def _block_bytes(grouping: _Grouping, num_inputs: int) -> int:
    """Return the bytes of a block of 64 outputs."""
    numbers = 2 if grouping.has_min else 1
    group = (numbers * BLOCK if grouping.is_nested else 0) + grouping.group * BLOCK * grouping.bits // 8
    superblock = 2 * numbers * BLOCK + grouping.superblock // grouping.group * group
    return int(_LINE + num_inputs // grouping.superblock * superblock)
