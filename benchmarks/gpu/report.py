"""The results by row, as a readable table and as plain data."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.bars import BARS, BY_KEY, Bar


@dataclass(frozen=True)
class Machine:
    """The card, and its limits as measured."""

    name: str
    torch: str
    transformers: str
    bytes_per_second: float
    operations_per_second: float


@dataclass(frozen=True)
class Measured:
    value: float | None
    """The number, or None if measuring it ended in an error, or if it cannot be measured here."""
    detail: str
    is_error: bool = False

    def is_met(self, bar: Bar) -> bool | None:
        """Return whether the bar is met, or None if that is not known."""
        if self.is_error:
            return False
        return None if self.value is None else bar.is_met(self.value)


@dataclass(frozen=True)
class Decode:
    """Decoding of one network with a number of sequences at once."""

    network: str
    rows: int
    tokens_per_second: float
    """Tokens a second through our engine: scheduling and sampling included."""
    step_seconds: float
    """Seconds of a step's graph on the device, by itself."""
    floor_seconds: float
    """Seconds to read weights and cache at the card's bandwidth."""
    theirs: float | None
    """Tokens a second of `transformers.generate`."""

    @property
    def share(self) -> float:
        """Return the engine's tokens per second divided by the floor's."""
        return self.tokens_per_second * self.floor_seconds / self.rows


@dataclass
class Results:
    machine: Machine
    rows: dict[str, Measured] = field(default_factory=dict)
    """The results by the keys of the bars."""
    decode: list[Decode] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def put(self, key: str, value: float | None, detail: str = "") -> None:
        assert key in BY_KEY
        self.rows[key] = Measured(value, detail)

    def put_error(self, key: str, error: Exception) -> None:
        line = " ".join(str(error).split("\n", 1)[0].split())
        self.rows[key] = Measured(None, f"{type(error).__name__}: {line}", is_error=True)

    @property
    def has_errors(self) -> bool:
        """Return whether a number was found wrong, or something could not be measured for an error."""
        return any(
            each.is_error or (BY_KEY[key].is_of_numbers and each.is_met(BY_KEY[key]) is False)
            for key, each in self.rows.items()
        )

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["decode"] = [asdict(each) | {"share": each.share} for each in self.decode]
        plain["rows"] = [
            {"key": bar.key, "check": bar.check, "asked": bar.asked, "met": found.is_met(bar)} | asdict(found)
            for bar, found in ((bar, self.rows.get(bar.key)) for bar in BARS)
            if found is not None
        ]
        return plain


def keep_other_part(results: Results, part: str, folder: Path) -> None:
    """Add the results of an earlier run of the other part from the folder, if it ran on the same kind of card."""
    path = folder / "results.json"
    if not path.is_file():
        return
    before = json.loads(path.read_text())
    if before["machine"]["name"] != results.machine.name:
        return
    kept = [row for row in before["rows"] if row["key"] in BY_KEY and BY_KEY[row["key"]].part != part]
    results.rows |= {row["key"]: Measured(row["value"], row["detail"], row["is_error"]) for row in kept}
    if part == "numbers":
        results.decode = [Decode(**{k: v for k, v in row.items() if k != "share"}) for row in before["decode"]]


def table(results: Results) -> str:
    machine = results.machine
    lines = [
        f"# {machine.name}",
        "",
        f"torch {machine.torch}, transformers {machine.transformers}; read {machine.bytes_per_second / 1e9:.0f} GB/s, "
        f"bfloat16 products {machine.operations_per_second / 1e12:.0f} TFLOP/s; {results.seconds:.0f} s in all.",
        "",
        "| check | asked | measured | met |",
        "|---|---|---|---|",
        *(_row(bar, results.rows.get(bar.key)) for bar in BARS),
    ]
    if results.decode:
        lines += [
            "",
            "Decode: tokens/s through the engine, beside weights and cache over the bandwidth; a graph by itself.",
            "",
            "| network | sequences | tokens/s | transformers | step of the engine | graph alone | floor | share |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
            *map(_decode_row, results.decode),
        ]
    if results.left_out:
        lines += ["", f"Left out for want of time: {'; '.join(results.left_out)}."]
    return "\n".join(lines) + "\n"


def _row(bar: Bar, found: Measured | None) -> str:
    if found is None:
        return f"| {bar.check} | {bar.asked} | not measured | - |"
    shown = [] if found.value is None else [bar.show(found.value)]
    met = {True: "yes", False: "NO", None: "-"}[found.is_met(bar)]
    detail = found.detail.replace("|", "/").replace("\n", " ")
    return f"| {bar.check} | {bar.asked} | {'; '.join([*shown, *([detail] if detail else [])])} | {met} |"


def _decode_row(row: Decode) -> str:
    theirs = "-" if row.theirs is None else f"{row.theirs:.0f} ({row.tokens_per_second / row.theirs:.1f}x)"
    return (
        f"| {row.network} | {row.rows} | {row.tokens_per_second:.0f} | {theirs} | "
        f"{1e3 * row.rows / row.tokens_per_second:.2f} ms | {1e3 * row.step_seconds:.2f} ms | "
        f"{1e3 * row.floor_seconds:.2f} ms | {row.share:.0%} |"
    )
