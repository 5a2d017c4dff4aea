"""Output tokens a second over HTTP with the server's defaults, beside `transformers.generate` with a static batch.

One run measures both on the same machine: a 124M Llama-shaped checkpoint, prompts of 128 random tokens that share
nothing, 64 greedy tokens out, streamed, closed loop.

    python -m benchmarks.serve_vs_transformers --dtype float32 bfloat16 --concurrency 1 8 32
"""

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import VOCABULARY, make_checkpoint
from benchmarks.load import Load, closed_loop, percentile
from benchmarks.processes import ROOT, serve

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    dtype: str
    concurrency: int
    load: Load
    peers: dict[str, float]
    """Output tokens a second of transformers.generate, by attention implementation."""

    @property
    def ratio(self) -> float:
        return self.load.tokens_per_second / max(self.peers.values()) if self.peers else float("nan")


def prompts(count: int, seed: int) -> list[list[int]]:
    """`count` prompts of random token ids, different for every seed; no prefix is shared."""
    draw = random.Random(seed)
    return [[draw.randrange(256, VOCABULARY - 1) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def completion_body(prompt: Sequence[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}


def measure_server(folder: Path, dtype: str, concurrencies: Sequence[int], rounds: int) -> dict[int, Load]:
    """Drives one server with its defaults (but the dtype) at each concurrency, after a round to warm up."""
    loads: dict[int, Load] = {}
    with serve([str(folder), "--dtype", dtype]) as server:
        for concurrency in concurrencies:
            bodies = [completion_body(p) for p in prompts((rounds + 1) * concurrency, seed=concurrency)]
            asyncio.run(closed_loop(server.host, server.port, bodies[:concurrency], concurrency))
            load = asyncio.run(closed_loop(server.host, server.port, bodies[concurrency:], concurrency))
            check_complete(load)
            loads[concurrency] = load
    return loads


def check_complete(load: Load) -> None:
    """A short answer would make the figures flatter than they are."""
    wrong = [t for t in load.timelines if (t.prompt_tokens, t.completion_tokens) != (PROMPT_TOKENS, OUTPUT_TOKENS)]
    if wrong:
        raise RuntimeError(f"{len(wrong)} answers do not have {PROMPT_TOKENS} tokens in and {OUTPUT_TOKENS} out")


def measure_peer(folder: Path, dtype: str, attention: str, batches: Sequence[int], rounds: int) -> dict[int, float]:
    """Output tokens a second of transformers.generate by batch size, in a process of its own that this ends."""
    command = [sys.executable, "-m", "benchmarks.transformers_peer", str(folder), "--dtype", dtype]
    command += ["--attention", attention, "--rounds", str(rounds), "--batch", *map(str, batches)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {int(batch): figure for batch, figure in figures.items()}


def measure(options: argparse.Namespace) -> list[Row]:
    folder = make_checkpoint(options.cache)
    rows: list[Row] = []
    for dtype in options.dtype:
        peers = {
            attention: measure_peer(folder, dtype, attention, options.concurrency, options.rounds)
            for attention in options.peer
        }
        loads = measure_server(folder, dtype, options.concurrency, options.rounds)
        for concurrency, load in loads.items():
            figures = {attention: by_batch[concurrency] for attention, by_batch in peers.items()}
            rows.append(Row(dtype, concurrency, load, figures))
            print(line(rows[-1], options.peer), flush=True)
    return rows


def heading(peers: Sequence[str]) -> str:
    cells = ["dtype", "clients", "tokens/s", *(f"generate, {peer}" for peer in peers), "ratio"]
    cells += ["TTFT p50 / p99 ms", "ITL p50 / p99 ms"]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def line(row: Row, peers: Sequence[str]) -> str:
    first = [1e3 * timeline.time_to_first_token for timeline in row.load.timelines]
    gaps = [1e3 * gap for timeline in row.load.timelines for gap in timeline.gaps]
    cells = [row.dtype, str(row.concurrency), f"{row.load.tokens_per_second:.0f}"]
    cells += [*(f"{row.peers[peer]:.0f}" for peer in peers), f"{row.ratio:.2f}"]
    cells += [f"{percentile(first, 0.5):.0f} / {percentile(first, 0.99):.0f}"]
    cells += [f"{percentile(gaps, 0.5):.1f} / {percentile(gaps, 0.99):.1f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=4, help="requests of each client (and batches of the peer)")
    parser.add_argument("--peer", nargs="*", default=["sdpa", "eager"], choices=["sdpa", "eager"])
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "benchmarks" / ".cache", help="where the checkpoint is kept"
    )
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, greedy; {options.rounds} requests a client after one more\n"
    )
    print(heading(options.peer), flush=True)
    measure(options)


if __name__ == "__main__":
    main()
