"""Measure a closed loop: each of N clients sends its next request when the previous one is answered."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.comparison import OURS, TIME_HEADS, in_order, is_peer, ratio, ratio_to_best, shown, table, time_cells
from benchmarks.load import percentile
from benchmarks.peers.engines import OURS_BFLOAT16, STORED
from benchmarks.subjects import OUTPUT_TOKENS, Figures, Subject


@dataclass
class Point:
    """All turns of one number of clients."""

    concurrency: int
    figures: dict[str, list[Figures]] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, list[float]]:
        return {name: [turn.tokens_per_second for turn in turns] for name, turns in self.figures.items()}

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    @property
    def streamed(self) -> dict[str, list[Figures]]:
        """Return the figures of the subjects that stream."""
        return {name: turns for name, turns in self.figures.items() if all(turn.timelines for turn in turns)}


def measure(
    subjects: Sequence[Subject], concurrencies: Sequence[int], turns: int, requests: int, prompt_tokens: int
) -> list[Point]:
    """Measure all points, each with `turns` turns after one to warm up; the order of subjects changes from turn to
    turn.
    """
    points = [Point(concurrency, {subject.name: [] for subject in subjects}) for concurrency in concurrencies]
    for turn in range(-1, turns):
        for point in points:
            for subject in in_order(subjects, turn):
                count = point.concurrency * requests if point.concurrency > 1 else 2 * requests
                seed = (turn + 1) * 1000 + point.concurrency
                count = count if turn >= 0 else point.concurrency
                found = subject.measure(point.concurrency, count, seed, prompt_tokens)
                if turn >= 0:
                    point.figures[subject.name].append(found)
    return points


def capacity(points: Sequence[Point]) -> float:
    """Return the requests a second of the engine that answered most, at the point where it did."""
    return max(point.rate(name) for point in points for name in point.streamed) / OUTPUT_TOKENS


def ceilings(folder: Path, dtype: str, concurrencies: Sequence[int], prompt_tokens: int) -> dict[int, float]:
    """Return the tokens per second if only the products took time: prompts in one pass, then one step per token.
    The result is empty for int8 and for checkpoints with quantised weights.
    """
    if dtype in ("int8", STORED):
        return {}
    import torch

    from benchmarks.ceiling import Products
    from lightwell.model.checkpoint.registry import read_config

    products = Products(read_config(folder), getattr(torch, dtype))
    found = {}
    for concurrency in concurrencies:
        prompts = products.step_seconds(concurrency * prompt_tokens, concurrency)
        steps = (OUTPUT_TOKENS - 1) * products.step_seconds(concurrency, concurrency)
        found[concurrency] = concurrency * OUTPUT_TOKENS / (prompts + steps)
    return found


def table_of_rates(title: str, points: Sequence[Point], ceiling: dict[int, float]) -> str:
    """Return a table of output tokens a second, medians of the turns. `ceiling` comes from `ceilings`."""
    names = list(points[0].figures)
    peers = [name for name in names if is_peer(name)]
    to_each = [f"ours / {name}" for name in peers]
    rows = [["tokens/s", "clients", *names, *to_each, "ours / best peer", "products alone", "ours / that"]]
    if OURS_BFLOAT16 in names:
        rows[0].append("ours / our bfloat16")
    for point in points:
        best = ratio_to_best(point.rates, higher_is_better=True)
        row = [title, str(point.concurrency), *(f"{point.rate(name):.0f}" for name in names)]
        row += [f"{ratio(point.rates, name):.2f}" if OURS in names else "-" for name in peers]
        row.append(shown(best))
        limit = ceiling.get(point.concurrency)
        row.append("-" if limit is None else f"{limit:.0f}")
        row.append("-" if limit is None or OURS not in names else f"{point.rate(OURS) / limit:.2f}")
        if OURS_BFLOAT16 in names:
            row.append(f"{ratio(point.rates, OURS_BFLOAT16):.2f}" if OURS in names else "-")
        rows.append(row)
    return table(rows)


def table_of_times(title: str, points: Sequence[Point]) -> str:
    """Return a table of milliseconds, of all requests of all turns. The last two columns of our row are our times
    over the best peer's.
    """
    of_best = ("TTFT p50, ours / best peer", "ITL p99, ours / best peer")
    rows = [[title, "clients", "engine", *TIME_HEADS, *of_best]]
    for point in points:
        for name, turns in point.streamed.items():
            lines = [timeline for figures in turns for timeline in figures.timelines]
            ratios = time_ratios(point) if name == OURS else ("", "")
            rows.append(["", str(point.concurrency), name, *time_cells(lines), *ratios])
    return table(rows)


def time_ratios(point: Point) -> tuple[str, str]:
    """Return the ratios of the median TTFT and of the 99th percentile of ITL, ours over the best peer's."""
    first, late = dict[str, list[float]](), dict[str, list[float]]()
    for name, turns in point.streamed.items():
        first[name] = [percentile([line.time_to_first_token for line in turn.timelines], 0.5) for turn in turns]
        late[name] = [percentile([gap for line in turn.timelines for gap in line.gaps], 0.99) for turn in turns]
    return shown(ratio_to_best(first, higher_is_better=False)), shown(ratio_to_best(late, higher_is_better=False))
