"""How fast this machine multiplies by each form of weight: for who fills in the table of CPUs.

What is timed are the kernels themselves, on memory of made-up numbers: their time does not depend on these.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from model.kernels import library
from model.kernels.cpus import DOT_LEVELS, CpuRow
from model.kernels.products import BLOCK, DOT, WIDEN

_MANY_ROWS = 256
_INPUTS = 4096
_WEIGHT_BYTES = 256 << 20
"""More than most caches hold: a single row reads its weight from memory."""
_SMALL_OUTPUTS = 1024
"""Of the weight for many rows, so that it takes no longer on a slow CPU."""
_INT8_HEADER = 2 * 4 * BLOCK
"""Bytes of scales before the numbers of a block."""
_CLEARLY = 1.1
"""How much faster DOT must be with many rows, since WIDEN is more precise and has the same bits on every CPU."""
_AS_FAST = 0.95
"""How fast it must be at least with a single row."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Of one form of weight and one arithmetic, on one thread."""

    bandwidth: float
    """GB of weights read in a second by a single row."""
    compute: float
    """GFLOP (two for each weight and row) in a second by 256 rows."""


def measure(seconds: float = 0.4, weight_bytes: int = _WEIGHT_BYTES) -> dict[str, Rate]:
    """Time products on one thread, at the level in use, each for about so long, by weights of so many bytes.

    Returns the rates of float32, bfloat16 (widened), bfloat16-dot where the level has it, and int8.
    """
    forms: dict[str, tuple[str, torch.dtype, torch.dtype, tuple[int, ...]]] = {
        "float32": ("product_f32", torch.float32, torch.float32, ()),
        "bfloat16": ("product_bf16", torch.bfloat16, torch.bfloat16, (WIDEN,)),
        "bfloat16-dot": ("product_bf16", torch.bfloat16, torch.bfloat16, (DOT,)),
        "int8": ("product_int8_bf16", torch.bfloat16, torch.int8, ()),
    }
    if library.kernels().level not in DOT_LEVELS:
        del forms["bfloat16-dot"]
    threads = library.num_threads()
    library.set_num_threads(1)
    try:
        return {name: _rate(*form, seconds, weight_bytes) for name, form in forms.items()}
    finally:
        library.set_num_threads(threads)


def _rate(
    kernel: str, rows: torch.dtype, weights: torch.dtype, extra: tuple[int, ...], seconds: float, weight_bytes: int
) -> Rate:
    row_bytes = _INPUTS * weights.itemsize
    num_outputs = max(1, weight_bytes // row_bytes // BLOCK) * BLOCK
    header = num_outputs // BLOCK * _INT8_HEADER if weights == torch.int8 else 0
    packed = torch.ones(num_outputs * _INPUTS + header, dtype=weights)

    def product(num_rows: int, outputs: int) -> Callable[[], None]:
        x, out = torch.ones(num_rows, _INPUTS, dtype=rows), torch.empty(num_rows, outputs, dtype=rows)
        addresses = x.data_ptr(), packed.data_ptr(), None, out.data_ptr()
        sizes = num_rows, _INPUTS, outputs, 0  # the last: no activation
        call = library.kernels().call

        def run(kept: object = (x, out, packed)) -> None:
            call(kernel, "ppppllll" + "l" * len(extra), *addresses, *sizes, *extra)

        return run

    few, many = min(num_outputs, _SMALL_OUTPUTS), _MANY_ROWS
    return Rate(
        num_outputs * row_bytes / _least_seconds(product(1, num_outputs), seconds) / 1e9,
        2 * many * _INPUTS * few / _least_seconds(product(many, few), seconds) / 1e9,
    )


def _least_seconds(run: Callable[[], None], seconds: float) -> float:
    run()  # meets memory for the first time
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best


def row_of(rates: dict[str, Rate]) -> CpuRow:
    """Return the row of the table of CPUs that says of this one, at the level in use, what was measured."""
    vendor, family, model = library.cpu()
    dot, widened = rates.get("bfloat16-dot"), rates["bfloat16"]
    is_dot_faster = (
        dot is not None and dot.compute > _CLEARLY * widened.compute and dot.bandwidth > _AS_FAST * widened.bandwidth
    )
    name = f"{vendor} family {family} model {model}"
    return CpuRow(name, vendor, family, (model,), (library.kernels().level,) if is_dot_faster else ())
