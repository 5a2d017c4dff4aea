"""Table of the CPUs with dot products of bfloat16 numbers that are faster than products widened to float32.

Nothing is measured at start, so that restarts, ranks and replicas on one kind of CPU give the same bits. Other CPUs
widen, which gives the same bits on every CPU. `lightwell kernels --measure` prints a row of the table for a CPU.
"""

from dataclasses import dataclass

from lightwell.model.kernels.library import cpu
from lightwell.model.kernels.products import DOT, WIDEN, Arithmetic

DOT_LEVELS = ("avx512_bf16", "amx")
"""Levels that have dot products of bfloat16 numbers: VDPBF16PS, or tiles."""


@dataclass(frozen=True, slots=True)
class CpuRow:
    """CPUs with the same fastest arithmetic."""

    name: str
    vendor: str
    family: int
    models: tuple[int, ...]
    dot_levels: tuple[str, ...]
    """Levels at which DOT is faster; at other levels these CPUs widen."""


TABLE = (
    # Two multiplications in each lane in the time of one. Linux distinguishes the generations by these models.
    CpuRow("AMD Zen 4", "AuthenticAMD", 25, (*range(0x10, 0x20), *range(0x60, 0xB0)), ("avx512_bf16",)),
    CpuRow("AMD Zen 5", "AuthenticAMD", 26, (*range(0x30), *range(0x40, 0x50), *range(0x60, 0x80)), ("avx512_bf16",)),
    # VDPBF16PS has about half of float32's rate; AMX tiles, if the hypervisor exposes them, have many times that rate.
    CpuRow("Intel Skylake to Cooper Lake (servers)", "GenuineIntel", 6, (85,), ()),
    CpuRow("Intel Sapphire Rapids", "GenuineIntel", 6, (143,), ("amx",)),
    CpuRow("Intel Emerald Rapids", "GenuineIntel", 6, (207,), ("amx",)),
    CpuRow("Intel Granite Rapids", "GenuineIntel", 6, (173, 174), ("amx",)),
)


def find_row(vendor: str, family: int, model: int) -> CpuRow | None:
    """Return the row of a CPU in the table, or None."""
    return next((r for r in TABLE if (r.vendor, r.family) == (vendor, family) and model in r.models), None)


def best_arithmetic(level: str) -> Arithmetic:
    """Return the fastest arithmetic of this CPU at a level according to the table, by default WIDEN."""
    row = find_row(*cpu())
    return DOT if row is not None and level in row.dot_levels else WIDEN
