"""Says which CPUs multiply bfloat16 numbers faster by their own dot products than widened to float32.

It is a table: nothing is measured at start, so that restarts, ranks and replicas on one kind of CPU give the same bits.
A CPU that is not in it widens, which has the same bits on every CPU. `lightwell kernels --measure` prints a row for it.
"""

from dataclasses import dataclass

from model.kernels.library import cpu
from model.kernels.products import DOT, WIDEN, Arithmetic

DOT_LEVELS = ("avx512_bf16", "amx")
"""Levels that have dot products of bfloat16 numbers: VDPBF16PS, or tiles."""


@dataclass(frozen=True, slots=True)
class CpuRow:
    """CPUs for which the same arithmetic is faster."""

    name: str
    vendor: str
    family: int
    models: tuple[int, ...]
    dot_levels: tuple[str, ...]
    """Levels at which DOT is the faster arithmetic; at others these CPUs widen."""


TABLE = (
    # Two multiplications a lane in the time of one. Models as Linux distinguishes the generations.
    CpuRow("AMD Zen 4", "AuthenticAMD", 25, (*range(0x10, 0x20), *range(0x60, 0xB0)), ("avx512_bf16",)),
    CpuRow("AMD Zen 5", "AuthenticAMD", 26, (*range(0x30), *range(0x40, 0x50), *range(0x60, 0x80)), ("avx512_bf16",)),
    # VDPBF16PS at about half of float32's rate; tiles (AMX), where the hypervisor lets them be seen, at many times it.
    CpuRow("Intel Skylake to Cooper Lake (servers)", "GenuineIntel", 6, (85,), ()),
    CpuRow("Intel Sapphire Rapids", "GenuineIntel", 6, (143,), ("amx",)),
    CpuRow("Intel Emerald Rapids", "GenuineIntel", 6, (207,), ("amx",)),
    CpuRow("Intel Granite Rapids", "GenuineIntel", 6, (173, 174), ("amx",)),
)


def find_row(vendor: str, family: int, model: int) -> CpuRow | None:
    """Return the table's row for a CPU, or None if it has none."""
    return next((r for r in TABLE if (r.vendor, r.family) == (vendor, family) and model in r.models), None)


def best_arithmetic(level: str) -> Arithmetic:
    """Return how this CPU multiplies bfloat16 numbers fastest at a level, as far as the table knows."""
    row = find_row(*cpu())
    return DOT if row is not None and level in row.dot_levels else WIDEN
