"""Chooses what computes in this process, before a network is built, and tells what that came to."""

import logging

import torch

from model.checkpoint.folder import ModelLoadError
from model.kernels.choice import ARITHMETIC_NAMES, bfloat16_arithmetic, choose, why_not_native
from model.kernels.library import kernels
from model.kernels.products import WIDEN
from server.engine.config import EngineConfig

logger = logging.getLogger(__name__)


def choose_kernels(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Follow the configuration, for a network of this dtype on this device.

    Raises ModelLoadError where `native` kernels cannot serve it, and for a level or a library that is not there.
    """
    try:
        choose(config.kernels, config.kernel_arithmetic)
    except (ValueError, RuntimeError) as error:
        raise ModelLoadError(str(error)) from None
    problem = why_not_native(dtype, device)
    if problem is None or config.kernels == "torch":
        return
    if config.kernels == "native":
        raise ModelLoadError(f"--kernels native: {problem}; --kernels auto and torch are accepted")
    if device.type == "cpu":
        logger.warning("plain torch operations compute, which are slower: %s", problem)


def kernels_in_use(dtype: torch.dtype, device: torch.device) -> tuple[str, str | None, str | None]:
    """Return what computes for a network of this dtype on this device, `native` or `torch`; of native kernels also
    their level, and how they multiply by bfloat16 weights.
    """
    if why_not_native(dtype, device) is not None:
        return "torch", None, None
    # Rows of float32 are multiplied in float32, whatever the weights are kept in.
    arithmetic = bfloat16_arithmetic() if dtype == torch.bfloat16 else WIDEN
    return "native", kernels().level, ARITHMETIC_NAMES[arithmetic]
