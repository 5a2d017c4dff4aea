"""Checks and alignment of the tensors for GPU kernels, so that one compiled kernel serves every batch.

Triton compiles another kernel for another alignment of the arguments, which may sum in another order. So all arguments
of one width have one alignment: other rows are copied.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of numbers that the kernels take."""

_BYTES, _NUMBERS = 16, 16
"""Triton compiles separately for addresses that are multiples of 16 bytes, and for numbers that are multiples of 16."""


def check_tensor(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype], shape: Sequence[int | None]) -> None:
    """Raise ValueError, with the name of the tensor, for another dtype or shape; None accepts any length."""
    if tensor.dtype not in dtypes:
        accepted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}; {accepted} is accepted")
    fits = len(shape) == tensor.ndim and all(
        wanted in (None, length) for wanted, length in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        accepted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name} is {list(tensor.shape)}; [{accepted}] is accepted")


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy that is contiguous at an address that is a multiple of 16 bytes."""
    if tensor.is_contiguous() and tensor.data_ptr() % _BYTES == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def aligned_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return x [R, d] or a copy, and the distance of its rows in numbers.

    A slice of wider rows is not copied if d and the distance of its rows are multiples of 16.
    """
    width, distance = x.shape[1], x.stride(0)
    is_slice = x.stride(1) == 1 and width % _NUMBERS == 0 and distance % _NUMBERS == 0
    if is_slice and not x.is_contiguous() and x.data_ptr() % _BYTES == 0:
        return x, distance
    return aligned(x), width
