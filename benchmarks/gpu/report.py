"""Turns measurements into shares of the card's limits, and into a readable table."""

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gpu.checks import Check


@dataclass(frozen=True)
class Machine:
    """The card, and its limits as measured."""

    name: str
    torch: str
    transformers: str
    bytes_per_second: float
    operations_per_second: float


@dataclass
class Decode:
    """Decoding of one network with a number of sequences at once."""

    network: str
    rows: int
    mode: str
    """The mode: off | plain | compiled"""
    tokens_per_second: float
    """Tokens a second through our engine: scheduling and sampling included."""
    step_seconds: float
    """Seconds of a step on the device, by itself."""
    floor_seconds: float
    """Seconds to read weights and cache at the card's bandwidth."""
    theirs: float | None
    """Tokens a second of `transformers.generate`."""
    start_seconds: float
    """Seconds to capture, and compile, the graphs of all sizes."""

    @property
    def share_of_bandwidth(self) -> float:
        return self.floor_seconds / self.step_seconds

    @property
    def over_theirs(self) -> float | None:
        return None if self.theirs is None else self.tokens_per_second / self.theirs


@dataclass
class Prefill:
    """One network with one prompt."""

    network: str
    num_tokens: int
    seconds: float
    floor_seconds: float
    """Seconds of the multiplications and additions at the card's rate."""
    theirs: float | None
    """Seconds of `transformers`."""


@dataclass
class Captures:
    """One of eight streams captures one layer, all heads, compared with no captures."""

    network: str
    mode: str
    ratios: list[float]
    """Tokens a second with captures over without, run by run."""


@dataclass
class Results:
    """All results of a run."""

    machine: Machine
    checks: list[Check] = field(default_factory=list)
    decode: list[Decode] = field(default_factory=list)
    prefill: list[Prefill] = field(default_factory=list)
    captures: list[Captures] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return asdict(self)


def table(results: Results) -> str:
    """Return the results as Markdown."""
    machine = results.machine
    lines = [
        f"# {machine.name}",
        "",
        f"torch {machine.torch}, transformers {machine.transformers}; read {machine.bytes_per_second / 1e9:.0f} GB/s, "
        f"bfloat16 products {machine.operations_per_second / 1e12:.0f} TFLOP/s; {results.seconds:.0f} s in all.",
        "",
        "| check | | |",
        "|---|---|---|",
        *(f"| {check.name} | {'passed' if check.passed else 'FAILED'} | {check.detail} |" for check in results.checks),
        "",
        "Decode, bfloat16: tokens/s through the engine; the device's own step beside weights and cache over bandwidth.",
        "",
        "| network | sequences | graphs | tokens/s | transformers | ratio | step | floor | share | start |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
        *(_decode_row(row) for row in results.decode),
        "",
        "Prefill, bfloat16: one prompt, beside its products over the card's rate.",
        "",
        "| network | tokens | ours | transformers | ratio | share of the rate |",
        "|---|--:|--:|--:|--:|--:|",
        *(_prefill_row(row) for row in results.prefill),
        "",
        "Attention rows of one layer, all heads, for 1 of 8 streams: tokens/s over those with nobody looking.",
        "",
        "| network | graphs | median | runs |",
        "|---|---|--:|---|",
        *(
            f"| {row.network} | {row.mode} | {sorted(row.ratios)[len(row.ratios) // 2]:.2f} | "
            f"{', '.join(f'{ratio:.2f}' for ratio in row.ratios)} |"
            for row in results.captures
        ),
    ]
    if results.left_out:
        lines += ["", f"Left out for want of time: {'; '.join(results.left_out)}."]
    return "\n".join(lines) + "\n"


def _decode_row(row: Decode) -> str:
    theirs = "-" if row.theirs is None else f"{row.theirs:.0f}"
    ratio = "-" if row.over_theirs is None else f"{row.over_theirs:.1f}x"
    return (
        f"| {row.network} | {row.rows} | {row.mode} | {row.tokens_per_second:.0f} | {theirs} | {ratio} | "
        f"{1e3 * row.step_seconds:.2f} ms | {1e3 * row.floor_seconds:.2f} ms | {row.share_of_bandwidth:.0%} | "
        f"{row.start_seconds:.0f} s |"
    )


def _prefill_row(row: Prefill) -> str:
    theirs = "-" if row.theirs is None else f"{1e3 * row.theirs:.1f} ms"
    ratio = "-" if row.theirs is None else f"{row.theirs / row.seconds:.2f}x"
    return (
        f"| {row.network} | {row.num_tokens} | {1e3 * row.seconds:.1f} ms | {theirs} | {ratio} | "
        f"{row.floor_seconds / row.seconds:.0%} |"
    )
