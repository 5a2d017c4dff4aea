"""Measure the upper limits of the card: memory bandwidth and large matrix products."""

import torch

from benchmarks.gpu.clock import seconds


def bytes_per_second(device: torch.device, num_bytes: int) -> float:
    """Return the bytes read from memory per second: a sum over a tensor larger than the caches."""
    data = torch.ones(num_bytes // 4, device=device)
    return num_bytes / seconds(data.sum, device, calls=4)


def operations_per_second(dtype: torch.dtype, device: torch.device, size: int) -> float:
    """Return the operations a second of a large product (two for each multiplication and addition)."""
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / seconds(lambda: a @ b, device, calls=4)
