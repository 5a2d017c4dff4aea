"""Memory of a tensor's own: straight from the kernel, to which it returns when the tensor goes.

For what is large: the C library keeps what was freed for later, and weights that are read only to be packed would stay
in the process for good. Knows nothing of what the tensors mean.
"""

import ctypes
import mmap
from collections.abc import Sequence

import torch

_SMALL = 1 << 16
"""Bytes under which the C library's memory will do."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14: hand out the pages of a range now, and leave what they hold as it is."""
_madvise = getattr(ctypes.CDLL(None), "madvise", None)
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """On a CPU its pages are handed out by the kernel when they are first used, or by `touch`."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if torch.device(device).type != "cpu" or num_bytes < _SMALL:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def touch(x: torch.Tensor) -> bool:
    """Have the kernel hand out the pages of a contiguous tensor that lack any; what it holds stays. False where it does
    not: an older kernel, or no memory.
    """
    first = x.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    length = x.data_ptr() + x.nbytes - first
    if x.device.type != "cpu":
        return False
    return _madvise is not None and _madvise(first, length, _POPULATE_WRITE) == 0
