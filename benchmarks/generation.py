"""Output tokens a second, and when they come, over HTTP with the defaults, beside other engines on the same checkpoint.

One run measures all in turn, again and again, on the same machine: a 124M Llama-shaped checkpoint, prompts of 128
random tokens that share nothing, 64 greedy tokens out, streamed, closed loop. A ratio is the median over the turns, so
that a machine whose speed wanders counts for all alike. Peers that do not have their turn are stopped (SIGSTOP).

Times as `vllm bench serve` defines them: TTFT up to the first event with text, ITL between two of them, TPOT the rest
of a request after its first token over the number of its other tokens. llama.cpp holds back tokens that end within a
character, which random weights give: its ITL is of fewer and longer gaps. `transformers.generate` has a static batch
and streams nothing.

The ceiling is what the matrix products of the same prompts and steps take alone (`benchmarks.ceiling`).

    python -m benchmarks.generation --dtype float32 bfloat16 --concurrency 1 8 32 --home ~/.cache/lightwell-peers
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.load import Timeline, closed_loop, percentile
from benchmarks.peers.engines import ENGINES, Absent, Engine
from benchmarks.processes import ROOT, ServerFailed

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
STATIC = "transformers.generate"
OURS = "lightwell"


@dataclass(frozen=True)
class Figures:
    """Of one turn."""

    tokens_per_second: float
    timelines: Sequence[Timeline] = ()
    """Of each request, where it was streamed."""


class Subject(Protocol):
    @property
    def name(self) -> str: ...
    def measure(self, concurrency: int, requests: int, seed: int) -> Figures:
        """Of so many requests, `concurrency` at a time; no two seeds have the same prompts."""


@dataclass(frozen=True)
class Served:
    """An engine behind HTTP."""

    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.name

    def measure(self, concurrency: int, requests: int, seed: int) -> Figures:
        bodies = [self._body(prompt) for prompt in random_prompts(requests, seed, PROMPT_TOKENS)]
        self.engine.resume()
        try:
            server = self.engine.server
            load = asyncio.run(closed_loop(server.host, server.port, bodies, concurrency))
        finally:
            self.engine.pause()
        # A short answer would make the figures flatter than they are.
        counts = {(t.prompt_tokens, t.completion_tokens) for t in load.timelines}
        if counts != {(PROMPT_TOKENS, OUTPUT_TOKENS)}:
            raise RuntimeError(f"{self.name}: tokens in and out are {counts}")
        return Figures(load.tokens_per_second, load.timelines)

    def _body(self, prompt: Sequence[int]) -> dict[str, Any]:
        asked = {"model": self.engine.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS}
        return {**asked, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class StaticBatch:
    """`transformers.generate`, in a process that waits while it is not asked."""

    asks: IO[str]
    answers: IO[str]
    name: str = STATIC

    def measure(self, concurrency: int, requests: int, seed: int) -> Figures:
        rows = random_prompts(requests, seed, PROMPT_TOKENS)
        batches = [rows[start : start + concurrency] for start in range(0, requests, concurrency)]
        seconds = 0.0
        for batch in batches:
            self.asks.write(json.dumps({"prompts": batch, "max_tokens": OUTPUT_TOKENS}) + "\n")
            self.asks.flush()
            seconds += json.loads(self.answers.readline())["seconds"]
        return Figures(requests * OUTPUT_TOKENS / seconds)


@contextmanager
def static_batch(folder: Path, dtype: str) -> Iterator[StaticBatch]:
    command = [sys.executable, "-m", "benchmarks.peers.static_batch", str(folder), "--dtype", dtype]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield StaticBatch(process.stdin, process.stdout)
        process.stdin.close()


@dataclass
class Point:
    """All turns of one number of clients."""

    concurrency: int
    figures: dict[str, list[Figures]] = field(default_factory=dict)

    def rate(self, name: str) -> float:
        return statistics.median(each.tokens_per_second for each in self.figures[name])

    @property
    def best_peer(self) -> str | None:
        return max((name for name in self.figures if name != OURS), key=self.rate, default=None)

    @property
    def ratio(self) -> float:
        """Ours over the best peer's, turn by turn."""
        if self.best_peer is None or OURS not in self.figures:
            return float("nan")
        pairs = zip(self.figures[OURS], self.figures[self.best_peer], strict=True)
        return statistics.median(mine.tokens_per_second / peers.tokens_per_second for mine, peers in pairs)


def measure(subjects: Sequence[Subject], concurrencies: Sequence[int], turns: int, requests: int) -> list[Point]:
    """All points, each with so many turns after one to warm up, whose order changes from turn to turn."""
    points = [Point(concurrency, {subject.name: [] for subject in subjects}) for concurrency in concurrencies]
    for turn in range(-1, turns):
        for point in points:
            first = turn % len(subjects)
            for subject in [*subjects[first:], *subjects[:first]]:
                count = point.concurrency * requests if point.concurrency > 1 else 2 * requests
                seed = (turn + 1) * 1000 + point.concurrency
                found = subject.measure(point.concurrency, count if turn >= 0 else point.concurrency, seed)
                if turn >= 0:
                    point.figures[subject.name].append(found)
    return points


def ceilings(folder: Path, dtype: str, concurrencies: Sequence[int]) -> dict[int, float]:
    """Tokens a second if nothing but the products took time: prompts in one pass, then a step a token."""
    import torch

    from benchmarks.ceiling import Products
    from model.registry import read_config

    products = Products(read_config(folder), getattr(torch, dtype))
    found = {}
    for concurrency in concurrencies:
        prompts = products.step_seconds(concurrency * PROMPT_TOKENS, concurrency)
        steps = (OUTPUT_TOKENS - 1) * products.step_seconds(concurrency, concurrency)
        found[concurrency] = concurrency * OUTPUT_TOKENS / (prompts + steps)
    return found


def table_of_rates(dtype: str, points: Sequence[Point], ceiling: dict[int, float]) -> str:
    names = list(points[0].figures)
    rows = [["dtype", "clients", *names, "ours / best peer", "products alone", "ours / that"]]
    for point in points:
        limit = ceiling[point.concurrency]
        share = point.rate(OURS) / limit if OURS in names else float("nan")
        rates = [f"{point.rate(name):.0f}" for name in names]
        rows.append([dtype, str(point.concurrency), *rates, f"{point.ratio:.2f}", f"{limit:.0f}", f"{share:.2f}"])
    return table(rows)


def table_of_times(dtype: str, points: Sequence[Point]) -> str:
    rows = [["dtype", "clients", "engine", "TTFT p50 / p90 / p99 ms", "TPOT", "ITL", "E2E"]]
    for point in points:
        for name, turns in point.figures.items():
            lines = [timeline for figures in turns for timeline in figures.timelines]
            if not lines:
                continue
            pick: list[Callable[[Timeline], list[float]]] = [
                lambda t: [t.time_to_first_token],
                lambda t: [(t.finished - t.started - t.time_to_first_token) / (t.completion_tokens - 1)],
                lambda t: t.gaps,
                lambda t: [t.finished - t.started],
            ]
            cells = [quantiles([value for line in lines for value in of(line)]) for of in pick]
            rows.append([dtype, str(point.concurrency), name, *cells])
    return table(rows)


def quantiles(values: Sequence[float]) -> str:
    return " / ".join(f"{1e3 * percentile(values, fraction):.3g}" for fraction in (0.5, 0.9, 0.99))


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def print_machine(dtypes: Sequence[str]) -> None:
    import torch

    from benchmarks.ceiling import bytes_per_second, operations_per_second

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    rates = [f"{operations_per_second(getattr(torch, dtype)) / 1e9:.0f} GFLOP/s {dtype}" for dtype in dtypes]
    print(f"read {bytes_per_second() / 1e9:.1f} GB/s; large products {', '.join(rates)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--requests", type=int, default=2, help="of each client in a turn; twice as many of a single one"
    )
    names = [*ENGINES, STATIC]
    parser.add_argument("--engines", nargs="+", default=names, choices=names)
    cache = ROOT / "benchmarks" / ".cache"
    parser.add_argument("--cache", type=Path, default=cache, help="where the checkpoint is kept")
    parser.add_argument("--home", type=Path, default=cache / "peers", help="where peers are installed")
    options = parser.parse_args()
    folder = make_checkpoint(options.cache)
    print_machine(options.dtype)
    for dtype in options.dtype:
        ceiling = ceilings(folder, dtype, options.concurrency)
        with ExitStack() as running:
            subjects: list[Subject] = []
            for name in options.engines:
                try:
                    if name == STATIC:
                        subjects.append(running.enter_context(static_batch(folder, dtype)))
                    else:
                        engine = running.enter_context(ENGINES[name](folder, dtype, options.home))
                        engine.pause()
                        subjects.append(Served(engine))
                except (Absent, ServerFailed) as error:
                    print(f"{name} is not in the table: {error}", flush=True)
            points = measure(subjects, options.concurrency, options.turns, options.requests)
            for subject in subjects:  # or they could not end
                if isinstance(subject, Served):
                    subject.engine.resume()
        print(f"{table_of_rates(dtype, points, ceiling)}\n\n{table_of_times(dtype, points)}\n", flush=True)


if __name__ == "__main__":
    main()
