"""Allocates memory for single tensors straight from the kernel, to which it returns when the tensor is freed.

It is for large tensors: the C library keeps what was freed for later, and weights that are read only to be packed would
stay in the process for good. This module knows nothing of what the tensors mean.
"""

import ctypes
import mmap
from collections.abc import Sequence

import torch

_SMALL = 1 << 16
"""Bytes below which the C library's memory is used."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14: allocate the pages of a range now, and leave their contents as they are."""
_madvise = getattr(ctypes.CDLL(None), "madvise", None)
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Return a tensor of zeros. On a CPU the kernel allocates its pages when they are first used, or by `touch`."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if torch.device(device).type != "cpu" or num_bytes < _SMALL:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def touch(x: torch.Tensor) -> bool:
    """Have the kernel allocate the pages that a contiguous tensor lacks; its contents stay. Return False if it does
    not: an older kernel, or no memory.
    """
    first = x.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    length = x.data_ptr() + x.nbytes - first
    if x.device.type != "cpu":
        return False
    return _madvise is not None and _madvise(first, length, _POPULATE_WRITE) == 0
