"""Measures one, two and four workers behind one server: throughput, balance, latency, routing by prefix, and a worker
killed.

The engines are timed stand-ins (`benchmarks.timed_engine`), all else is the real server, so few cores can host several
workers. What the API process itself takes is measured too, and where it is the limit.

    python -m benchmarks.scaling            # four minutes
    python -m benchmarks.scaling --quick    # one
    python -m benchmarks.scaling --record runs.jsonl    # what became of each request, for a replay
"""

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import scaling_tables
from benchmarks.fleet import Loss, Run, measure, words_of_workers, worker_pids
from benchmarks.recorded_load import (
    Record,
    append_run,
    endless_requests,
    grouped_requests,
    plain_requests,
    send_closed,
    send_open,
)
from benchmarks.routing_policies import POLICIES
from benchmarks.simulation.step_times import StepTimes
from benchmarks.timed_server import Fleet, timed_server
from tests.support.processes import Server
from tests.support.wire import scrape

USUAL = StepTimes(base=0.015, per_prompt_token=0.0001, per_sequence=0.0003)
"""Step times near those of the 124M checkpoint on two cores."""
FAST = StepTimes(base=0.002, per_prompt_token=0.000002, per_sequence=0.00002)
"""Step times so short that the API process has most to do."""
PROMPT, OUTPUT = 128, 64
CLIENTS = 32
"""Clients of each worker, at saturation."""
SHARE = 0.6
"""The share of what one worker answers at saturation, offered to each in the open loop."""
PREFIXES = {"groups": 32, "prefix_tokens": 1024, "own_tokens": 32, "max_tokens": 16}
PREFIX_RATE = 6.0
"""Requests a second for each worker: about what a worker can do that finds no prefix."""
PREFIX_BLOCKS = 400
"""Blocks of each worker's cache: a third of the prefixes fit."""
TABLES = ("scale", "limit", "routing", "loss")


@dataclass
class Bench:
    """What is measured, for how long, and what was found."""

    workers: list[int]
    policies: list[str]
    seconds: float
    record: Path | None

    def keep(self, run: Run) -> Run:
        """Write the run to the record file, if there is one."""
        if self.record is not None:
            append_run(self.record, run.as_data(), run.records)
        return run


@contextmanager
def warm(fleet: Fleet) -> Iterator[tuple[Server, dict[str, int]]]:
    """Start a server that has answered. Return it and the words of its workers."""
    with timed_server(fleet) as server:
        words = words_of_workers(server, fleet)
        few = plain_requests(8 * fleet.num_workers, 99, prompt_tokens=8, max_tokens=4, rate=50)
        measure("warm-up", fleet, server, send_open(server.host, server.port, few))
        yield server, words


def saturate(bench: Bench, server: Server, fleet: Fleet, words: dict[str, int]) -> Run:
    """Run as many clients for each worker as keep it busy."""
    requests = endless_requests(fleet.num_workers, prompt_tokens=PROMPT, max_tokens=OUTPUT)
    clients = CLIENTS * fleet.num_workers
    load = send_closed(server.host, server.port, requests, clients, bench.seconds, words)
    return bench.keep(measure("saturation", fleet, server, load))


def offer(bench: Bench, server: Server, fleet: Fleet, words: dict[str, int], rate: float) -> Run:
    """Send `rate` requests a second for each worker, whatever becomes of them."""
    total = rate * fleet.num_workers
    requests = plain_requests(round(total * bench.seconds), 7, prompt_tokens=PROMPT, max_tokens=OUTPUT, rate=total)
    return bench.keep(measure("open loop", fleet, server, send_open(server.host, server.port, requests, words)))


def scale(bench: Bench) -> tuple[list[Run], list[Run], float]:
    """Measure each number of workers at saturation, and at the same load for each worker. Return also that load, in
    requests a second.
    """
    closed, opened = [], []
    rate = 0.0
    for num in bench.workers:
        with warm(Fleet(num, USUAL)) as (server, words):
            closed.append(saturate(bench, server, Fleet(num, USUAL), words))
            rate = rate or SHARE * closed[0].rate_between(0.3 * bench.seconds, bench.seconds) / OUTPUT / num
            opened.append(offer(bench, server, Fleet(num, USUAL), words, rate))
    return closed, opened, rate


def limit_of_api(bench: Bench) -> tuple[list[Run], Run]:
    """Measure workers so fast that the API process has more to do than they; and the last of these with answers of
    one token, to separate what a request costs from what a token does.
    """
    runs = []
    for num in bench.workers:
        fleet = Fleet(num, FAST)
        with warm(fleet) as (server, words):
            runs.append(saturate(bench, server, fleet, words))
            if num == bench.workers[-1]:
                requests = endless_requests(5, prompt_tokens=PROMPT, max_tokens=1)
                load = send_closed(server.host, server.port, requests, CLIENTS, bench.seconds / 2, words)
                short = bench.keep(measure("answers of one token", fleet, server, load))
    return runs, short


def route(bench: Bench) -> list[Run]:
    """Measure prompts that begin with a few long prefixes, by each way to choose a worker."""
    runs = []
    rate = PREFIX_RATE * bench.workers[-1]
    requests = grouped_requests(round(rate * bench.seconds), 3, **PREFIXES, rate=rate)
    for policy in bench.policies:
        fleet = Fleet(bench.workers[-1], USUAL, num_blocks=PREFIX_BLOCKS, routing=policy)
        with warm(fleet) as (server, words):
            load = send_open(server.host, server.port, requests, words)
            runs.append(bench.keep(measure(f"prefixes, {policy}", fleet, server, load)))
    return runs


def lose_a_worker(bench: Bench, rate: float) -> tuple[Run, Loss]:
    """Measure a steady load, a quarter of the way into which one worker is killed."""
    fleet, loss = Fleet(bench.workers[-1], USUAL), Loss()
    seconds = 2 * bench.seconds
    total = rate * fleet.num_workers
    requests = plain_requests(round(total * seconds), 11, prompt_tokens=PROMPT, max_tokens=OUTPUT, rate=total)
    with warm(fleet) as (server, words):

        async def strike() -> None:
            started = time.perf_counter()
            await asyncio.sleep(seconds / 4)
            loss.killed = time.perf_counter() - started
            os.kill(worker_pids(server)[0], signal.SIGKILL)
            while loss.up is None:
                await asyncio.sleep(0.05)
                values = await scrape(server.host, server.port)
                loss.watch(time.perf_counter() - started, values, fleet.num_workers)

        async def load() -> list[Record]:
            striking = asyncio.create_task(strike())
            records = await send_open(server.host, server.port, requests, words)
            striking.cancel()
            return records

        run = measure("a worker killed", fleet, server, load())
        run.loss = loss
        return bench.keep(run), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--policies", nargs="+", default=["prefix", "least-loaded", "random"], choices=list(POLICIES))
    parser.add_argument("--tables", nargs="+", choices=TABLES, help="all; without limit if quick")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load; twice that where a worker is killed")
    parser.add_argument("--quick", action="store_true", help="one and two workers, 2.5 s")
    parser.add_argument("--record", type=Path, metavar="FILE", help="what became of each request, a JSON object a line")
    options = parser.parse_args()
    bench = Bench(options.workers, options.policies, options.seconds, options.record)
    tables = options.tables or TABLES
    if options.quick:
        bench = Bench([1, 2], ["prefix", "least-loaded"], 2.5, options.record)
        tables = options.tables or [name for name in TABLES if name != "limit"]
    rate = 0.0
    if "scale" in tables or "loss" in tables:
        closed, opened, rate = scale(bench)
        print(f"At saturation, {CLIENTS} clients for each worker, {PROMPT} tokens in and {OUTPUT} out\n")
        print(scaling_tables.of_saturation(closed, bench.seconds), flush=True)
        print(f"\nOpen loop, each worker offered {SHARE} of what one does at saturation\n")
        print(scaling_tables.of_latency(opened), flush=True)
    if "limit" in tables:
        print(f"\nSteps of {1e3 * FAST.base:g} ms, {CLIENTS} clients for each worker: how far one API process goes\n")
        runs, short = limit_of_api(bench)
        print(f"{scaling_tables.of_saturation(runs, bench.seconds)}\n\n{scaling_tables.costs_of_api(runs[-1], short)}")
    if "routing" in tables:
        print(
            f"\n{bench.workers[-1]} workers, prompts that begin with one of {PREFIXES['groups']} prefixes of "
            f"{PREFIXES['prefix_tokens']} tokens (Zipf), room for a third of them in each cache\n"
        )
        print(scaling_tables.of_routing(route(bench)), flush=True)
    if "loss" in tables:
        run, loss = lose_a_worker(bench, rate)
        print(f"\nA worker killed under the load of the open loop\n\n{scaling_tables.of_loss(run, loss)}", flush=True)


if __name__ == "__main__":
    main()
