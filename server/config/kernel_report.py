"""Report of `lightwell kernels`: the kernels of a server on this machine, and its method of multiplication.

It may measure the products with each form of weight on one thread, for the table of CPUs. Their weights are constant:
the time of a product does not depend on its numbers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lightwell.model.kernels import library
from lightwell.model.kernels.choice import ARITHMETIC_NAMES, KernelConfig
from lightwell.model.kernels.cpus import DOT_LEVELS, CpuRow, find_row
from lightwell.model.kernels.forms import Weight
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.products import BLOCK, DOT, WIDEN, BlockedWeight
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.engine.execution.threads import SMALL_MODEL, use_threads

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


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The kernels that compute on this machine, in a server with the same flags and variables."""

    library: str
    """Path of the compiled kernels."""
    is_present: bool
    kernels: str
    """native | torch"""
    levels: tuple[str, ...]
    """The compiled levels that this CPU can run, the lowest first."""
    level: str | None
    """The level in use."""
    cpu: tuple[str, int, int]
    """Vendor, family, model; an empty vendor if they are unknown."""
    row: CpuRow | None
    """The row of the table of CPUs, or None if this CPU is not in it."""
    arithmetic: str | None
    """How products with bfloat16 weights are made: float32 | bf16-dot."""
    threads: int
    """Threads of a model; a small model uses fewer."""
    rates: dict[str, KernelRate] | None = None
    """The rates on one thread, or None if nothing was measured."""


def make_report(settings: Settings, *, measured: bool = False) -> KernelReport:
    """Return the kernels of this machine. measured: whether to measure rates, for a few seconds.

    Raises SettingsError for required kernels, a level or a library that is missing.
    """
    try:
        kernels = KernelConfig(settings.engine_kernels, settings.kernel_arithmetic)
        kernels.check_machine()
    except (ValueError, RuntimeError) as error:
        raise SettingsError(str(error)) from None
    levels = library.levels()
    is_native = kernels.kernels != "torch" and bool(levels)
    if measured and not is_native:
        raise SettingsError("--measure needs compiled kernels, but this configuration uses torch operations")
    use_threads(settings.threads, SMALL_MODEL)
    return KernelReport(
        library=str(library.library_path()),
        is_present=library.library_path().is_file(),
        kernels="native" if is_native else "torch",
        levels=levels,
        level=library.kernels().level if is_native else None,
        cpu=library.cpu(),
        row=find_row(*library.cpu()),
        arithmetic=ARITHMETIC_NAMES[kernels.bfloat16_arithmetic()] if is_native else None,
        threads=torch.get_num_threads(),
        rates=measure() if measured else None,
    )


def as_json(report: KernelReport) -> dict[str, Any]:
    vendor, family, model = report.cpu
    fields: dict[str, Any] = {
        "library": {"path": report.library, "present": report.is_present},
        "kernels": report.kernels,
        "levels": report.levels,
        "level": report.level,
        "cpu": {"vendor": vendor, "family": family, "model": model} if vendor else None,
        "table_row": None if report.row is None else _row_as_json(report.row),
        "arithmetic": report.arithmetic,
        "threads": report.threads,
    }
    if report.rates is not None:
        fields["rates"] = {
            name: {"gb_per_s_1_row": round(rate.bandwidth, 2), "gflop_per_s_256_rows": round(rate.compute, 2)}
            for name, rate in report.rates.items()
        }
        fields["measured_row"] = _row_as_json(row_of(report.rates))
    return fields


def _row_as_json(row: CpuRow) -> dict[str, Any]:
    return {"name": row.name, "dot_levels": list(row.dot_levels)}


def as_table(report: KernelReport) -> str:
    """Return the report for people: one line a fact, and one a rate."""
    vendor, family, model = report.cpu
    name, levels = ("unknown", ()) if report.row is None else (report.row.name, report.row.dot_levels)
    row = f"{name}: " + (f"dot products at level {', '.join(levels)}" if levels else "widens to float32")
    lines = {
        "library": report.library if report.is_present else f"none ({report.library} is not there)",
        "kernels": report.kernels,
        "compiled levels": ", ".join(report.levels) or "none",
        "level in use": report.level or "none",
        "CPU": f"{vendor}, family {family}, model {model}" if vendor else "unknown",
        "table of CPUs": row,
        "bfloat16 arithmetic": report.arithmetic or "torch's",
        "threads": str(report.threads),
    }
    text = [f"{name:<20}{value}" for name, value in lines.items()]
    if report.rates is not None:
        text += ["", f"{'on one thread':<20}{'1 row':>12}{'256 rows':>18}"]
        text += [f"{n:<20}{r.bandwidth:>7.1f} GB/s{r.compute:>10.1f} GFLOP/s" for n, r in report.rates.items()]
        found = row_of(report.rates)
        fields = (found.name, found.vendor, found.family, found.models, found.dot_levels)
        source = ", ".join(map(repr, fields)).replace("'", '"')
        text += ["", "for TABLE of model/kernels/cpus.py:", f"    CpuRow({source}),"]
    return "\n".join(text)


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


def _rate(name: str, itemsize: int, make: Callable[[int], Weight], seconds: float, weight_bytes: int) -> KernelRate:
    row_dtype = torch.float32 if name == "float32" else torch.bfloat16
    num_outputs = max(1, weight_bytes // (_INPUTS * itemsize) // BLOCK) * BLOCK
    few = min(num_outputs, _SMALL_OUTPUTS)
    large, small = make(num_outputs), make(few)
    row, rows = torch.ones(1, _INPUTS, dtype=row_dtype), torch.ones(_MANY_ROWS, _INPUTS, dtype=row_dtype)
    return KernelRate(
        num_outputs * _INPUTS * itemsize / _least_seconds(lambda: large.multiply(row), seconds) / 1e9,
        2 * _MANY_ROWS * _INPUTS * few / _least_seconds(lambda: small.multiply(rows), seconds) / 1e9,
    )


def _least_seconds(run: Callable[[], object], seconds: float) -> float:
    run()  # touches the memory for the first time
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
