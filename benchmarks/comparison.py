"""Comparison of several engines' figures from the same turns, independent of their source."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.load import Timeline, percentile

T = TypeVar("T")

OURS = "lightwell"
"""The name of our engine. Names of its other configurations begin with it; those are not peers."""


def machine() -> str:
    """Return the processor, its cores and Python's version, for the head of a report."""
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def in_order(subjects: Sequence[T], turn: int) -> list[T]:
    """Return the subjects in the order of a turn: each turn begins with another one."""
    first = turn % len(subjects)
    return [*subjects[first:], *subjects[:first]]


@dataclass(frozen=True)
class Ratio:
    """Ours over a peer's."""

    value: float
    peer: str

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.peer})"


def is_peer(name: str) -> bool:
    return not name.startswith(OURS)


def ratio(turns: Mapping[str, Sequence[float]], to: str) -> float:
    """Return the median over the turns of our figure divided by another engine's. Variations of the machine's speed
    affect both alike.
    """
    pairs = zip(turns[OURS], turns[to], strict=True)
    return statistics.median(_quotient(mine, other) for mine, other in pairs)


def ratio_to_best(turns: Mapping[str, Sequence[float]], *, higher_is_better: bool) -> Ratio | None:
    """Return the `ratio` to the peer with the best median, or None if there is no peer or no figure of ours.

    `turns` holds a figure of each turn for each engine.
    """
    medians = {name: statistics.median(values) for name, values in turns.items() if is_peer(name)}
    if OURS not in turns or not medians:
        return None
    peer = (max if higher_is_better else min)(medians, key=medians.__getitem__)
    return Ratio(ratio(turns, peer), peer)


def _quotient(mine: float, other: float) -> float:
    if other:
        return mine / other
    return float("inf") if mine else float("nan")


def shown(value: object) -> str:
    """Return a table cell; a dash if there is no value."""
    return "-" if value is None else str(value)


TIME_HEADS = ("TTFT p50 / p90 / p99 ms", "TPOT", "ITL", "E2E")


def time_cells(lines: Sequence[Timeline]) -> list[str]:
    """Return the cells below TIME_HEADS: p50 / p90 / p99 of the times of these answers."""
    times = (
        [line.time_to_first_token for line in lines],
        [line.time_per_output_token for line in lines],
        [gap for line in lines for gap in line.gaps],
        [line.latency for line in lines],
    )
    return [
        " / ".join(f"{1e3 * percentile(seconds, fraction):.3g}" for fraction in (0.5, 0.9, 0.99)) for seconds in times
    ]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return these rows as a Markdown table; the first row is the head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
