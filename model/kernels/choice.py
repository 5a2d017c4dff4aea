"""What computes here: our kernels or torch, and how bfloat16 numbers are multiplied. Knows no tensor's meaning."""

from typing import Literal, get_args

import torch

from model.kernels.library import levels
from model.kernels.products import DOT, WIDEN, Arithmetic

KernelChoice = Literal["auto", "native", "torch"]
"""Ours where they can, ours or an error, or plain torch operations."""
ArithmeticChoice = Literal["auto", "float32", "bf16-dot"]
"""How bfloat16 weights and rows are multiplied: as this CPU is best at, widened to float32, or by its own products."""

_chosen: tuple[KernelChoice, ArithmeticChoice] = "auto", "auto"


def choose(kernels: KernelChoice = "auto", arithmetic: ArithmeticChoice = "auto") -> None:
    """Choose for all networks that this process builds from now on.

    Raises ValueError for a choice that is none, RuntimeError when `native` is wanted and there is no library here.
    """
    global _chosen  # noqa: PLW0603 (of the process, like torch's number of threads)
    for name, value, accepted in (
        ("kernels", kernels, get_args(KernelChoice)),
        ("kernel_arithmetic", arithmetic, get_args(ArithmeticChoice)),
    ):
        if value not in accepted:
            raise ValueError(f"{name} is {value!r}; {', '.join(accepted)} are accepted")
    if kernels == "native" and not levels():
        raise RuntimeError("kernels is 'native', but there are no compiled kernels for this machine")
    _chosen = kernels, arithmetic


def why_not_native(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why our kernels cannot compute with these here, or None when they can."""
    if device.type != "cpu":
        return f"the kernels run on cpu, not {device.type}"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"the kernels take float32 or bfloat16, not {dtype}"
    if _chosen[0] == "torch":
        return "the kernels are turned off (--kernels torch)"
    if not levels():
        return "there are no compiled kernels for this machine"
    return None


def bfloat16_arithmetic() -> Arithmetic:
    """Return how products of bfloat16 rows and weights are made here."""
    return WIDEN if _chosen[1] == "float32" else DOT
