"""Formats the figures of `benchmarks.scaling` as tables. It measures nothing."""

import os
from collections.abc import Sequence

from benchmarks.comparison import table
from benchmarks.fleet import Loss, Run
from benchmarks.load import percentile
from benchmarks.recorded_load import Record
from benchmarks.timed_server import BLOCK_SIZE

TIMES = "p50 / p99 ms"


def of_saturation(runs: Sequence[Run], seconds: float) -> str:
    """Return rates between the start of all clients and the end of the first; efficiency is against the first run's
    worker.
    """
    head = ["workers", "tokens/s", "efficiency", "busiest / mean", f"TTFT {TIMES}", "requests + steps, messages/s"]
    rows = [[*head, "API process, cores", "µs of it a token, requests included", "workers, cores", "client, cores"]]
    rates = [run.rate_between(0.3 * seconds, seconds) for run in runs]
    for run, rate in zip(runs, rates, strict=True):
        rows.append([
            str(run.fleet.num_workers),
            f"{rate:.0f}",
            f"{rate / rates[0] * runs[0].fleet.num_workers / run.fleet.num_workers:.3f}",
            f"{run.imbalance():.3f}",
            times_to_first_token(run.answered),
            f"{run.num_messages / run.seconds:.0f}",
            f"{run.api_seconds / run.seconds:.2f}",
            f"{1e6 * run.api_seconds / max(1, run.num_output_tokens):.0f}",
            f"{run.worker_seconds / run.seconds:.2f}",
            f"{run.client_seconds / run.seconds:.2f}",
        ])  # fmt: skip
    return table(rows)


def costs_of_api(run: Run, short: Run) -> str:
    """Return what a request and a token cost the API process, from two runs of different answers: a line through
    both.
    """
    requests, tokens = len(run.records), run.num_output_tokens
    others, few = len(short.records), short.num_output_tokens
    of_token = (run.api_seconds * others - short.api_seconds * requests) / (tokens * others - few * requests)
    of_request = (short.api_seconds - few * of_token) / others
    return (
        f"With answers of one token {others / short.seconds:.0f} requests/s. A request takes {1e3 * of_request:.2f} ms "
        f"of the API process, and each token {1e6 * of_token:.0f} µs; this machine has {os.cpu_count()} cores for all."
    )


def of_latency(runs: Sequence[Run]) -> str:
    """Return the latencies at the same load for each worker."""
    rows = [["workers", "requests/s", f"TTFT {TIMES}", f"TPOT {TIMES}", f"E2E {TIMES}", "busiest / mean", "failed"]]
    for run in runs:
        rows.append([
            str(run.fleet.num_workers),
            f"{len(run.records) / max(record.arrival for record in run.records):.1f}",
            times_to_first_token(run.answered),
            milliseconds([record.time_per_output_token for record in run.answered]),
            milliseconds([record.latency for record in run.answered]),
            f"{run.imbalance():.3f}",
            failures(run),
        ])  # fmt: skip
    return table(rows)


def of_routing(runs: Sequence[Run]) -> str:
    """Return the same requests by each way to choose a worker."""
    rows = [["routing", "hit rate", "expected", f"TTFT {TIMES}", f"E2E {TIMES}", "busiest / mean", "failed"]]
    for run in runs:
        expected = run.counted.get("lightwell_routed_prefix_tokens_total", 0.0)
        rows.append([
            run.fleet.routing,
            f"{run.hit_rate:.3f}",
            f"{expected / sum(record.prompt_tokens for record in run.records):.3f}",
            times_to_first_token(run.answered),
            milliseconds([record.latency for record in run.answered]),
            f"{run.imbalance():.3f}",
            failures(run),
        ])  # fmt: skip
    best = best_hit_rate(runs[0].records)
    return f"{table(rows)}\n\nOne worker with room for all of them, asked one after the other, would find {best:.3f}."


def of_loss(run: Run, loss: Loss) -> str:
    """Return what happened when a worker was killed."""
    up, even = loss.up, loss.balanced(run)
    if up is None:
        return f"Worker {loss.lost}, killed after {loss.killed:.1f} s, did not come back within {run.seconds:.0f} s."
    spans = [
        ("before", [each for each in run.answered if each.arrival < loss.killed]),
        ("without it", [each for each in run.answered if loss.killed <= each.arrival < up]),
        ("since", [each for each in run.answered if each.arrival >= up]),
    ]
    rows = [
        ["requests sent", str(len(run.records))],
        ["failed", failures(run)],
        ["... that were sent after it was killed", str(sum(each.arrival > loss.killed for each in run.failed))],
        ["under way on the other workers when it was killed, and answered", str(loss.elsewhere(run))],
        ["given to the other workers at any time, and failed", str(failed_elsewhere(run, loss))],
        ["the worker takes requests again after", f"{up - loss.killed:.1f} s"],
        ["it has its share of what is under way after", "never" if even is None else f"{even - loss.killed:.1f} s"],
        *([f"TTFT {TIMES}, {name} ({len(records)})", times_to_first_token(records)] for name, records in spans),
    ]
    return table([[f"one of {run.fleet.num_workers} workers killed", ""], *rows])


def failed_elsewhere(run: Run, loss: Loss) -> int:
    """Return the number of requests that a worker which was not killed had and did not answer. A failed request does
    not say which worker had it, but the server counts what it gives to each worker, and an answer names the worker
    that wrote it.
    """
    others = [worker for worker in range(run.fleet.num_workers) if worker != loss.lost]
    given = sum(run.counted[f'lightwell_worker_requests_total{{worker="{worker}"}}'] for worker in others)
    return round(given) - sum(record.worker in others for record in run.answered)


def times_to_first_token(records: Sequence[Record]) -> str:
    return milliseconds([record.ttft for record in records if record.ttft is not None])


def failures(run: Run) -> str:
    """Return how many failed, and the code that most of them have."""
    return str(run.failures.total()) + "".join(f"; {count} {code}" for code, count in run.failures.most_common(3))


def best_hit_rate(records: Sequence[Record]) -> float:
    """Return the hit rate if each group's first request alone had to compute the prefix, of which whole blocks are
    kept.
    """
    seen: set[int] = set()
    hits = 0
    for record in sorted(records, key=lambda each: each.arrival):
        if record.group is None:
            continue
        if record.group in seen:
            hits += record.prefix_tokens // BLOCK_SIZE * BLOCK_SIZE
        seen.add(record.group)
    return hits / sum(record.prompt_tokens for record in records)


def milliseconds(seconds: Sequence[float]) -> str:
    """Return the p50 / p99 of these times; nan for no values."""
    return " / ".join(f"{1e3 * percentile(seconds, fraction):.0f}" for fraction in (0.5, 0.99))
