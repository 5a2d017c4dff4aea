"""Measure the cost of captures: bytes and seconds of one head and of all, the slowdown of running streams by a tracer,
and the server's memory with many tracers.

It prints three tables, measured over HTTP on the 124M checkpoint with the server's defaults:

1. attention and trace of one prompt, from one head of one layer to all heads of all layers, as safetensors, next to a
   forward pass of transformers with `output_attentions=True` in a separate process.
2. tokens/s of 8 running completions while one client traces one layer without pause, as a share of their tokens/s
   without a tracer. Short quiet and traced windows alternate, and the share is the median over the pairs, so that
   variations of the machine's speed affect both. The streams start at different times, so that prompts are read in all
   windows. Windows begin a little after the tracer starts; the first trace is not counted.
3. with `--max-capture-bytes` of 256 MiB and 16 clients that request all heads of all layers, of prompts that need a
   seventh of this limit, half of it and more than all of it: the growth of the server's memory, next to the bytes that
   it counts as captured, and the statuses of the answers. The clients retry after Retry-After.

    python -m benchmarks.looking_inside --windows 15
"""

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.comparison import machine
from benchmarks.load import percentile, stream_completion
from benchmarks.models import add_cache
from benchmarks.peers.lines import asked
from tests.support.processes import Server, serve
from tests.support.wire import samples

ACCEPT = {"Accept": "application/vnd.safetensors"}
NUM_LAYERS = 12
LONG_PROMPT = 512
STREAMS, STREAMED_TOKENS = 8, 512
SETTLE_SECONDS = 0.3
"""Seconds between two windows: time for the tracer's last work to end, or for its next trace to begin."""
TRACED_POINTS = ["attn.hook_pattern", "attn.hook_z", "hook_resid_post"]
TRACED_TOKENS = 128
TRACERS, TRACE_SECONDS = 16, 60.0
CAPTURE_BUDGET = 256 << 20
BUDGET_LENGTHS = (256, 512, 768)
"""Prompt tokens: their patterns are 38, 151 and 340 MB."""


def prompt_of(length: int, seed: int) -> list[int]:
    """Return random token ids; no two prompts are alike."""
    return random_prompts(1, seed, length)[0]


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work without end while the block runs. Raises its exception."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- cost of one answer


SELECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention: one head of layer 0": ("attention", {"layers": 0, "heads": 0}),
    "attention: one head of the last layer": ("attention", {"layers": -1, "heads": 0}),
    "attention: all heads of layer 0": ("attention", {"layers": 0}),
    "attention: all heads of all layers": ("attention", {}),
    "attention: the same, float16": ("attention", {"dtype": "float16"}),
    "trace: one layer's stream": ("trace", {"points": ["hook_resid_post"], "layers": 0}),
    "trace: all layers' streams": ("trace", {"points": ["hook_resid_post"]}),
    "trace: last position, all streams": ("trace", {"points": ["hook_resid_post"], "positions": -1}),
}
"""Route and fields of each request."""


def measure_selections(server: Server, rounds: int) -> Iterator[tuple[str, int, float]]:
    """Yield each selection with the bytes of its answer and its median seconds; every prompt is new to the prefix
    cache.
    """
    with httpx.Client(base_url=server.url, timeout=120.0) as http:
        for number, (name, (route, fields)) in enumerate(SELECTIONS.items()):
            seconds = []
            for turn in range(rounds + 1):
                body = {"input": prompt_of(LONG_PROMPT, seed=100 * number + turn), **fields}
                started = time.perf_counter()
                answer = http.post(f"/v1/{route}", json=body, headers=ACCEPT)
                seconds.append(time.perf_counter() - started)
                answer.raise_for_status()
            yield name, len(answer.content), statistics.median(seconds[1:])


def table_of_selections(folder: Path, options: argparse.Namespace) -> None:
    print(f"One prompt of {LONG_PROMPT} tokens, float32, safetensors\n\n| asked for | MB | ms | times one head |")
    print("|---|---|---|---|", flush=True)
    with serve([str(folder), "--dtype", "float32"]) as server:
        first = 0.0
        for name, size, seconds in measure_selections(server, options.rounds):
            first = first or seconds
            print(f"| {name} | {size / 1e6:.2f} | {1e3 * seconds:.0f} | {seconds / first:.1f} |", flush=True)
    with asked("static_batch", folder, "--attentions") as ask:
        times = [ask({"prompts": [prompt_of(LONG_PROMPT, turn)]})["seconds"] for turn in range(options.rounds + 1)]
    peer = statistics.median(times[1:])
    print(f"| transformers, output_attentions, in process | | {1e3 * peer:.0f} | {peer / first:.1f} |", flush=True)


# ---- slowdown of running streams


@dataclass
class Window:
    """One stretch of time, with or without the tracer."""

    seconds: float
    tokens: int
    traces: list[float] = field(default_factory=list)
    """Seconds of each trace that ended in it."""


async def keep_streaming(server: Server, index: int, counts: list[int]) -> None:
    """Run one client: a first completion with a separate length per client, then long ones forever. `counts[index]`:
    its tokens so far.
    """
    turn = 0
    while True:
        num_tokens = STREAMED_TOKENS if turn else STREAMED_TOKENS * (index + 1) // len(counts)
        body = {"prompt": prompt_of(128, seed=1000 * index + turn), "max_tokens": num_tokens}
        turn += 1
        before = counts[index]

        def seen(num_events: int, before: int = before) -> None:
            counts[index] = before + num_events

        await stream_completion(server.host, server.port, {**body, "temperature": 0, "ignore_eos": True}, on_event=seen)


async def keep_tracing(server: Server, layer: int, traces: list[float]) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=120.0) as http:
        while True:
            started = time.perf_counter()
            prompt = prompt_of(TRACED_TOKENS, seed=time.monotonic_ns() % 2**31)
            body = {"input": prompt, "points": TRACED_POINTS, "layers": layer}
            (await http.post("/v1/trace", json=body, headers=ACCEPT)).raise_for_status()
            traces.append(time.perf_counter() - started)


async def measure_streams(
    server: Server, windows: int, seconds: float, layer: int
) -> tuple[list[Window], list[Window]]:
    """Measure quiet and traced windows, taken in turn while the streams run on."""
    counts = [0] * STREAMS
    quiet: list[Window] = []
    traced: list[Window] = []

    async def watch(traces: list[float]) -> Window:
        """Measure one window from now on. `traces`: where the tracer notes its traces; earlier ones are dropped."""
        traces.clear()
        started, before = time.perf_counter(), sum(counts)
        await asyncio.sleep(seconds)
        return Window(time.perf_counter() - started, sum(counts) - before, list(traces))

    async with running(*(keep_streaming(server, index, counts) for index in range(STREAMS))):
        await asyncio.sleep(3.0)  # all prompts are in and the first answers flow
        async with running(keep_tracing(server, layer, [])):
            await asyncio.sleep(seconds)  # steps with a trace among them become usual
        for _ in range(windows):
            await asyncio.sleep(SETTLE_SECONDS)
            quiet.append(await watch([]))
            traces: list[float] = []
            async with running(keep_tracing(server, layer, traces)):
                await asyncio.sleep(SETTLE_SECONDS)
                traced.append(await watch(traces))
    return quiet, traced


def rate(windows: Sequence[Window]) -> float:
    return statistics.median(window.tokens / window.seconds for window in windows)


def table_of_streams(folder: Path, options: argparse.Namespace) -> None:
    print(f"\n{STREAMS} streams; one client traces {', '.join(TRACED_POINTS)} of one layer without pause\n")
    print(
        "| dtype | layer | tokens/s quiet | traced | share | traces/s | trace p50 ms |\n|---|---|---|---|---|---|---|"
    )
    for dtype in options.dtype:
        with serve([str(folder), "--dtype", dtype]) as server:
            for layer in (0, NUM_LAYERS // 2, NUM_LAYERS - 1):
                quiet, traced = asyncio.run(measure_streams(server, options.windows, options.seconds, layer))
                share = statistics.median(rate([b]) / rate([a]) for a, b in zip(quiet, traced, strict=True))
                traces = [seconds for window in traced for seconds in window.traces]
                cells = [dtype, str(layer), f"{rate(quiet):.0f}", f"{rate(traced):.0f}", f"{share:.2f}"]
                cells += [f"{len(traces) / sum(w.seconds for w in traced):.1f}", f"{1e3 * percentile(traces, 0.5):.0f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


# ---- memory with many tracers


@dataclass
class Pressure:
    """Measurements while many clients trace: `bytes_*` of all the server's processes, `answers` by status."""

    bytes_before: int
    bytes_peak: int = 0
    captured_peak: int = 0
    """Largest value of the gauge lightwell_inflight_capture_bytes."""
    captured_after: int = 0
    """The same gauge, once all answers are read."""
    answers: Counter[int] = field(default_factory=Counter)
    waits: list[int] = field(default_factory=list)
    """Retry-After of each 429, seconds."""


async def trace_in_turn(http: httpx.AsyncClient, index: int, seen: Pressure) -> None:
    """Run one client: all heads of all layers of prompts of each length in turn, forever."""
    turn = index
    while True:
        prompt = prompt_of(BUDGET_LENGTHS[turn % len(BUDGET_LENGTHS)], seed=1000 * index + turn)
        body = {"input": prompt, "points": ["attn.hook_pattern"], "layers": "all"}
        answer = await http.post("/v1/trace", json=body, headers=ACCEPT)
        seen.answers[answer.status_code] += 1
        if answer.status_code == 429:  # and ask again
            seen.waits.append(int(answer.headers["Retry-After"]))
            await asyncio.sleep(seen.waits[-1])
        elif answer.status_code in (200, 413):
            turn += 1
        else:
            answer.raise_for_status()


async def watch_memory(server: Server, http: httpx.AsyncClient, seen: Pressure) -> None:
    """Read the server's memory and its own count of it as often as possible."""
    while True:
        held = await asyncio.to_thread(server.resident_bytes)
        seen.bytes_peak = max(seen.bytes_peak, sum(held.values()))
        seen.captured_peak = max(seen.captured_peak, await captured_bytes(http))
        await asyncio.sleep(0.02)


async def captured_bytes(http: httpx.AsyncClient) -> int:
    return int(samples((await http.get("/metrics")).text)["lightwell_inflight_capture_bytes"])


async def measure_pressure(server: Server) -> Pressure:
    async with httpx.AsyncClient(base_url=server.url, timeout=120.0, limits=httpx.Limits(max_connections=None)) as http:
        warm = {"input": prompt_of(BUDGET_LENGTHS[0], seed=0), "points": ["logits"], "positions": -1}
        (await http.post("/v1/trace", json=warm)).raise_for_status()  # the code for it is loaded, nothing is captured
        seen = Pressure(sum(server.resident_bytes().values()))
        tracers = (trace_in_turn(http, index, seen) for index in range(TRACERS))
        async with running(*tracers, watch_memory(server, http, seen)):
            await asyncio.sleep(TRACE_SECONDS)
        give_up = time.monotonic() + 30
        while (left := await captured_bytes(http)) and time.monotonic() < give_up:
            await asyncio.sleep(0.1)
        seen.captured_after = left
    return seen


def table_of_memory(folder: Path, options: argparse.Namespace) -> None:
    print(f"\n{TRACERS} clients trace all heads of all layers, --max-capture-bytes {CAPTURE_BUDGET >> 20}MiB\n")
    heads = ("MiB before", "most beyond that", "most counted as captured", "counted at the end", "200", "413", "429")
    print(f"| {' | '.join(heads)} | Retry-After least / median / most |\n{'|---' * 8}|", flush=True)
    with serve([str(folder), "--dtype", "float32", "--max-capture-bytes", str(CAPTURE_BUDGET)]) as server:
        seen = asyncio.run(measure_pressure(server))
    waits = f"{min(seen.waits)} / {statistics.median(seen.waits):.0f} / {max(seen.waits)}" if seen.waits else ""
    sizes = (seen.bytes_before, seen.bytes_peak - seen.bytes_before, seen.captured_peak, seen.captured_after)
    cells = [f"{size / (1 << 20):.0f}" for size in sizes]
    cells += [str(seen.answers[status]) for status in (200, 413, 429)]
    print(f"| {' | '.join([*cells, waits])} |", flush=True)


TABLES = {"selections": table_of_selections, "streams": table_of_streams, "memory": table_of_memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="answers of each selection, after one more")
    parser.add_argument("--windows", type=int, default=10, help="quiet and traced windows, each")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one window")
    add_cache(parser)
    options = parser.parse_args()
    print(f"{machine()}\n")
    folder = make_checkpoint(options.cache)
    for name in options.tables:
        TABLES[name](folder, options)


if __name__ == "__main__":
    main()
