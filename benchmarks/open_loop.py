"""Measure an open loop: requests arrive at random times (Poisson arrivals), independent of earlier answers.

Rates are shares of the best engine's rate in the closed loop of the same run, and every engine gets the same prompts at
the same times. Goodput (Zhong et al. 2024, arXiv:2401.09670) is the number of requests per second that are answered
within both limits, TTFT and TPOT; as in `vllm bench serve`, over the time up to the last answer.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.comparison import OURS, TIME_HEADS, in_order, ratio_to_best, shown, table, time_cells
from benchmarks.load import Load, Timeline, open_loop, poisson_arrivals
from benchmarks.subjects import Served


@dataclass(frozen=True)
class Limits:
    """Latency limits of a request, in seconds."""

    time_to_first_token: float
    time_per_output_token: float

    def kept(self, timeline: Timeline) -> bool:
        return (
            timeline.time_to_first_token <= self.time_to_first_token
            and timeline.time_per_output_token <= self.time_per_output_token
        )

    def goodput(self, load: Load) -> float:
        """Return the requests a second that were answered within the limits."""
        return sum(map(self.kept, load.timelines)) / load.seconds


@dataclass
class Rate:
    share: float
    requests_per_second: float
    loads: dict[str, list[Load]] = field(default_factory=dict)


def measure(
    subjects: Sequence[Served], shares: Sequence[float], capacity: float, turns: int, seconds: float
) -> list[Rate]:
    """Measure each share of `capacity` (requests a second) for `seconds` a turn. The order of subjects changes from
    turn to turn.
    """
    rates = [Rate(share, share * capacity, {subject.name: [] for subject in subjects}) for share in shares]
    for turn in range(turns):
        for rate in rates:
            count = max(1, round(rate.requests_per_second * seconds))
            seed = 500_000 + turn * 1000 + round(100 * rate.share)
            arrivals = poisson_arrivals(count, rate.requests_per_second, seed)
            for subject in in_order(subjects, turn):
                load = subject.drive(subject.bodies(count, seed), partial(open_loop, arrivals=arrivals))
                rate.loads[subject.name].append(load)
    return rates


def table_of_goodput(title: str, rates: Sequence[Rate], limits: Limits) -> str:
    """Return the table. Rates are medians of the turns; times, in milliseconds, are of all requests of all turns."""
    slo = f"TTFT {1e3 * limits.time_to_first_token:.0f} ms, TPOT {1e3 * limits.time_per_output_token:.0f} ms"
    head = ["share", "requests/s", "engine", "answered/s", f"goodput/s ({slo})", "ours / best peer", "tokens/s"]
    rows = [[title, *head, *TIME_HEADS, "not answered"]]
    for rate in rates:
        goodputs = {name: [limits.goodput(load) for load in loads] for name, loads in rate.loads.items()}
        for name, loads in rate.loads.items():
            lines = [timeline for load in loads for timeline in load.timelines]
            rows.append([
                "",
                f"{rate.share:.2f}",
                f"{rate.requests_per_second:.1f}",
                name,
                f"{statistics.median(len(load.timelines) / load.seconds for load in loads):.2f}",
                f"{statistics.median(goodputs[name]):.2f}",
                shown(ratio_to_best(goodputs, higher_is_better=True)) if name == OURS else "",
                f"{statistics.median(load.tokens_per_second for load in loads):.0f}",
                *time_cells(lines),
                str(sum(len(load.unanswered) for load in loads)),
            ])  # fmt: skip
    return table(rows)
