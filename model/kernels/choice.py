"""The choice between native kernels, Triton kernels and torch, and of the arithmetic of bfloat16 products."""

import importlib.util
import logging
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from lightwell.model.kernels import library
from lightwell.model.kernels.cpus import DOT_LEVELS, best_arithmetic
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kernels.products import DOT, WIDEN, Arithmetic

logger = logging.getLogger(__name__)

KernelChoice = Literal["auto", "native", "triton", "torch"]
"""The kernels to use: Lightwell's where they can run (auto), those for the CPU or an error (native), those for a GPU or
an error (triton), or plain torch operations.
"""
ArithmeticChoice = Literal["auto", "float32", "bf16-dot"]
"""The arithmetic of products of bfloat16 weights and rows: the fastest on this CPU (auto), widened to float32, or the
CPU's own dot products.
"""
ActivationChoice = Literal["dtype", "int8", "auto"]
"""The precision of rows in products with weights of 8 or 4 bits: the network's dtype, 8 bits, or 8 bits where they are
faster (auto).
"""
_BYTE_LEVELS = ("avx512_bf16",)
"""Levels with faster products of all quantised weights if rows have 8 bits. Of AMX, bfloat16 is faster; NEON was not
measured.
"""

ARITHMETIC_NAMES: dict[Arithmetic, ArithmeticChoice] = {WIDEN: "float32", DOT: "bf16-dot"}
"""The names of arithmetics in settings and answers."""

_NO_LIBRARY = (
    "there are no compiled kernels for this machine (`python model/kernels/build.py` in a clone compiles them)"
)


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """The choice of kernels and of their arithmetic, an argument of the functions that build a network.

    Raises ValueError for an unknown choice.
    """

    kernels: KernelChoice = "auto"
    arithmetic: ArithmeticChoice = "auto"
    activations: ActivationChoice = "dtype"

    def __post_init__(self) -> None:
        for name, value, accepted in (
            ("kernels", self.kernels, get_args(KernelChoice)),
            ("kernel_arithmetic", self.arithmetic, get_args(ArithmeticChoice)),
            ("activations", self.activations, get_args(ActivationChoice)),
        ):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}; {', '.join(accepted)} are accepted")

    def check_machine(self) -> None:
        """Check that this machine supports the choice, and warn of an arithmetic that its level lacks.

        Raises ValueError if the environment names a library or a level that does not exist; RuntimeError for `native`
        without a library, and for `triton` without a GPU.
        """
        library.check_variables()
        if self.kernels == "native" and not library.levels():
            raise RuntimeError(f"kernels is 'native', but {_NO_LIBRARY}; 'auto' and 'torch' are accepted")
        if self.kernels == "triton" and not (IS_INTERPRETED or torch.cuda.is_available()):
            raise RuntimeError("kernels is 'triton', but there is no CUDA device; 'auto' and 'torch' are accepted")
        if self.activations == "int8" and library.levels() and library.kernels().level == "amx":
            logger.warning("--activations int8 is slower on this CPU than none: its tiles multiply bfloat16 faster")
        if self.kernels in ("torch", "triton") or self.arithmetic != "bf16-dot" or not library.levels():
            return
        if library.kernels().level not in DOT_LEVELS:
            logger.warning(
                "bf16-dot was requested, but the level %s has no dot products of bfloat16 numbers: they are widened "
                "to float32",
                library.kernels().level,
            )

    def why_not_native(self, dtype: torch.dtype, device: torch.device) -> str | None:
        """Return the reason why the native kernels do not support a dtype and a device, or None if they do."""
        if device.type != "cpu":
            return f"the kernels run on cpu, not {device.type}"
        if dtype not in (torch.float32, torch.bfloat16):
            return f"the kernels take float32 or bfloat16, not {str(dtype).removeprefix('torch.')}"
        if self.kernels in ("torch", "triton"):
            return f"the kernels are turned off (--kernels {self.kernels})"
        return None if library.levels() else _NO_LIBRARY

    def with_activations(
        self, dtype: torch.dtype, device: torch.device, quantize: Quantization, *, is_quantized: bool
    ) -> "KernelConfig":
        """Return the choice for a network with `auto` activations decided. is_quantized: whether it has weights of 8 or
        4 bits. Nothing is measured, as with arithmetics.
        """
        if self.activations != "auto":
            return self
        is_native = is_quantized and self.why_not_native(dtype, device) is None
        # Weights in int8 are multiplied with 1 digit of a row instead of 2 or 3: less work at every level.
        gains = is_native and (quantize == "int8" or library.kernels().level in _BYTE_LEVELS)
        return replace(self, activations="int8" if gains else "dtype")

    def uses_triton(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether the Triton kernels compute with a dtype on a device: a GPU, or a CPU that interprets them."""
        if dtype not in (torch.float32, torch.bfloat16, torch.float16) or self.kernels in ("native", "torch"):
            return False
        is_there = device.type == "cuda" or (self.kernels == "triton" and IS_INTERPRETED)
        return is_there and importlib.util.find_spec("triton") is not None

    def has_quantized_products(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether the Triton kernels multiply weights of 8 and 4 bits by rows of a dtype on a device."""
        return dtype != torch.float32 and self.uses_triton(dtype, device)

    def bfloat16_arithmetic(self) -> Arithmetic:
        """Return the arithmetic of the native kernels for bfloat16 rows and weights."""
        level = library.kernels().level if library.levels() else None
        if level not in DOT_LEVELS or self.arithmetic == "float32":
            return WIDEN
        return DOT if self.arithmetic == "bf16-dot" else best_arithmetic(level)


AUTO = KernelConfig()
"""The native kernels where they can run, with the fastest arithmetic of this CPU."""
