"""Kernel choice: native, Triton or torch, before a network is built."""

import logging
from importlib.metadata import version

import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.kernels import library
from lightwell.model.kernels.choice import ARITHMETIC_NAMES, KernelConfig
from lightwell.model.kernels.products import WIDEN
from lightwell.server.engine.config import EngineConfig

logger = logging.getLogger(__name__)

LEAST_TRITON = (3, 5)
"""The oldest release of Triton that compiles our kernels for all GPUs."""


def choose_kernels(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> KernelConfig:
    """Return the configured kernels for a network of this dtype on this device.

    Raises ModelLoadError if `native` kernels cannot serve it, and for a level or a library that does not exist here.
    """
    try:
        kernels = KernelConfig(config.kernels, config.kernel_arithmetic, config.activations)
        kernels.check_machine()
    except (ValueError, RuntimeError) as error:
        raise ModelLoadError(str(error)) from None
    problem = kernels.why_not_native(dtype, device)
    if problem is not None and kernels.kernels == "native":
        raise ModelLoadError(f"--kernels native: {problem}; --kernels auto and torch are accepted")
    if problem is not None and kernels.activations == "int8":
        raise ModelLoadError(f"--activations int8: {problem}; --activations dtype is accepted")
    if kernels.kernels == "triton" and not kernels.uses_triton(dtype, device):
        raise ModelLoadError(
            f"--kernels triton: they run on cuda in float32, bfloat16 or float16, not on {device.type} in "
            f"{str(dtype).removeprefix('torch.')}; --kernels auto and torch are accepted"
        )
    if device.type == "cuda" and kernels.uses_triton(dtype, device) and (found := _triton_version()) < LEAST_TRITON:
        raise ModelLoadError(
            f"Triton {'.'.join(map(str, found))} is installed; on a GPU {'.'.join(map(str, LEAST_TRITON))} and above "
            "are accepted, which torch 2.9 and above bring, or any with --kernels torch"
        )
    if kernels.uses_triton(dtype, device) and config.block_size % 16:
        raise ModelLoadError(
            f"--block-size {config.block_size}: on a GPU, a multiple of 16 is accepted, or any size with --kernels "
            "torch"
        )
    if problem is not None and kernels.kernels == "auto" and device.type == "cpu":
        logger.warning("plain torch operations compute, which are slower: %s", problem)
    return kernels


def _triton_version() -> tuple[int, ...]:
    return tuple(int(part) for part in version("triton").split(".")[:2])


def kernels_in_use(
    kernels: KernelConfig, dtype: torch.dtype, device: torch.device
) -> tuple[str, str | None, str | None]:
    """Return the kernels in use for a network of this dtype on this device, `native`, `triton` or `torch`; for native
    kernels also their level, and their arithmetic for bfloat16 weights.
    """
    if kernels.uses_triton(dtype, device):
        return "triton", None, None
    if kernels.why_not_native(dtype, device) is not None:
        return "torch", None, None
    # Rows of float32 are multiplied in float32, for any stored type of the weights.
    arithmetic = kernels.bfloat16_arithmetic() if dtype == torch.bfloat16 else WIDEN
    return "native", library.kernels().level, ARITHMETIC_NAMES[arithmetic]
