"""Comparison of several engines' figures from the same turns, independent of their source."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load import percentile

OURS = "lightwell"
"""The name of our engine. Names of its other configurations begin with it; those are not peers."""


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


def milliseconds(seconds: Sequence[float]) -> str:
    """Return the p50 / p90 / p99 of these times."""
    return " / ".join(f"{1e3 * percentile(seconds, fraction):.3g}" for fraction in (0.5, 0.9, 0.99))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return these rows as a Markdown table; the first row is the head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
