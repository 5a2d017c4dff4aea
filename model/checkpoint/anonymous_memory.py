"""Memory for single large tensors, allocated from the operating system and returned to it when the tensor is freed.

The C library would keep the memory of freed weights, which are read only to be packed, in the process.
"""

import mmap
from collections.abc import Sequence

import torch

_SMALL = 1 << 16
"""Bytes below which the C library's memory is used."""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Return a tensor of zeros. On a CPU the kernel allocates its pages when they are first written to."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if torch.device(device).type != "cpu" or num_bytes < _SMALL:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
