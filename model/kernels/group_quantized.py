"""Products of rows with a weight in groups of inputs that share scales, as `cpu/products/grouped.h` stores it.

Axes: R rows, K inputs, N outputs.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightwell.model.kernels.checks import SUFFIXES
from lightwell.model.kernels.library import kernels
from lightwell.model.kernels.products import BLOCK, DOT, Arithmetic, Form, TableWeight
from lightwell.model.quantized import GroupedRows

_LINE = 64
"""Bytes of a block's grouping."""
_ROUNDS_TO_BYTES = 2
"""The arithmetic of `product_grouped.cpp` that rounds rows to bytes."""
GROUPS = (16, 32, 64, 128)
"""The accepted numbers of inputs that share a factor, or a scale in formats without factors."""
SCALES = (torch.float16, torch.bfloat16)
"""The dtypes of scales and mins."""


class _Grouping(ctypes.Structure):
    """`Grouping` of `grouped.h`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("bits", "group", "superblock", "has_min", "is_nested", "is_bfloat16")),
        ("values", ctypes.c_int8 * 16),
    )


def why_not_grouped(parts: Sequence[GroupedRows]) -> str | None:
    """Return the reason why the kernels have no form for a weight of these parts, or None if they have one."""
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


class GroupedWeight(TableWeight):
    """A weight [N, K] with rows of one or several quantised formats.

    Only AMX rounds the numbers of the weight to bfloat16 before a product. Dot products of bfloat16 multiply the values
    of the codes, which are exact in bfloat16. Rows rounded to bytes multiply these values as integers. Everything else
    multiplies the numbers in float32.
    """

    def __init__(
        self,
        parts: Sequence[GroupedRows],
        row_dtype: torch.dtype,
        arithmetic: Arithmetic,
        *,
        int8_activations: bool = False,
    ) -> None:
        """Copy the parts. row_dtype: float32 or bfloat16, of the rows that the weight multiplies. arithmetic: of
        bfloat16 rows. int8_activations: whether rows are rounded to 8 bits first, as in `cpu/products/bytes.h`.

        Raises ValueError for parts that `why_not_grouped` rejects.
        """
        reason = why_not_grouped(parts)
        if reason is not None or row_dtype not in SUFFIXES:
            raise ValueError(reason or f"row_dtype is {row_dtype}; float32 or bfloat16 is accepted")
        self.row_dtype, self._gather = row_dtype, f"gather_grouped_{SUFFIXES[row_dtype]}"
        self.form = Form.GROUPED_DOT if arithmetic == DOT and row_dtype == torch.bfloat16 else Form.GROUPED
        extra = (int(arithmetic),)
        if int8_activations:
            self.form, extra = Form.GROUPED_BYTES, (_ROUNDS_TO_BYTES,)
        self._kernels = {dtype: (f"grouped_{kind}", extra) for dtype, kind in SUFFIXES.items()}
        self.num_outputs, self.num_inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        self.stored = " or ".join(dict.fromkeys(part.stored for part in parts))
        groupings = [_grouping(part) for part in parts]
        counts = [-(-part.shape[0] // BLOCK) for part in parts]
        sizes = [_block_bytes(grouping, self.num_inputs) for grouping in groupings]
        begin = -(-sum(counts) * 8 // _LINE) * _LINE
        num_bytes = begin + sum(count * size for count, size in zip(counts, sizes, strict=True))
        room = torch.empty(num_bytes + _LINE, dtype=torch.uint8)
        self.packed = room[-room.data_ptr() % _LINE :][:num_bytes]
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
    def num_bytes(self) -> int:
        """Return the bytes in memory."""
        return self.packed.nbytes

    def to_dense(self) -> Tensor:
        return self.rows(torch.from_numpy(np.arange(self.num_outputs)))


def _grouping(part: GroupedRows) -> _Grouping:
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
    """Return the number of bytes of a block of 64 outputs."""
    numbers = 2 if grouping.has_min else 1
    group = (numbers * BLOCK if grouping.is_nested else 0) + grouping.group * BLOCK * grouping.bits // 8
    superblock = 2 * numbers * BLOCK + grouping.superblock // grouping.group * group
    return int(_LINE + num_inputs // grouping.superblock * superblock)
