"""Reads the numbers of a GGUF tensor as rows of whole numbers and scales, in the block formats of ggml.

A row is a sequence of blocks. The functions below describe their bytes; the `gguf` package has names and sizes.

Axes: N rows, B blocks of a row.
"""

from collections.abc import Callable
from functools import partial

import gguf
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from lightwell.model.quantized import GroupedRows

_NIBBLES = tuple(range(16))
_IQ4_NL_VALUES = tuple(int(value) for value in gguf.quants.IQ4_NL.kvalues)
_TWO, _FOUR, _SIX = 0x03030303, 0x0F0F0F0F, 0x3F3F3F3F
"""The lowest bits of four bytes."""
_NIBBLE = 0x0F0F0F0F0F0F0F0F
"""The lower halves of eight bytes."""
_PLAIN = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16}


def grouped_rows(data: Tensor, kind: Type, num_inputs: int) -> GroupedRows:
    """Return the rows of a quantised tensor. data: its bytes [N, bytes of a row] uint8.

    Raises KeyError for a format that is not in `GROUPED_TYPES`.
    """
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return _FORMATS[kind](data.reshape(len(data), num_inputs // block_size, block_bytes))


def plain_rows(data: Tensor, kind: Type) -> Tensor:
    """Return the numbers of a tensor that is not quantised. data: its bytes [N, bytes of a row] uint8.

    Raises KeyError for a format that is not in `PLAIN_TYPES`.
    """
    return data.contiguous().view(_PLAIN[kind])


def _halves(blocks: Tensor, place: int) -> Tensor:
    """Return the float16 number at an even byte of each block [N, B]."""
    return blocks.view(torch.float16)[:, :, place // 2].contiguous()


def _cut(data: Tensor, count: int) -> Tensor:
    """Return the last axis cut into `count` equal parts: [..., n] -> [..., count, n / count]."""
    return data.reshape(*data.shape[:-1], count, -1)


def _nibbles(packed: Tensor) -> Tensor:
    """Return the lower halves of the bytes, then the upper ones: [..., n] uint8 -> [..., 2 n]. n: a multiple of 16."""
    eight = packed.clone(memory_format=torch.contiguous_format).view(torch.int64)
    halves = eight & _NIBBLE, (eight >> 4).bitwise_and_(_NIBBLE)
    # Numbers of 16 bytes make the innermost loop of the copy longer.
    return torch.stack([half.view(torch.complex128) for half in halves], -2).view(torch.uint8).flatten(-2)


def _bits(packed: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Return `mask` of each byte shifted right by each number, one after the other: [..., n] -> [..., shifts n]."""
    return torch.cat([packed >> shift & mask for shift in shifts], -1)


def _fifth_bits(blocks: Tensor, place: int) -> Tensor:
    """Return the fifth bits of 32 numbers, times 16. Bit i of the four bytes at `place` is for number i."""
    spread = blocks[:, :, place : place + 4].repeat_interleave(8, -1)
    return (spread >> torch.arange(8, dtype=torch.uint8).repeat(4) & 1) << 4


def _flat(blocks: Tensor, values: tuple[int, ...] | None = None, *, has_min: bool = False) -> GroupedRows:
    """Read Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL: scale, min of Q4_1 and Q5_1, 4 bytes of fifth bits of Q5, and 16 bytes of
    two numbers, the first 16 in the lower halves. A number is scale * value, scale * (q - 16) or scale * q + min.

    values: of the codes of 4 bits, or None for 5 bits.
    """
    place, mins = (4, _halves(blocks, 2)) if has_min else (2, None)
    if values is None:
        codes = (_nibbles(blocks[:, :, place + 4 :]) | _fifth_bits(blocks, place)).to(torch.int8)
        codes = codes if has_min else codes - 16
    else:
        codes = _nibbles(blocks[:, :, place:])
    return GroupedRows(codes.flatten(1), _halves(blocks, 0), mins, values=values)


def _q8_0(blocks: Tensor) -> GroupedRows:
    """Read Q8_0: scale, 32 numbers with a sign. A number is scale * q."""
    return GroupedRows(blocks[:, :, 2:].contiguous().view(torch.int8).flatten(1), _halves(blocks, 0))


def _factors(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of scales [N, 8 B] int8 and of mins uint8 for 8 groups, 6 bits each, in bytes 4 to 15.

    The first 8 bytes hold factors of the first four groups in the lower 6 bits, and the upper 2 bits of the other
    groups' factors above them. The last 4 bytes hold the lower 4 bits of the other groups' factors.
    """
    # Four bytes at a time, because single bytes would take longer than all codes.
    scales, mins, rest = blocks.view(torch.int32)[:, :, 1:4].unbind(-1)
    scales = torch.stack([scales & _SIX, rest & _FOUR | (scales >> 6 & _TWO) << 4], -1)
    mins = torch.stack([mins & _SIX, rest >> 4 & _FOUR | (mins >> 6 & _TWO) << 4], -1)
    return scales.view(torch.int8).flatten(1), mins.view(torch.uint8).flatten(1)


def _nested(codes: Tensor, blocks: Tensor, values: tuple[int, ...] | None) -> GroupedRows:
    """Return rows of blocks of 256 numbers in 8 groups: scale, min, 12 bytes of factors, and the codes. A number is
    scale * factor * q - min * factor.
    """
    return GroupedRows(codes.flatten(1), _halves(blocks, 0), -_halves(blocks, 2), *_factors(blocks), values)


def _q4_k(blocks: Tensor) -> GroupedRows:
    """Read Q4_K: 128 bytes of codes. In every 32 bytes, the lower halves are one group, the upper halves the next."""
    codes = _nibbles(_cut(blocks[:, :, 16:], 4))
    return _nested(codes.flatten(2), blocks, _NIBBLES)


def _q5_k(blocks: Tensor) -> GroupedRows:
    """Read Q5_K: 32 bytes of fifth bits (number i of group g: bit g of byte i); 128 bytes as in Q4_K."""
    high = _bits(blocks[:, :, 16:48], tuple(range(8)), 1) << 4
    codes = _nibbles(_cut(blocks[:, :, 48:], 4)).flatten(2) | high
    return _nested(codes.to(torch.int8), blocks, None)


def _q6_k(blocks: Tensor) -> GroupedRows:
    """Read Q6_K, 256 numbers in 16 groups: 128 bytes of the lower four bits, 64 bytes of the upper two, 16 factors with
    a sign, scale. Each half of the numbers has 64 bytes of lower bits, first the lower halves of the bytes, and 32
    bytes of upper bits for four times 32 numbers. A number is scale * factor * (q - 32).
    """
    low = _nibbles(_cut(blocks[:, :, :128], 2))
    high = _bits(_cut(blocks[:, :, 128:192], 2), (0, 2, 4, 6), 3)
    codes = (low | high << 4).to(torch.int8) - 32
    factors = blocks[:, :, 192:208].contiguous().view(torch.int8).flatten(1)
    return GroupedRows(codes.flatten(1), _halves(blocks, 208), scale_factors=factors)


_FORMATS: dict[Type, Callable[[Tensor], GroupedRows]] = {
    Type.Q4_0: partial(_flat, values=tuple(range(-8, 8))),
    Type.Q4_1: partial(_flat, values=_NIBBLES, has_min=True),
    Type.Q5_0: _flat,
    Type.Q5_1: partial(_flat, has_min=True),
    Type.Q8_0: _q8_0,
    Type.Q4_K: _q4_k,
    Type.Q5_K: _q5_k,
    Type.Q6_K: _q6_k,
    Type.IQ4_NL: partial(_flat, values=_IQ4_NL_VALUES),
}
GROUPED_TYPES, PLAIN_TYPES = tuple(_FORMATS), tuple(_PLAIN)
"""The formats of `grouped_rows` and of `plain_rows`."""
