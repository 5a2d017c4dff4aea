"""Quantised weights: whole numbers, and scales that groups of inputs share. Independent of files and kernels.

Axes: N outputs, K inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

_CODES_OF_LARGEST = (-8.0, -7.0, -7.5, -8.5, -9.0)
"""Tried codes, before clamping, of a group's number with the largest magnitude. Beyond -8 that number is clamped, and
all others are finer.
"""
LEAST_GROUP = 16
"""The number of inputs of a weight must be a multiple of this number for 4 bits."""
_ROWS_TOGETHER = 1024
_CPU = torch.device("cpu")
_SCALES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows [N, K] of a weight with shared scales: a number is scale * value + min, rounded once to float32.

    A superblock of inputs shares a scale and a min. If there are factors, each group within the superblock multiplies
    both by its own factors. The products are exact in float32, unless the scales are float32.
    """

    codes: Tensor
    """[N, K]: the values as int8, or indices into `values` as uint8."""
    scales: Tensor
    """[N, K / superblock] float16, bfloat16, or float32, for which there are no kernels."""
    mins: Tensor | None = None
    """[N, K / superblock] in the dtype of the scales, or None if all are 0."""
    scale_factors: Tensor | None = None
    """[N, K / group] int8, or None if a superblock is one group."""
    min_factors: Tensor | None = None
    """[N, K / group] uint8, where there are scale factors and mins."""
    values: tuple[int, ...] | None = None
    """The 16 values of 4-bit codes, each an int8, or None if the codes are the values."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the tensors have the shapes and dtypes above, on which the kernels rely."""
        codes, scales, mins = self.codes, self.scales, self.mins
        has_factors, has_min_factors = self.scale_factors is not None, self.min_factors is not None
        factors = scales if self.scale_factors is None else self.scale_factors
        min_factors = factors if self.min_factors is None else self.min_factors
        parts = (codes, scales, factors, scales if mins is None else mins, min_factors)
        fits = all(part.dim() == 2 and len(part) == len(codes) and part.shape[1] for part in parts)
        fits = fits and not codes.shape[1] % factors.shape[1] and not factors.shape[1] % scales.shape[1]
        fits = fits and min_factors.shape == factors.shape and (mins is None or mins.shape == scales.shape)
        fits = fits and has_min_factors == (has_factors and mins is not None)
        fits = fits and codes.dtype == (torch.int8 if self.values is None else torch.uint8)
        fits = fits and scales.dtype in _SCALES and (mins is None or mins.dtype == scales.dtype)
        fits = fits and (not has_factors or factors.dtype == torch.int8)
        fits = fits and (not has_min_factors or min_factors.dtype == torch.uint8)
        if not fits or len(self.values or range(16)) != 16:
            found = [
                f"{name} {str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
                for name, part in self._parts().items()
            ]
            raise ValueError(
                f"{', '.join(found)} do not fit; as many rows, and scales that each belong to the same number of "
                "inputs, are expected"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def superblock(self) -> int:
        """Return the number of inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def group(self) -> int:
        """Return the number of inputs that share a factor."""
        return self.superblock if self.scale_factors is None else self.codes.shape[1] // self.scale_factors.shape[1]

    @property
    def stored(self) -> str:
        """Return a description of the format."""
        return f"{8 if self.values is None else 4} bits, a scale for {self.group} inputs"

    @classmethod
    def quantize(cls, weight: Tensor) -> "GroupedRows":
        """Return a weight [N, K] in 4 bits: -8 to 7 times the scale of 32 inputs, or of 16. K: a multiple of
        `LEAST_GROUP`.

        Raises ValueError for a number that is not finite, or a scale beyond float16.
        """
        groups = weight.reshape(len(weight), -1, 32 if weight.shape[1] % 32 == 0 else LEAST_GROUP)
        found = [_nearest(part) for part in torch.split(groups.float(), _ROWS_TOGETHER)]
        scales = torch.cat([scales for scales, _ in found])
        if not torch.isfinite(scales).all():
            raise ValueError(
                f"int4 cannot represent a weight {list(weight.shape)} with numbers that are infinite, NaN or too large"
            )
        return cls(torch.cat([codes for _, codes in found]).flatten(1), scales, values=tuple(range(-8, 8)))

    def to_dense(self) -> Tensor:
        """Return the numbers [N, K], float32."""
        values = self.codes.float()
        if self.values is not None:
            values = torch.tensor(self.values, dtype=torch.float32, device=self.codes.device)[self.codes.int()]
        scales = self._per_input(self.scales, self.scale_factors)
        if self.mins is None:
            return scales * values
        # The product is exact in float64, and so the sum is rounded once.
        sums = scales.double() * values.double() + self._per_input(self.mins, self.min_factors).double()
        return sums.float()

    def select(self, rows: Tensor) -> "GroupedRows":
        """Return the rows [n] int64 of these."""
        return replace(self, **{name: part.index_select(0, rows) for name, part in self._parts().items()})

    def _parts(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("codes", "scales", "mins", "scale_factors", "min_factors")}
        return {name: part for name, part in named.items() if part is not None}

    def _per_input(self, per_superblock: Tensor, factors: Tensor | None) -> Tensor:
        """Return the number of each input [N, K], float32."""
        numbers, width = per_superblock.float(), self.codes.shape[1]
        if factors is not None:
            numbers = numbers.repeat_interleave(factors.shape[1] // numbers.shape[1], 1) * factors.float()
        return numbers.repeat_interleave(width // numbers.shape[1], 1)


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A weight [N, K] that is stored quantised, as several groups of rows.

    It is read to the CPU's memory when it is used, so that only one matrix at a time is in this form, a byte a number.
    """

    shape: torch.Size
    dtype: torch.dtype
    """The network's dtype, to which `to_dense` rounds."""
    readers: Sequence[Callable[[], GroupedRows]]
    """Functions that read the groups of rows, in order."""
    device: torch.device = _CPU
    """The network's device."""

    @property
    def stored(self) -> str:
        """Return a description of the formats of all rows."""
        return " or ".join(dict.fromkeys(part.stored for part in self.read()))

    @classmethod
    def of(cls, parts: Sequence[GroupedRows], dtype: torch.dtype) -> "QuantizedMatrix":
        """Return a matrix of rows in memory."""
        shape = torch.Size((sum(part.shape[0] for part in parts), parts[0].shape[1]))
        return cls(shape, dtype, [partial(_same, part) for part in parts])

    def read(self) -> list[GroupedRows]:
        return [reader() for reader in self.readers]

    def to_dense(self) -> Tensor:
        """Return the numbers [N, K], rounded to the dtype, in the memory that they are read to."""
        return torch.cat([reader().to_dense().to(self.dtype) for reader in self.readers])


Weight = Tensor | QuantizedMatrix


def _nearest(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales [N, G] float16 and the codes [N, G, n] uint8, a value plus 8, of numbers [N, G, n] float32.

    Of the tried scales, each group has the one with the least squared error, or NaN if none represents its numbers.
    """
    least_number, most = groups.aminmax(dim=2, keepdim=True)
    largest = torch.where(-least_number > most, least_number, most)
    scales, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for code in _CODES_OF_LARGEST:
        tried = (largest / code).half().float()
        error = _codes(groups, tried).mul_(tried).sub_(groups).square_().sum(2, keepdim=True)
        scales, least = torch.where(error < least, tried, scales), torch.where(error < least, error, least)
    scales = torch.where(least.isfinite(), scales, torch.nan)
    return scales[:, :, 0].half(), _codes(groups, scales).add_(8).to(torch.uint8)


def _codes(groups: Tensor, scales: Tensor) -> Tensor:
    """Return the codes nearest to the numbers [N, G, n]."""
    return (groups / torch.where(scales == 0, 1, scales)).round_().clamp_(-8, 7)


def _same(part: GroupedRows) -> GroupedRows:
    return part
