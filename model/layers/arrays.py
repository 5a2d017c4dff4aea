"""Tensors as the compiled kernels take them. Knows memory, not meaning."""

import importlib.util

import numpy as np
import torch


def why_not_compiled(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the compiled kernels cannot compute with these here, or None when they can."""
    if device.type != "cpu":
        return f"compiled kernels run on cpu, not {device.type}"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"compiled kernels take float32 or bfloat16, not {dtype}"
    if importlib.util.find_spec("numba") is None:
        return "compiled kernels need numba, which is not installed"
    return None


def bits(x: torch.Tensor) -> np.ndarray:
    """The same memory as numpy: float32 as it is, bfloat16 (which numpy lacks) as uint16."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
