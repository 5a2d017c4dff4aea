"""Tensors as the compiled kernels take them. Knows memory, not meaning."""

import numpy as np
import torch

COMPILED_DTYPES = (torch.float32, torch.bfloat16)
"""What the compiled kernels compute with, on a CPU."""


def bits(x: torch.Tensor) -> np.ndarray:
    """The same memory as numpy: float32 as it is, bfloat16 (which numpy lacks) as uint16."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
