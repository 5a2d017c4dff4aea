"""Measurement of the products with each form of weight on this machine, for the table of CPUs.

The weights are constant: the time of a product does not depend on its numbers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from model.kernels import library
from model.kernels.cpus import DOT_LEVELS, CpuRow
from model.kernels.forms import Weight
from model.kernels.int8 import Int8BlockedWeight
from model.kernels.products import BLOCK, DOT, WIDEN, BlockedWeight

_MANY_ROWS = 256
_INPUTS = 4096
_WEIGHT_BYTES = 256 << 20
"""Bytes of the weight: more than most caches hold, so that a single row reads it from memory."""
_SMALL_OUTPUTS = 1024
"""Outputs of the weight for many rows, so that it takes no longer on a slow CPU."""
_CLEARLY = 1.1
"""How many times as fast DOT must be with many rows, since WIDEN is more precise and has the same bits on every CPU."""
_AS_FAST = 0.95
"""How fast DOT must be at least with a single row, relative to WIDEN."""


@dataclass(frozen=True, slots=True)
class KernelRate:
    """The rate of one form of weight and one arithmetic, on one thread."""

    bandwidth: float
    """GB of weights read in a second by a single row."""
    compute: float
    """GFLOP in a second by 256 rows (two for each weight and row)."""


def measure(seconds: float = 0.4, weight_bytes: int = _WEIGHT_BYTES) -> dict[str, KernelRate]:
    """Measure the rates on one thread, at the level in use. seconds: time for each rate. weight_bytes: size of a
    weight.

    Returns the rates of float32, bfloat16 (widened), bfloat16-dot where the level has it, and int8.
    """
    forms: dict[str, tuple[int, Callable[[int], Weight]]] = {
        "float32": (4, lambda n: BlockedWeight(torch.ones(n, _INPUTS))),
        "bfloat16": (2, lambda n: BlockedWeight(torch.ones(n, _INPUTS, dtype=torch.bfloat16), WIDEN)),
        "bfloat16-dot": (2, lambda n: BlockedWeight(torch.ones(n, _INPUTS, dtype=torch.bfloat16), DOT)),
        "int8": (1, lambda n: Int8BlockedWeight(torch.ones(n, _INPUTS, dtype=torch.int8), torch.ones(n))),
    }
    if library.kernels().level not in DOT_LEVELS:
        del forms["bfloat16-dot"]
    threads = library.num_threads()
    library.set_num_threads(1)
    try:
        return {name: _rate(name, *form, seconds, weight_bytes) for name, form in forms.items()}
    finally:
        library.set_num_threads(threads)


def _rate(name: str, itemsize: int, lay: Callable[[int], Weight], seconds: float, weight_bytes: int) -> KernelRate:
    row_dtype = torch.float32 if name == "float32" else torch.bfloat16
    num_outputs = max(1, weight_bytes // (_INPUTS * itemsize) // BLOCK) * BLOCK
    few = min(num_outputs, _SMALL_OUTPUTS)
    large, small = lay(num_outputs), lay(few)
    row, rows = torch.ones(1, _INPUTS, dtype=row_dtype), torch.ones(_MANY_ROWS, _INPUTS, dtype=row_dtype)
    return KernelRate(
        num_outputs * _INPUTS * itemsize / _least_seconds(lambda: large.multiply(row), seconds) / 1e9,
        2 * _MANY_ROWS * _INPUTS * few / _least_seconds(lambda: small.multiply(rows), seconds) / 1e9,
    )


def _least_seconds(run: Callable[[], object], seconds: float) -> float:
    run()  # meets memory for the first time
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best


def row_of(rates: dict[str, KernelRate]) -> CpuRow:
    """Return the row of the table of CPUs that describes this one, at the level in use, as it was measured."""
    vendor, family, model = library.cpu()
    dot, widened = rates.get("bfloat16-dot"), rates["bfloat16"]
    is_dot_faster = (
        dot is not None and dot.compute > _CLEARLY * widened.compute and dot.bandwidth > _AS_FAST * widened.bandwidth
    )
    name = f"{vendor} family {family} model {model}"
    return CpuRow(name, vendor, family, (model,), (library.kernels().level,) if is_dot_faster else ())
