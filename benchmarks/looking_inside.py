"""Measure the cost of captures: bytes and seconds of one head and of all, the slowdown of running streams by a tracer,
and the server's memory with many tracers.

It prints three tables, measured over HTTP on the 124M checkpoint with the server's defaults:

1. attention and trace of one prompt, from one head of one layer to all heads of all layers, as safetensors, next to a
   forward pass of transformers with `output_attentions=True` in a separate process.
2. tokens/s of `--streams` running completions while one client traces one layer without pause, as a share of their
   tokens/s without a tracer. Short quiet and traced windows alternate, and the share is the median over the pairs, so
   that variations of the machine's speed affect both. The streams start at different times, so that prompts are read
   in all windows. Windows begin a little after the tracer starts; the first trace is not counted.
3. with `--max-capture-bytes` of 256 MiB and `--tracers` clients that request all heads of all layers, of prompts that
   need a seventh of this limit, half of it and more than all of it: the growth of the server's memory, next to the
   bytes that it counts as captured, and the statuses of the answers. The clients retry after Retry-After.

    python -m benchmarks.looking_inside --windows 15
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.checkpoint import make_checkpoint
from benchmarks.comparison import machine
from benchmarks.load import percentile, stream_completion
from benchmarks.looking_inside_memory import CAPTURE_BUDGET, LONG_PROMPT, SAFETENSORS, long_prompt, measure_pressure
from tests.support.processes import ROOT, Server, serve

STREAMED_TOKENS = 512
SETTLE_SECONDS = 0.3
"""Seconds between two windows: time for the tracer's last work to end, or for its next trace to begin."""
TRACED_POINTS = ["attn.hook_pattern", "attn.hook_z", "hook_resid_post"]
NUM_LAYERS = 12


# ---- cost of one answer


@dataclass(frozen=True)
class Selection:
    name: str
    path: str
    fields: dict[str, Any]


SELECTIONS = (
    Selection("attention: one head of layer 0", "/v1/attention", {"layers": 0, "heads": 0}),
    Selection("attention: one head of the last layer", "/v1/attention", {"layers": -1, "heads": 0}),
    Selection("attention: all heads of layer 0", "/v1/attention", {"layers": 0}),
    Selection("attention: all heads of all layers", "/v1/attention", {}),
    Selection("attention: the same, float16", "/v1/attention", {"dtype": "float16"}),
    Selection("trace: one layer's stream", "/v1/trace", {"points": ["hook_resid_post"], "layers": 0}),
    Selection("trace: all layers' streams", "/v1/trace", {"points": ["hook_resid_post"]}),
    Selection("trace: last position, all streams", "/v1/trace", {"points": ["hook_resid_post"], "positions": -1}),
)


def measure_selections(server: Server, rounds: int) -> Iterator[tuple[Selection, int, float]]:
    """Return each selection with the bytes of its answer and its median seconds; every prompt is new to the prefix
    cache.
    """
    with httpx.Client(base_url=server.url, timeout=120.0) as http:
        for number, selection in enumerate(SELECTIONS):
            seconds, size = [], 0
            for turn in range(rounds + 1):
                body = {"input": long_prompt(LONG_PROMPT, seed=100 * number + turn), **selection.fields}
                started = time.perf_counter()
                answer = http.post(selection.path, json=body, headers={"Accept": SAFETENSORS})
                seconds.append(time.perf_counter() - started)
                answer.raise_for_status()
                size = len(answer.content)
            yield selection, size, statistics.median(seconds[1:])


def measure_transformers(folder: Path, rounds: int) -> float:
    """Return the median seconds of a forward pass that keeps all attentions and logits, in a process that this ends."""
    code = (
        "import json, statistics, sys, time, torch\n"
        "from transformers import AutoModelForCausalLM\n"
        "from benchmarks.looking_inside import LONG_PROMPT, long_prompt\n"
        "model = AutoModelForCausalLM.from_pretrained(\n"
        "    sys.argv[1], attn_implementation='eager', dtype=torch.float32)\n"
        "seconds = []\n"
        "for turn in range(int(sys.argv[2]) + 1):\n"
        "    ids = torch.tensor([long_prompt(LONG_PROMPT, turn)])\n"
        "    started = time.perf_counter()\n"
        "    with torch.inference_mode():\n"
        "        model(ids, output_attentions=True)\n"
        "    seconds.append(time.perf_counter() - started)\n"
        "print(json.dumps(statistics.median(seconds[1:])))\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return float(json.loads(done.stdout.splitlines()[-1]))


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
        body = {"prompt": long_prompt(128, seed=1000 * index + turn), "max_tokens": num_tokens}
        turn += 1
        before = counts[index]

        def seen(num_events: int, before: int = before) -> None:
            counts[index] = before + num_events

        await stream_completion(server.host, server.port, {**body, "temperature": 0, "ignore_eos": True}, on_event=seen)


@asynccontextmanager
async def tracing(server: Server, body: dict[str, Any], traces: list[float]) -> AsyncIterator[None]:
    """Run one client that traces without pause while the block runs."""

    async def trace() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=120.0) as http:
            turn = 0
            while True:
                turn += 1
                started = time.perf_counter()
                question = {**body, "input": long_prompt(len(body["input"]), seed=time.monotonic_ns() % 2**31 + turn)}
                answer = await http.post("/v1/trace", json=question, headers={"Accept": SAFETENSORS})
                answer.raise_for_status()
                traces.append(time.perf_counter() - started)

    task = asyncio.create_task(trace())
    try:
        yield
        if task.done():
            task.result()  # raises the task's exception
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def measure_streams(
    server: Server, streams: int, windows: int, seconds: float, layer: int, prompt_tokens: int
) -> tuple[list[Window], list[Window]]:
    """Measure quiet and traced windows, taken in turn while the streams run on."""
    counts = [0] * streams
    tasks = [asyncio.create_task(keep_streaming(server, i, counts)) for i in range(streams)]
    quiet: list[Window] = []
    traced: list[Window] = []
    body = {"input": [0] * prompt_tokens, "points": TRACED_POINTS, "layers": layer}
    try:
        await asyncio.sleep(3.0)  # all prompts are in and the first answers flow
        async with tracing(server, body, []):
            await asyncio.sleep(seconds)  # steps with a trace among them become usual
        for number in range(2 * windows):
            await asyncio.sleep(SETTLE_SECONDS)
            if number % 2:
                traces: list[float] = []
                async with tracing(server, body, traces):
                    await asyncio.sleep(SETTLE_SECONDS)
                    traced.append(await watch(counts, seconds, traces))
            else:
                quiet.append(await watch(counts, seconds, []))
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return quiet, traced


async def watch(counts: Sequence[int], seconds: float, traces: list[float]) -> Window:
    """Measure one window from now on. `traces`: where the tracer notes its traces; earlier ones are dropped."""
    traces.clear()
    started, before = time.perf_counter(), sum(counts)
    await asyncio.sleep(seconds)
    return Window(time.perf_counter() - started, sum(counts) - before, list(traces))


def rate(windows: Sequence[Window]) -> float:
    """Return the median tokens/s."""
    return statistics.median(window.tokens / window.seconds for window in windows)


def share_kept(quiet: Sequence[Window], traced: Sequence[Window]) -> float:
    """Return the median over the pairs of neighbouring windows."""
    return statistics.median(rate([b]) / rate([a]) for a, b in zip(quiet, traced, strict=True))


# ---- memory with many tracers


# ---- the tables


def table_of_selections(folder: Path, options: argparse.Namespace) -> None:
    print(f"One prompt of {LONG_PROMPT} tokens, float32, safetensors\n\n| asked for | MB | ms | times one head |")
    print("|---|---|---|---|", flush=True)
    with serve([str(folder), "--dtype", "float32"]) as server:
        first = 0.0
        for selection, size, seconds in measure_selections(server, options.rounds):
            first = first or seconds
            print(f"| {selection.name} | {size / 1e6:.2f} | {1e3 * seconds:.0f} | {seconds / first:.1f} |", flush=True)
    peer = measure_transformers(folder, options.rounds)
    print(f"| transformers, output_attentions, in process | | {1e3 * peer:.0f} | {peer / first:.1f} |", flush=True)


def table_of_streams(folder: Path, options: argparse.Namespace) -> None:
    print(f"\n{options.streams} streams; one client traces {', '.join(TRACED_POINTS)} of one layer without pause\n")
    print(
        "| dtype | layer | tokens/s quiet | traced | share | traces/s | trace p50 ms |\n|---|---|---|---|---|---|---|"
    )
    for dtype in options.dtype:
        with serve([str(folder), "--dtype", dtype]) as server:
            for layer in (0, NUM_LAYERS // 2, NUM_LAYERS - 1):
                measured = measure_streams(
                    server, options.streams, options.windows, options.seconds, layer, options.trace_tokens
                )
                quiet, traced = asyncio.run(measured)
                traces = [seconds for window in traced for seconds in window.traces]
                cells = [dtype, str(layer), f"{rate(quiet):.0f}", f"{rate(traced):.0f}"]
                cells += [f"{share_kept(quiet, traced):.2f}", f"{len(traces) / sum(w.seconds for w in traced):.1f}"]
                print(f"| {' | '.join([*cells, f'{1e3 * percentile(traces, 0.5):.0f}'])} |", flush=True)


def table_of_memory(folder: Path, options: argparse.Namespace) -> None:
    print(f"\n{options.tracers} clients trace all heads of all layers, --max-capture-bytes {CAPTURE_BUDGET >> 20}MiB\n")
    print(
        "| MiB before | most beyond that | most counted as captured | counted at the end | 200 | 413 | 429 | ", end=""
    )
    print("Retry-After least / median / most |\n|---|---|---|---|---|---|---|---|", flush=True)
    with serve([str(folder), "--dtype", "float32", "--max-capture-bytes", str(CAPTURE_BUDGET)]) as server:
        seen = asyncio.run(measure_pressure(server, options.tracers, options.pressure_seconds))
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
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--windows", type=int, default=10, help="quiet and traced windows, each")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one window")
    parser.add_argument("--trace-tokens", type=int, default=128, help="tokens of each traced prompt")
    parser.add_argument("--tracers", type=int, default=16, help="clients of the third table")
    parser.add_argument("--pressure-seconds", type=float, default=60.0, help="how long they trace")
    parser.add_argument("--cache", type=Path, default=ROOT / "benchmarks" / ".cache")
    options = parser.parse_args()
    print(f"{machine()}\n")
    folder = make_checkpoint(options.cache)
    for name in options.tables:
        TABLES[name](folder, options)


if __name__ == "__main__":
    main()
