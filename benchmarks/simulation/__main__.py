"""Simulates one fleet under one load, and prints what its clients would see and what it would cost.

    python -m benchmarks.simulation --replicas 40 --rate 150 --policy prefix least-loaded --price 2.5
    python -m benchmarks.simulation --times times.json --autoscale-target 16 --mean-seconds-to-failure 86400

Step times are those of `--times`, which `python -m benchmarks.simulation.fit --out FILE` measures.
"""

import argparse
from pathlib import Path

from benchmarks.comparison import table
from benchmarks.simulation import tables
from benchmarks.simulation.autoscaler import AutoscalingLimits
from benchmarks.simulation.cluster import AdmissionLimits, Cluster, Failures, Setup
from benchmarks.simulation.outcome import Objective
from benchmarks.simulation.routers import POLICIES
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import Lengths, Prefixes, Workload

NEAR_124M = StepTimes(base=0.015, per_prompt_token=0.0001, per_sequence=0.0003)
"""Step times near those of the 124M checkpoint on two cores of a CPU."""


def parser_of_fleet() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--replicas", type=int, default=4)
    add("--policy", nargs="+", default=["prefix"], choices=list(POLICIES))
    add("--times", type=Path, metavar="FILE", help="step times as JSON; None is near the 124M checkpoint on two cores")
    add("--rate", type=float, default=10.0, help="requests a second, all together")
    add("--burstiness", type=float, default=1.0, help="squared variation of the gaps; 1 is Poisson")
    add("--seconds", type=float, default=120.0)
    add("--warm-up", type=float, default=20.0, help="seconds that do not count in latencies and gaps between tokens")
    add("--prompt", type=float, nargs=2, default=[256, 0.8], metavar=("MEAN", "SPREAD"), help="tokens, log-normal")
    add("--output", type=float, nargs=2, default=[128, 0.8], metavar=("MEAN", "SPREAD"), help="tokens, log-normal")
    add("--groups", type=int, default=0, help="of prompts that begin alike; i-th most popular: 1 / i**zipf")
    add("--prefix-tokens", type=int, default=1024, help="that they share")
    add("--zipf", type=float, default=1.0)
    add("--max-num-seqs", type=int, default=64)
    add("--num-blocks", type=int, default=4096, help="of each replica's KV cache")
    add("--block-size", type=int, default=32)
    add("--autoscale-target", type=float, help="unfinished requests of each replica that the autoscaler aims at")
    add("--most-replicas", type=int, default=100)
    add("--start-seconds", type=float, default=60.0, help="until a new replica takes requests")
    add("--mean-seconds-to-failure", type=float)
    add("--restart-seconds", type=float, default=60.0)
    add("--price", type=float, default=1.0, help="of a replica's hour")
    add("--objective-ms", type=float, nargs=2, default=[500, 50], metavar=("TTFT", "TPOT"), help="what is promised")
    add("--seed", type=int, default=0)
    return parser


def setup_of(options: argparse.Namespace, policy: str) -> Setup:
    scaling, failures = None, None
    if options.autoscale_target:
        scaling = AutoscalingLimits(options.autoscale_target, least=options.replicas, most=options.most_replicas)
    if options.mean_seconds_to_failure:
        failures = Failures(options.mean_seconds_to_failure, options.restart_seconds)
    return Setup(
        replicas=options.replicas,
        times=NEAR_124M if options.times is None else StepTimes.load(options.times),
        limits=EngineLimits(
            max_num_seqs=options.max_num_seqs, num_blocks=options.num_blocks, block_size=options.block_size
        ),
        policy=policy,
        admission=AdmissionLimits(),
        autoscaling=scaling,
        start_seconds=options.start_seconds,
        failures=failures,
        warm_up=options.warm_up,
        seed=options.seed,
    )


def main() -> None:
    parser = parser_of_fleet()
    options = parser.parse_args()
    try:
        print(table(rows_of(options)))
    except (ValueError, OSError) as error:
        parser.error(str(error))


def rows_of(options: argparse.Namespace) -> list[list[str]]:
    """Return a row of each policy, under the head. Raises ValueError for settings that make no sense, OSError of the
    file.
    """
    longest = options.num_blocks * options.block_size // 4
    workload = Workload(
        rate=options.rate,
        seconds=options.seconds,
        prompts=Lengths(options.prompt[0], options.prompt[1], most=longest),
        outputs=Lengths(options.output[0], options.output[1], most=longest),
        prefixes=Prefixes(options.groups, options.prefix_tokens, options.zipf),
        burstiness=options.burstiness,
    )
    objective = Objective(options.objective_ms[0] / 1e3, options.objective_ms[1] / 1e3)
    rows = [tables.head(objective, ["policy"])]
    for policy in options.policy:
        outcome = Cluster(setup_of(options, policy)).run(workload.arrivals(options.seed))
        rows.append(tables.row(outcome, objective, options.price, [policy]))
    return rows


if __name__ == "__main__":
    main()
