"""Makes grouped rows of whole numbers without a sign, zeros and scales: a number is (q - zero) * scale.

Axes: N outputs, K inputs, G groups of inputs.
"""

import torch
from torch import Tensor

from model.quantized import GroupedRows

_WIDTHS = (128, 64, 32, 16)
"""The widths of groups that kernels have (`model.kernels.grouped`)."""


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the whole numbers of 4 or 8 bits that words hold, the first in the lowest bits: [..., n] int32 ->
    [..., 32 n / bits] uint8.
    """
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack([found & 15, found >> 4], -1).flatten(-2)


def affine_rows(codes: Tensor, zeros: Tensor, scales: Tensor, bits: int, groups: Tensor | None = None) -> GroupedRows:
    """Return rows of codes [N, K] uint8, with zeros [N, G] uint8 and scales [N, G]. bits: 4 or 8, of a code.
    groups [K]: the group of each input, or None if neighbours share one.

    Zeros that are all in the middle, as in symmetric formats, go into the values. Otherwise a group's min is its scale,
    times a whole number: so it is exact. Raises ValueError for zeros and scales of different shapes.
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
    """Return scales, in 16 bits if these hold them, and zeros, both of groups that kernels have if wider ones can be
    cut so.
    """
    group = num_inputs // scales.shape[1]
    width = group if group in _WIDTHS else next((width for width in _WIDTHS if group % width == 0), group)
    scales, zeros = (each.repeat_interleave(group // width, 1) for each in (narrowed(scales), zeros))
    return scales, zeros


def narrowed(scales: Tensor) -> Tensor:
    """Return scales in a dtype of 16 bits that holds them, or as they are if there is none."""
    for dtype in (torch.float16, torch.bfloat16) if scales.dtype == torch.float32 else ():
        if torch.equal(scales.to(dtype).float(), scales):
            return scales.to(dtype)
    return scales
