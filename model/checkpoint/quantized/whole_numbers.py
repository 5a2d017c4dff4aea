"""Conversion of whole numbers without a sign, with zeros and scales, to grouped rows. A number is (q - zero) * scale.

Axes: N outputs, K inputs, G groups of inputs.
"""

import torch
from torch import Tensor

from model.quantized import GroupedRows

_WIDTHS = (128, 64, 32, 16)
"""The inputs of a group in the kernels (`model.kernels.grouped`)."""


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return codes of 4 or 8 bits, the first in the lowest bits: [..., n] int32 -> [..., 32 n / bits] uint8."""
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack([found & 15, found >> 4], -1).flatten(-2)


def affine_rows(codes: Tensor, zeros: Tensor, scales: Tensor, bits: int, groups: Tensor | None = None) -> GroupedRows:
    """Return grouped rows of codes [N, K] uint8, zeros [N, G] uint8 and scales [N, G]. bits: 4 or 8, of a code.
    groups [K]: the group of each input, or None if neighbours share one.

    If all zeros are the middle of the codes, as in symmetric formats, the values include them. Otherwise the min of a
    group is its scale times a whole number, which is exact. Raises ValueError for zeros and scales of different shapes.
    """
    if groups is not None:
        zeros, scales = zeros[:, groups], scales[:, groups]
    if zeros.shape != scales.shape:
        raise ValueError(f"zeros are {list(zeros.shape)} and scales {list(scales.shape)}; one shape is expected")
    scales, zeros = _of_kernels(scales, zeros, codes.shape[1])
    middle = 1 << bits - 1
    values = None
    if bits == 8:
        codes, zeros = (codes.to(torch.int16) - middle).to(torch.int8), zeros.to(torch.int16) - middle
    elif (zeros == middle).all():
        values, zeros = tuple(range(-middle, middle)), torch.zeros_like(zeros)
    else:
        values = tuple(range(2 * middle))
    if not zeros.any():
        return GroupedRows(codes, scales, values=values)
    mins = torch.where(zeros > 0, -scales, scales)
    ones = torch.ones(scales.shape, dtype=torch.int8)
    return GroupedRows(codes, scales, mins, ones, zeros.abs().to(torch.uint8), values)


def _of_kernels(scales: Tensor, zeros: Tensor, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Return scales, in 16 bits if that is exact, and zeros. Wider groups than the kernels' are cut into equal ones."""
    group = num_inputs // scales.shape[1]
    width = next((width for width in _WIDTHS if group % width == 0), group)
    scales, zeros = (each.repeat_interleave(group // width, 1) for each in (_narrowed(scales), zeros))
    return scales, zeros


def _narrowed(scales: Tensor) -> Tensor:
    """Return scales in a 16-bit dtype in which they are exact, or unchanged if there is none."""
    for dtype in (torch.float16, torch.bfloat16) if scales.dtype == torch.float32 else ():
        if torch.equal(scales.to(dtype).float(), scales):
            return scales.to(dtype)
    return scales
