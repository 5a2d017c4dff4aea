"""Predicts what a thousand replicas would do: policies by load, then a day's rise and fall with an autoscaler and
failures.

    python -m benchmarks.simulation.prediction                       # some three minutes on two cores
    python -m benchmarks.simulation.prediction --replicas 100        # a tenth of it
    python -m benchmarks.simulation.prediction --times times.json    # with step times that were measured (`fit`)

Four of five prompts begin with a prefix of 1024 tokens, of which there are four for each replica; the i-th most popular
is used 1 / i as often as the first; a replica's cache holds 128. Lengths are log-normal.
"""

import argparse
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.comparison import table
from benchmarks.simulation import tables
from benchmarks.simulation.__main__ import NEAR_124M
from benchmarks.simulation.autoscaler import AutoscalingLimits
from benchmarks.simulation.cluster import Cluster, Failures, Setup
from benchmarks.simulation.outcome import Objective, Outcome
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import Lengths, Prefixes, Workload

OBJECTIVE = Objective(time_to_first_token=1.0, time_per_output_token=0.05)
LIMITS = EngineLimits(num_blocks=4096)


@dataclass(frozen=True)
class Case:
    """One simulation: its name, and what it simulates."""

    names: tuple[str, ...]
    setup: Setup
    workload: Workload


def workload(replicas: int, rate: float, seconds: float) -> Workload:
    """Return the workload; `rate` is requests a second for each replica."""
    return Workload(
        rate=rate * replicas,
        seconds=seconds,
        prompts=Lengths(256, 0.8, most=4096),
        outputs=Lengths(128, 0.8, most=1024),
        prefixes=Prefixes(groups=4 * replicas, tokens=1024, share=0.8),
    )


def policies_by_load(
    replicas: int, times: StepTimes, policies: list[str], rates: list[float], seconds: float
) -> list[Case]:
    """Return the same load by each policy, and by the last one while each replica is lost ten times an hour; the
    first third of it warms the caches.
    """
    cases = []
    for rate in rates:
        for policy in policies:
            setup = Setup(replicas, times, LIMITS, policy, warm_up=seconds / 3)
            cases.append(Case((f"{rate:g}", policy), setup, workload(replicas, rate, seconds)))
        lossy = replace(setup, failures=Failures(mean_seconds=360.0, restart_seconds=60.0, notice_seconds=1.0))
        cases.append(Case((f"{rate:g}", f"{policy}, replicas lost"), lossy, workload(replicas, rate, seconds)))
    return cases


def day(replicas: int, times: StepTimes, seconds: float) -> list[Case]:
    """Return a load that rises to its fivefold and falls again: with as many replicas all the time as its peak
    needs, with an autoscaler, and with replicas that are lost. A twentieth of the fleet serves it.
    """
    count = max(4, replicas // 20)
    offered = replace(
        workload(count, 1.0, seconds),
        rate=partial(_rise_and_fall, most=4.0 * count, seconds=seconds),
    )
    fixed = Setup(count, times, LIMITS, "prefix", warm_up=60.0)
    scaled = replace(
        fixed,
        replicas=max(1, count // 4),
        autoscaling=AutoscalingLimits(target=16.0, least=max(1, count // 4), most=2 * count),
        start_seconds=60.0,
    )
    failing = replace(scaled, failures=Failures(mean_seconds=seconds, restart_seconds=60.0))
    return [
        Case(("as many all the time",), fixed, offered),
        Case(("autoscaler, 60 s to start",), scaled, offered),
        Case(("... 300 s to start",), replace(scaled, start_seconds=300.0), offered),
        Case(("... 60 s, each lost once",), failing, offered),
    ]


def _rise_and_fall(now: float, most: float, seconds: float) -> float:
    return most * (0.6 - 0.4 * math.cos(2 * math.pi * now / seconds))


def outcome_of(case: Case) -> tuple[Outcome, float]:
    """Return the outcome and the CPU seconds that it took."""
    started = time.process_time()
    outcome = Cluster(case.setup).run(case.workload.arrivals(case.setup.seed))
    return outcome, time.process_time() - started


def rows_of(cases: list[Case], first: list[str], price: float) -> list[list[str]]:
    """Return the cases side by side, run in as many processes as there are cores."""
    rows = [[*tables.head(OBJECTIVE, first), "replicas, mean / most", "lost", "requests", "simulated in"]]
    with ProcessPoolExecutor(os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()) as pool:
        for case, (outcome, seconds) in zip(cases, pool.map(outcome_of, cases), strict=True):
            most = max([size for _, size in outcome.sizes], default=case.setup.replicas)
            size = f"{outcome.replica_seconds / case.workload.seconds:.0f} / {most}"
            own = [size, str(outcome.num_replicas_lost), str(outcome.num_arrived), f"{seconds:.0f} s"]
            rows.append([*tables.row(outcome, OBJECTIVE, price, case.names), *own])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--times", type=Path, metavar="FILE", help="None is near the 124M checkpoint on two cores")
    parser.add_argument("--policies", nargs="+", default=["random", "power-of-two", "least-loaded", "prefix"])
    parser.add_argument("--rates", type=float, nargs="+", default=[3.0, 8.0], help="requests a second, each replica")
    parser.add_argument("--seconds", type=float, default=24.0, help="of requests for the first table")
    parser.add_argument("--day-seconds", type=float, default=1800.0, help="... and for the second")
    parser.add_argument("--price", type=float, default=1.0, help="of a replica's hour")
    options = parser.parse_args()
    times = NEAR_124M if options.times is None else StepTimes.load(options.times)
    print(f"{options.replicas} replicas, {times.to_json()}, a replica's hour at {options.price:g}\n")
    cases = policies_by_load(options.replicas, times, options.policies, options.rates, options.seconds)
    print(table(rows_of(cases, ["requests/s each", "policy"], options.price)), flush=True)
    print(f"\n{options.day_seconds:g} s in which the load rises to its fivefold and falls again\n")
    print(table(rows_of(day(options.replicas, times, options.day_seconds), ["fleet"], options.price)), flush=True)


if __name__ == "__main__":
    main()
