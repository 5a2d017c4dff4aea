"""Quantised weights in a GPU's memory: `GroupedRows` with codes of 4, 5, 6 or 8 bits, as large as in their files.

Blocks of 128 inputs are packed together. Byte i of a block has the lower halves of code i and, in its upper half, of
code i + 64. Codes of 5 and 6 bits have their upper bits in a second tensor: in a block of S bytes, byte i is for
codes i, i + S, i + 2 S and so on.

Axes: N outputs, K inputs, B blocks of inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.quantized import GroupedRows

BLOCK, HALF = 128, 64
"""Inputs of a block, and of half a block."""
WHOLE = 1 << 30
"""The size of a group or superblock of all inputs."""
_RANGES = ((5, -16), (5, 0), (6, -32))
"""Bits of a code, and the lowest value, of formats with 5 and 6 bits."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedRows:
    """Rows [N, K] of a weight. A number is scale * (value - zero) + min, as in `GroupedRows`."""

    num_outputs: int
    """N"""
    bits: int
    """Bits of a code: 4, 5, 6 or 8."""
    lowest: int
    """The number to add to a code, or to a value of `values`."""
    values: tuple[int, int, int, int] | None
    """The 16 values of 4-bit codes, less `lowest`, as 4 words of 4 bytes; None if codes are the values."""
    group: int
    """Inputs that share a factor or a zero."""
    superblock: int
    """Inputs that share a scale."""
    codes: Tensor
    """[N, 64 B] uint8, or [N, 128 B] for 8 bits."""
    high: Tensor | None
    """[N, 16 B] uint8 for 5 bits, [N, 32 B] for 6."""
    scales: Tensor
    """[K / superblock, N]: floating point, or uint8 exponents of 2, plus 127."""
    mins: Tensor | None = None
    """[K / superblock, N], in the dtype of the scales."""
    scale_factors: Tensor | None = None
    """[K / group, N] int8."""
    min_factors: Tensor | None = None
    """[K / group, N] uint8."""
    zeros: Tensor | None = None
    """[K / group, N] int16 or int8."""

    @classmethod
    def of(cls, part: GroupedRows) -> Self:
        """Pack rows, on their device. Raises ValueError for rows that `why_not_packed` rejects."""
        if (reason := why_not_packed(part)) is not None:
            raise ValueError(reason)
        (num_outputs, num_inputs), group, superblock = part.shape, part.group, part.superblock
        bits, lowest, values = 4, 0, None
        if part.values is not None:
            lowest = part.values[0]
            if part.values != tuple(range(lowest, lowest + 16)):
                lowest = -128
                values = _words([value - lowest for value in part.values])
            codes = part.codes
        else:
            least, most = (int(each) for each in part.codes.aminmax())
            fitting = ((own, low) for own, low in _RANGES if low <= least and most < low + (1 << own))
            bits, lowest = next(fitting, (8, -128))
            codes = (part.codes.to(torch.int16) - lowest).to(torch.uint8)
        mins, factors, min_factors, zeros = part.mins, part.scale_factors, part.min_factors, None
        if mins is not None and factors is not None and superblock == group:
            assert min_factors is not None
            if bool((factors == 1).all()) and torch.equal(mins.abs(), part.scales.abs()):
                # A min is a whole number of scales: a number is scale * (value - zero).
                signs = torch.where(mins == part.scales, -1, 1)
                zeros, mins, factors, min_factors = min_factors.short() * signs, None, None, None
                zeros = zeros.to(torch.int8) if zeros.abs().max() < 128 else zeros.short()
        first, high = _planes(F.pad(codes, (0, -num_inputs % BLOCK)), bits)
        return cls(
            num_outputs=num_outputs,
            bits=bits,
            lowest=lowest,
            values=values,
            group=WHOLE if group == num_inputs else group,
            superblock=WHOLE if superblock == num_inputs else superblock,
            codes=first,
            high=high,
            # The numbers of the outputs are neighbours: programs read one group of many outputs.
            scales=(_exponents(part.scales) if mins is None else part.scales).T.contiguous(),
            mins=None if mins is None else mins.T.contiguous(),
            scale_factors=None if factors is None else factors.T.contiguous(),
            min_factors=None if min_factors is None else min_factors.T.contiguous(),
            zeros=None if zeros is None else zeros.T.contiguous(),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: each for name, each in named.items() if isinstance(each, Tensor)}

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(each.nbytes for each in self.tensors.values())

    def to(self, device: torch.device) -> Self:
        """Return the rows on a device."""
        moved: dict[str, Any] = {name: each.to(device) for name, each in self.tensors.items()}
        return replace(self, **moved)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return the format. Neighbouring rows of one format can be joined."""
        plain = (self.bits, self.lowest, self.values, self.group, self.superblock)
        return (*plain, *((name, each.dtype) for name, each in self.tensors.items()))


def joined(parts: Sequence[PackedRows]) -> PackedRows:
    """Return the rows of some parts of one kind as one."""
    if len(parts) == 1:
        return parts[0]
    axes = {"codes": 0, "high": 0}
    both = {name: [part.tensors[name] for part in parts] for name in parts[0].tensors}
    tensors: dict[str, Any] = {name: torch.cat(own, axes.get(name, 1)) for name, own in both.items()}
    return replace(parts[0], num_outputs=sum(part.num_outputs for part in parts), **tensors)


def why_not_packed(part: GroupedRows) -> str | None:
    """Return the reason why the kernels have no form for some rows, or None if they have one."""
    group = part.group
    if group not in (16, 32, part.shape[1]) and group % HALF:
        return f"its groups have {group} inputs; 16, 32 and multiples of {HALF} are accepted"
    if part.scales.dtype == torch.float32 and (part.mins is not None or part.scale_factors is not None):
        return "its scales are float32, with mins or factors; float16 or bfloat16 is accepted"
    return None


def _planes(codes: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """Return the first and the second tensor of codes [N, 128 B] uint8."""
    if bits == 8:
        return codes.contiguous(), None
    first, second = codes.view(len(codes), -1, 2, HALF).unbind(2)
    low = ((first & 15) | (second & 15) << 4).flatten(1)
    if bits == 4:
        return low, None
    of_byte = 8 // (bits - 4)  # codes with their upper bits in one byte
    upper = (codes >> 4).view(len(codes), -1, of_byte, BLOCK // of_byte)
    high = torch.zeros_like(upper[:, :, 0])
    for i in range(of_byte):
        high |= upper[:, :, i] << (bits - 4) * i
    return low, high.flatten(1)


def _words(values: Sequence[int]) -> tuple[int, int, int, int]:
    """Return 16 numbers of 8 bits as 4 words with a sign, the first in the lowest bits."""
    words = [int.from_bytes(bytes(values[i : i + 4]), "little", signed=True) for i in range(0, 16, 4)]
    return words[0], words[1], words[2], words[3]


def _exponents(scales: Tensor) -> Tensor:
    """Return scales as exponents if all are powers of 2 in bfloat16, as in MXFP4, or else unchanged."""
    if scales.dtype == torch.bfloat16:
        bits = scales.contiguous().view(torch.int16)
        if not bool((bits & ~0x7F80).any()) and bool(((bits > 0) & (bits < 0x7F80)).all()):
            return (bits >> 7).to(torch.uint8)
    return scales
