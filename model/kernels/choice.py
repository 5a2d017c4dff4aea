"""Chooses what computes here: our kernels or torch, and how bfloat16 numbers are multiplied. It knows no tensor's
meaning.
"""

import logging
from typing import Literal, get_args

import torch

from model.kernels import library
from model.kernels.cpus import DOT_LEVELS, best_arithmetic
from model.kernels.products import DOT, WIDEN, Arithmetic

logger = logging.getLogger(__name__)

KernelChoice = Literal["auto", "native", "torch"]
"""Which kernels to use: ours where they can run, ours or an error, or plain torch operations."""
ArithmeticChoice = Literal["auto", "float32", "bf16-dot"]
"""How bfloat16 weights and rows are multiplied: what is fastest on this CPU, widened to float32, or by the CPU's own
dot products.
"""

ARITHMETIC_NAMES: dict[Arithmetic, ArithmeticChoice] = {WIDEN: "float32", DOT: "bf16-dot"}
"""The names of arithmetics in settings and answers."""

_NO_LIBRARY = "there are no compiled kernels for this machine"

_chosen: tuple[KernelChoice, ArithmeticChoice] = "auto", "auto"


def choose(kernels: KernelChoice = "auto", arithmetic: ArithmeticChoice = "auto") -> None:
    """Choose for this process, before its networks are built.

    Raises ValueError for a value that is not a choice, or if the environment names a library or a level that does not
    exist; RuntimeError when `native` is wanted and there is no library here.
    """
    global _chosen  # noqa: PLW0603 (of the process, like torch's number of threads)
    for name, value, accepted in (
        ("kernels", kernels, get_args(KernelChoice)),
        ("kernel_arithmetic", arithmetic, get_args(ArithmeticChoice)),
    ):
        if value not in accepted:
            raise ValueError(f"{name} is {value!r}; {', '.join(accepted)} are accepted")
    library.check_variables()
    if kernels != "torch":
        _warn_of_level(arithmetic)
    if kernels == "native" and not library.levels():
        raise RuntimeError(f"kernels is 'native', but {_NO_LIBRARY}; 'auto' and 'torch' are accepted")
    _chosen = kernels, arithmetic


def _warn_of_level(arithmetic: ArithmeticChoice) -> None:
    """Warn if the level lacks this arithmetic."""
    if arithmetic == "bf16-dot" and library.levels() and library.kernels().level not in DOT_LEVELS:
        logger.warning(
            "bf16-dot was asked for, but the level %s has no dot products of bfloat16 numbers: they are widened to "
            "float32",
            library.kernels().level,
        )


def why_not_native(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why our kernels cannot compute with this dtype and device here, or None if they can."""
    if device.type != "cpu":
        return f"the kernels run on cpu, not {device.type}"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"the kernels take float32 or bfloat16, not {str(dtype).removeprefix('torch.')}"
    if _chosen[0] == "torch":
        return "the kernels are turned off (--kernels torch)"
    if not library.levels():
        return _NO_LIBRARY
    return None


def bfloat16_arithmetic() -> Arithmetic:
    """Return how products of bfloat16 rows and weights are computed here."""
    level = library.kernels().level if library.levels() else None
    if level not in DOT_LEVELS or _chosen[1] == "float32":
        return WIDEN
    return DOT if _chosen[1] == "bf16-dot" else best_arithmetic(level)
