"""Measure the output tokens per second of many prompts in one call of `LLM.generate`, compared with our server and with
`transformers.generate`.

The prompts are 200 lists of 16 to 128 random tokens, with 64 greedy tokens each. The server gets them from 32, 64 and
200 clients that do not stream, and each client sends the next when the last is answered. `transformers.generate` gets
them in static batches of 32, 64 and 200, sorted by length and padded on the left, in bfloat16 and in float32; `LLM` and
the server compute in bfloat16, `fables` in float32. All run in turn, after one turn to warm up. A ratio is the median
over the turns, to the best number of clients, and to the best batch and format.

    python -m benchmarks.library --models 124m fables --turns 5
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.checkpoint import random_prompts
from benchmarks.comparison import OURS, in_order, machine, ratio_to_best, table
from benchmarks.load import Unanswered, exchange, run
from benchmarks.models import MODELS, add_folders
from benchmarks.peers.engines import Setup, lightwell
from benchmarks.peers.lines import Ask, asked
from benchmarks.subjects import OUTPUT_TOKENS, STATIC, vocabulary_of
from tests.support.processes import Server

NUM_PROMPTS = 200
LENGTHS = (16, 128)
TOGETHER = (32, 64, 200)
"""Numbers of clients, and of prompts of a static batch."""
SERVED = "server"
Measure = Callable[[Sequence[list[int]]], float]
"""Returns the seconds of the prompts."""


def prompts_of(seed: int, count: int, vocabulary: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [row[: draw.randint(*LENGTHS)] for row in random_prompts(count, seed, LENGTHS[1], vocabulary)]


async def answer_all(server: Server, model: str, prompts: Sequence[list[int]], clients: int) -> None:
    asked_of_each = {"model": model, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    waiting = [*reversed(prompts)]

    async def client() -> None:
        while waiting:
            body = {**asked_of_each, "prompt": waiting.pop()}
            answer = await exchange(server.host, server.port, body, streams=False)
            if answer.status != 200 or json.loads(answer.body)["usage"]["completion_tokens"] != OUTPUT_TOKENS:
                raise Unanswered(answer.body[:1000].decode(errors="replace"))

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


def of_server(server: Server, model: str, clients: int) -> Measure:
    def seconds(prompts: Sequence[list[int]]) -> float:
        started = time.perf_counter()
        run(answer_all(server, model, prompts, clients))
        return time.perf_counter() - started

    return seconds


def of_batches(ask: Ask, size: int) -> Measure:
    """Return the measurement of a peer in a process, with batches of prompts of similar lengths."""

    def seconds(prompts: Sequence[list[int]]) -> float:
        ordered = sorted(prompts, key=len)
        batches = [ordered[first : first + size] for first in range(0, len(ordered), size)]
        return sum(ask({"prompts": batch, "max_tokens": OUTPUT_TOKENS})["seconds"] for batch in batches)

    return seconds


@contextmanager
def subjects_of(setup: Setup) -> Iterator[dict[str, Measure]]:
    """Start our library, our server and transformers, each in a process that is idle until its turn."""
    with ExitStack() as running:
        library = running.enter_context(asked("library", setup.folder, "--dtype", setup.dtype))
        found = {OURS: lambda prompts: library({"prompts": prompts, "max_tokens": OUTPUT_TOKENS})["seconds"]}
        engine = running.enter_context(lightwell(setup))
        found |= {f"{SERVED}, {count} clients": of_server(engine.server, engine.model, count) for count in TOGETHER}
        for dtype in ("bfloat16", "float32"):
            ask = running.enter_context(asked("static_batch", setup.folder, "--dtype", dtype))
            found |= {f"{STATIC}, {dtype}, batches of {size}": of_batches(ask, size) for size in TOGETHER}
        yield found


def measure(setup: Setup, turns: int, num_prompts: int) -> dict[str, list[float]]:
    """Return the tokens per second of each subject in each turn."""
    vocabulary = vocabulary_of(setup.folder)
    with subjects_of(setup) as subjects:
        rates: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(-1, turns):
            prompts = prompts_of(turn + 1, num_prompts if turn >= 0 else min(TOGETHER[0], num_prompts), vocabulary)
            for name in in_order([*subjects], turn):
                seconds = subjects[name](prompts)
                if turn >= 0:
                    rates[name].append(len(prompts) * OUTPUT_TOKENS / seconds)
        return rates


def report(title: str, rates: dict[str, list[float]]) -> str:
    """Return a table of tokens per second, and the two ratios."""
    rows = [[name, f"{statistics.median(turns):.0f}"] for name, turns in rates.items()]
    lines = [table([[title, "tokens/s"], *rows])]
    for peer in (SERVED, STATIC):
        of_peer = {name: turns for name, turns in rates.items() if name == OURS or name.startswith(peer)}
        lines.append(f"LLM.generate / {peer}: {ratio_to_best(of_peer, higher_is_better=True)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=NUM_PROMPTS)
    add_folders(parser)
    options = parser.parse_args()
    print(machine(), flush=True)
    for name in options.models:
        dtype = "bfloat16" if "bfloat16" in MODELS[name].dtypes else "float32"
        folder: Path = MODELS[name].folder(options.cache)
        rates = measure(Setup(folder, dtype, options.home), options.turns, options.prompts)
        print(f"{report(f'{name}, {dtype}', rates)}\n", flush=True)


if __name__ == "__main__":
    main()
