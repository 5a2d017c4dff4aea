"""Outcomes of simulations side by side, as rows of a table."""

import math
from collections.abc import Sequence

from benchmarks.simulation.outcome import Objective, Outcome


def head(objective: Objective, first: Sequence[str] = ()) -> list[str]:
    """Return the head of the rows that `row` makes, after `first` columns of the caller's own."""
    promised = f"TTFT {1e3 * objective.time_to_first_token:.0f} ms, TPOT {1e3 * objective.time_per_output_token:.0f} ms"
    times = ["TTFT p50 / p90 / p99 ms", "ITL p50 / p99 ms", "E2E p50 / p90 / p99 s"]
    return [*first, *times, f"as promised ({promised})", "tokens/s", "hit rate", "busiest / mean", "busy", "429", "503",
            "cost of 1M tokens", "... as promised"]  # fmt: skip


def row(outcome: Outcome, objective: Objective, price: float, first: Sequence[str] = ()) -> list[str]:
    """Return a row; `price` is that of a replica's hour; the last column charges all of it to the tokens of requests
    answered as promised.
    """
    promised = outcome.cost_per_million(price, objective)
    return [
        *first,
        " / ".join(f"{1e3 * outcome.ttft(fraction):.0f}" for fraction in (0.5, 0.9, 0.99)),
        " / ".join(f"{1e3 * outcome.gap(fraction):.0f}" for fraction in (0.5, 0.99)),
        " / ".join(f"{outcome.latency(fraction):.2f}" for fraction in (0.5, 0.9, 0.99)),
        f"{100 * outcome.goodput(objective):.1f} %",
        f"{outcome.tokens_per_second:.0f}",
        f"{outcome.hit_rate:.3f}",
        f"{outcome.imbalance:.2f}",
        f"{100 * outcome.utilisation:.0f} %",
        f"{100 * outcome.share_of_status('429'):.2f} %",
        f"{100 * outcome.share_of_status('503'):.2f} %",
        f"{outcome.cost_per_million(price):.3f}",
        "-" if math.isnan(promised) else f"{promised:.3f}",
    ]
