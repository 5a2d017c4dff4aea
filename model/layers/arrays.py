"""Tensors as the compiled kernels take them. Knows memory, not meaning."""

import importlib.util

import numpy as np
import torch

_is_compiler_wanted = True


def use_compiler(wanted: bool) -> None:
    """Whether networks that this process builds from now on compute with compiled kernels where they can. Compiling
    takes half a minute where no earlier start has left its work; without, plain torch operations serve, slower.
    """
    global _is_compiler_wanted  # noqa: PLW0603 (of the process, like torch's number of threads)
    _is_compiler_wanted = wanted


def why_not_compiled(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the compiled kernels cannot compute with these here, or None when they can."""
    if device.type != "cpu":
        return f"compiled kernels run on cpu, not {device.type}"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"compiled kernels take float32 or bfloat16, not {dtype}"
    if not _is_compiler_wanted:
        return "compiled kernels are turned off (--no-compile)"
    if importlib.util.find_spec("numba") is None:
        return "compiled kernels need numba, which is not installed"
    return None


def bits(x: torch.Tensor) -> np.ndarray:
    """The same memory as numpy: float32 as it is, bfloat16 (which numpy lacks) as uint16."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
