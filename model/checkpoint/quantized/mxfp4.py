"""Reads matrices of 4-bit floating-point numbers, e2m1, of which 32 inputs share a power of two (OCP Microscaling
Formats 1.0). Twice such a number is a whole one, so grouped rows hold it.

The method mxfp4: `weight_blocks` uint8 [out, in / 32, 16], two codes in a byte, the lower half first, and
`weight_scales` uint8 [out, in / 32]: e, which stands for 2^(e - 127), and 255 for NaN. compressed-tensors:
`weight_packed` uint8 [out, in / 2] and `weight_scale`.
"""

import torch

from model.checkpoint.quantized.parts import Parts
from model.checkpoint.stored_tensor import StoredTensor
from model.quantized import GroupedRows

PARTS = ("weight_blocks", "weight_scales")
"""The tensors of a matrix."""
GROUP = 32
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the number of each code."""
_HALVED = torch.tensor([*(2.0 ** (e - 128) for e in range(255)), torch.nan], dtype=torch.float64).to(torch.bfloat16)
"""Half the number of each scale. All have an exponent of bfloat16, the least one as a number that is not normal."""


def read_matrix(parts: Parts) -> StoredTensor:
    """Return a matrix of the method's parts as one tensor. Raises ModelLoadError for parts that do not fit."""
    return read_parts(parts, "weight_blocks", "weight_scales", (None, None, GROUP // 2))


def read_parts(parts: Parts, codes: str, scales: str, shape: tuple[int | None, ...]) -> StoredTensor:
    """Return a matrix as one tensor. codes, scales: the names of its parts; shape: of the codes.

    Raises ModelLoadError for parts that do not fit.
    """
    packed = parts.tensor(codes, ("U8",), *shape)
    num_outputs, num_bytes = packed.shape[0], torch.Size(packed.shape[1:]).numel()
    (num_groups,) = parts.group_counts(2 * num_bytes, (GROUP,))
    powers = parts.tensor(scales, ("U8",), num_outputs, num_groups)

    def read() -> GroupedRows:
        found = packed.read().view(num_outputs, num_bytes)
        both = torch.stack([found & 15, found >> 4], -1).flatten(1)
        return GroupedRows(both, _HALVED[powers.read().int()], values=_DOUBLED)

    return parts.grouped((num_outputs, 2 * num_bytes), read)
