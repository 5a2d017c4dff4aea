"""Measure a server at ten times its capacity: the rate and latency of its answers, and its rejections.

First it measures the capacity, with `--clients` clients that each send their next request as soon as the last is
answered. Then it sends requests at `--times` that rate, independent of answers (Poisson arrivals), for `--seconds`
seconds. Times count from the scheduled time of a request, so delays of the generator are visible. Answers of the first
seconds of a run, while the server fills up, are not counted.

The exit status is 1 if the rate falls below 90 % of the capacity, if accepted requests take more than 1.5 times as long
as at capacity, if rejections are not immediate, or if a request is lost.

    python -m benchmarks.overload --cache /tmp/lightwell-benchmarks --seconds 120
"""

import argparse
import asyncio
import sys
import time
from bisect import bisect_left
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.load import Exchange, Unanswered, exchange, percentile, poisson_arrivals, run
from benchmarks.models import add_cache
from tests.support.processes import Server, serve

_SMALLEST_VOCABULARY = 4096
_RAMP = 5.0
"""Seconds of a run that are not counted."""
_PATIENCE = 60.0
"""Seconds after the end of a run, after which the rest of its requests are lost."""
GOODPUT = 0.9
"""The least share of the capacity that must be left."""
LATENCY = 1.5
"""Maximum latency of accepted requests, at the median and at p99, as a multiple of the latency at capacity."""
IMMEDIATE_MS = 100.0
"""The most milliseconds that 99 of 100 refusals may take."""


@dataclass(frozen=True)
class Outcome:
    """One request. Times are seconds on one clock."""

    due: float
    ended: float
    status: int
    is_whole: bool
    """True if the stream ended with [DONE], or the error has its complete body."""
    first_token: float = 0.0
    retry_after: int = 0


@dataclass(frozen=True)
class Run:
    started: float
    seconds: float
    outcomes: Sequence[Outcome]
    num_lost: int
    """Requests without any answer."""

    def whole(self, status: int) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == status and outcome.is_whole]

    @property
    def rate(self) -> float:
        """Return the complete answers per second, counted while requests arrived and the server was full."""
        begin, end = self.started + _RAMP, self.started + self.seconds
        return sum(begin <= each.ended <= end for each in self.whole(200)) / (end - begin)


def outcome_of(due: float, kept: Exchange) -> Outcome:
    status, retry_after = kept.status, int(kept.header("retry-after") or 0)
    if status != 200:
        return Outcome(due, kept.ended_at, status, kept.has_whole_body, retry_after=retry_after)
    try:
        return Outcome(due, kept.ended_at, status, is_whole=True, first_token=kept.timeline().tokens_at[0])
    except Unanswered:
        return Outcome(due, kept.ended_at, status, is_whole=False)


async def finished(clients: Sequence[Coroutine[Any, Any, list[tuple[float, Exchange]]]], seconds: float) -> Run:
    """Let clients send their requests for some seconds, and parse the answers afterwards."""
    started = time.perf_counter()
    done, late = await asyncio.wait(map(asyncio.create_task, clients), timeout=seconds + _PATIENCE)
    failed = [task for task in done if task.exception() is not None]
    kept = [pair for task in done if task not in failed for pair in task.result()]
    return Run(started, seconds, [outcome_of(*pair) for pair in kept], len(late) + len(failed))


def bodies(count: int, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return requests of one size. The open loop repeats prompts, to make them beforehand: the server should keep no
    prefixes, or repeated ones cost less than the capacity was measured with.
    """
    asked = {"max_tokens": options.max_tokens, "ignore_eos": True, "temperature": 0}
    prompts = random_prompts(count, seed, options.prompt_tokens, _SMALLEST_VOCABULARY)
    return [{**asked, "prompt": prompt} for prompt in prompts]


async def measure(server: Server, options: argparse.Namespace) -> tuple[Run, Run]:
    send = partial(exchange, server.host, server.port)

    async def client(seed: int) -> list[tuple[float, Exchange]]:
        kept, end = [], time.perf_counter() + options.capacity_seconds
        while (due := time.perf_counter()) < end:
            (body,) = bodies(1, 1000 * seed + len(kept), options)
            kept.append((due, await send(body)))
            if kept[-1][1].status == 429:
                await asyncio.sleep(0.05)
        return kept

    async def request(due: float, body: dict[str, Any]) -> list[tuple[float, Exchange]]:
        await asyncio.sleep(due - time.perf_counter())
        return [(due, await send(body))]

    capacity = await finished([client(seed) for seed in range(options.clients)], options.capacity_seconds)
    rate = options.times * capacity.rate
    repeated, begin = bodies(256, 7, options), time.perf_counter() + 1
    arrivals = poisson_arrivals(round(rate * options.seconds), rate, seed=7)
    requests = [request(begin + at, repeated[i % len(repeated)]) for i, at in enumerate(arrivals)]
    return capacity, await finished(requests, options.seconds)


def report(capacity: Run, overload: Run, times: float) -> bool:
    """Print the measurements. Return True if all bars are met."""
    print(f"capacity {capacity.rate:.1f} answers/s; offered {times:g} times as much: {len(overload.outcomes)} requests")
    print("\n| run | answers/s | TTFT p50 ms | TTFT p99 | E2E p50 | E2E p99 |\n|---|---|---|---|---|---|")
    whole = {}
    for name, each_run in (("capacity", capacity), ("overload", overload)):
        first = [1e3 * (each.first_token - each.due) for each in each_run.whole(200)]
        whole[name] = [1e3 * (each.ended - each.due) for each in each_run.whole(200)]
        figures = (percentile(values, part) for values in (first, whole[name]) for part in (0.5, 0.99))
        print(f"| {name} | {each_run.rate:.1f} | " + " | ".join(f"{figure:.0f}" for figure in figures) + " |")
    refused = overload.whole(429)
    seconds = [1e3 * (each.ended - each.due) for each in refused]
    print(f"\nrefusals: {len(refused)}, p50 {percentile(seconds, 0.5):.1f} ms, p99 {percentile(seconds, 0.99):.1f} ms")
    report_honesty(overload)
    num_lost = overload.num_lost + len(overload.outcomes) - len(overload.whole(200)) - len(refused)
    print(f"lost: {num_lost}")
    kept = overload.rate / capacity.rate
    longer = [percentile(whole["overload"], part) / percentile(whole["capacity"], part) for part in (0.5, 0.99)]
    print(f"goodput: {kept:.1%} of the capacity; E2E of what is accepted: {longer[0]:.2f} (p50), {longer[1]:.2f} (p99)")
    wrong = {
        "goodput": kept < GOODPUT,
        "latency": max(longer) > LATENCY,
        "refusals": percentile(seconds, 0.99) > IMMEDIATE_MS,
        "lost": num_lost > 0,
    }
    print("not as it should be: " + (", ".join(name for name, is_wrong in wrong.items() if is_wrong) or "nothing"))
    return not any(wrong.values())


def report_honesty(overload: Run) -> None:
    """Print whether there was room again by the time that each refusal named: then a request was let in."""
    let_in = sorted(each.due for each in overload.whole(200))
    waits = []
    for each in overload.whole(429):
        place = bisect_left(let_in, each.ended)
        if place < len(let_in) and each.ended + each.retry_after <= overload.started + overload.seconds:
            waits.append((let_in[place] - each.ended, each.retry_after))
    if waits:
        kept = sum(wait <= promised for wait, promised in waits) / len(waits)
        promised, actual = (percentile([pair[i] for pair in waits], 0.5) for i in (1, 0))
        print(f"Retry-After: p50 {promised:.0f} s; somebody was let in {actual:.2f} s later (p50), {kept:.1%} in time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cache(parser)
    parser.add_argument("--model", help="a model folder to serve instead of the 124M checkpoint")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--capacity-seconds", type=float, default=60)
    parser.add_argument("--times", type=float, default=10)
    parser.add_argument("--clients", type=int, default=20, help="of the closed loop: more than --max-num-seqs")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    default = ["--dtype", "bfloat16", "--no-prefix-caching", "--max-num-seqs", "16", "--max-queue-time", "1"]
    default += ["--log-level", "warning"]
    parser.add_argument("serve", nargs="*", default=default, help="arguments for `lightwell serve` (after --)")
    options = parser.parse_args()
    with serve([options.model or str(make_checkpoint(options.cache)), *options.serve]) as server:
        capacity, overload = run(measure(server, options))
    sys.exit(0 if report(capacity, overload, options.times) else 1)


if __name__ == "__main__":
    main()
