"""Measure output tokens per second and latencies over HTTP with the defaults, compared with other engines on the same
checkpoint.

One run measures all engines in turn, repeatedly, on the same machine: prompts of 128 random tokens without common
prefixes, 64 greedy output tokens, streamed. A ratio is the median over the turns, so that variations of the machine's
speed affect all alike. While one engine is measured, the peers' servers are stopped (SIGSTOP).

  closed  a number of clients that each send their next request when the last is answered (`benchmarks.closed_loop`)
  open    requests at given rates, and how many were served within limits (`benchmarks.open_loop`)
  long    one prompt of 900 tokens among 8 streams (`benchmarks.long_prompt`), where the context holds it
  start   time to ready and to the first token (`benchmarks.startup`)
  memory  of all our processes (`benchmarks.sizing`)

Times are as `vllm bench serve` defines them: TTFT up to the first event with text, ITL between two of them, E2E up to
the last, TPOT from the first to the last over the number of tokens after the first. `transformers.generate` has a
static batch and does not stream. GGUF files (`--models smollm2-q4_1 smollm2-q8_0 1.1b-q4_k`) are served unchanged by
Lightwell and llama.cpp. The ceiling is the time of only the matrix products of the same prompts and steps
(`benchmarks.ceiling`). int8 means 8-bit weights: Lightwell quantises on load, llama.cpp uses Q8_0; Lightwell in
bfloat16 is shown next to it.

    python -m benchmarks.generation --models 124m --dtype bfloat16 --concurrency 1 8 32 --tables closed open
"""

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from benchmarks import closed_loop, long_prompt, open_loop, sizing, startup
from benchmarks.comparison import machine
from benchmarks.models import GGUF_MODELS, MODELS, Model, add_folders
from benchmarks.peers.engines import ENGINES, Setup
from benchmarks.subjects import IN_PROCESS, PROMPT_TOKENS, Served, all_of

TABLES = ("closed", "open", "long", "start", "memory")


def print_machine(dtypes: Sequence[str]) -> None:
    import torch

    from benchmarks.ceiling import bytes_per_second, operations_per_second

    print(machine())
    rates = [f"{operations_per_second(getattr(torch, dtype)) / 1e9:.0f} GFLOP/s {dtype}" for dtype in dtypes]
    print(f"read {bytes_per_second() / 1e9:.1f} GB/s; large products {', '.join(rates)}\n", flush=True)


def report(
    title: str, setup: Setup, concurrencies: Sequence[int], limits: open_loop.Limits, options: argparse.Namespace
) -> None:
    """Print the tables of one model in one format for which all engines run side by side."""
    ceiling = closed_loop.ceilings(setup.folder, setup.dtype, concurrencies, options.prompt_tokens)
    with all_of(options.engines, setup) as subjects:
        if not subjects:
            return
        points = closed_loop.measure(subjects, concurrencies, options.turns, options.requests, options.prompt_tokens)
        print(f"{closed_loop.table_of_rates(title, points, ceiling)}\n", flush=True)
        print(f"{closed_loop.table_of_times(title, points)}\n", flush=True)
        streaming = [subject for subject in subjects if isinstance(subject, Served)]
        if "open" in options.tables and streaming:
            best = closed_loop.capacity(points)
            rates = open_loop.measure(streaming, options.shares, best, options.turns, options.open_seconds)
            print(f"{open_loop.table_of_goodput(title, rates, limits)}\n", flush=True)
        fits = setup.context >= long_prompt.LONG_TOKENS + long_prompt.LONG_OUTPUT_TOKENS
        if "long" in options.tables and streaming and fits:
            print(f"{long_prompt.table_of_stalls(title, long_prompt.measure(streaming, options.turns))}\n", flush=True)


def report_model(name: str, model: Model, folder: Path, options: argparse.Namespace) -> None:
    concurrencies = options.concurrency or model.concurrencies
    limits = open_loop.Limits((options.ttft_ms or model.ttft_ms) / 1e3, (options.tpot_ms or model.tpot_ms) / 1e3)
    for dtype in options.dtype or model.dtypes:
        setup = Setup(folder, dtype, options.home, slots=max(32, *concurrencies))
        report(f"{name}, {dtype}", setup, concurrencies, limits, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS, *GGUF_MODELS])
    parser.add_argument("--dtype", nargs="+", help="of each model; by default all three of 124m, float32 of fables")
    parser.add_argument("--concurrency", nargs="+", type=int, help="by default 1 8 32, and 1 8 64 of fables")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a turn; of a single one twice that")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="of a request in the closed loop")
    names = [*ENGINES, *IN_PROCESS]
    parser.add_argument("--engines", nargs="+", default=names, choices=names)
    parser.add_argument("--tables", nargs="+", default=[*TABLES], choices=TABLES, help="open, long run after closed")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.8], help="rates of open / best of closed")
    parser.add_argument("--open-seconds", type=float, default=10.0, help="for which requests come, a turn and rate")
    parser.add_argument("--ttft-ms", type=float, help="for a good request; by default 500, and 100 of fables")
    parser.add_argument("--tpot-ms", type=float, help="for a good request; by default 50, and 10 of fables")
    add_folders(parser)
    return parser.parse_args()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or engines that are stopped would be left
    options = read_options()
    print_machine(["float32", "bfloat16"])
    if {"closed", "open", "long"} & set(options.tables):
        for name in options.models:
            model = (MODELS | GGUF_MODELS)[name]
            report_model(name, model, model.folder(options.cache), options)
    if "start" in options.tables:
        engines = [name for name in options.engines if name in ENGINES]
        startup.report(options.models, engines, options.cache, options.home, options.turns)
    if "memory" in options.tables:
        sizing.report_bar(options.cache)


if __name__ == "__main__":
    main()
