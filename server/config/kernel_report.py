"""Report of `lightwell kernels`: the kernels of a server on this machine, and its method of multiplication."""

from dataclasses import dataclass
from typing import Any

import torch

from model.kernels import library
from model.kernels.choice import ARITHMETIC_NAMES, KernelConfig
from model.kernels.cpus import CpuRow, find_row
from server.config.kernel_rates import KernelRate, measure, row_of
from server.config.settings import Settings, SettingsError
from server.engine.execution.threads import SMALL_MODEL, use_threads


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
    """Vendor, family, model; an empty vendor where they are not known."""
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
        raise SettingsError("--measure needs kernels, and plain torch operations compute here")
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
    told: dict[str, Any] = {
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
        told["rates"] = {
            name: {"gb_per_s_1_row": round(rate.bandwidth, 2), "gflop_per_s_256_rows": round(rate.compute, 2)}
            for name, rate in report.rates.items()
        }
        told["measured_row"] = _row_as_json(row_of(report.rates))
    return told


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
