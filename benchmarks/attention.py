"""Measures how long attention patterns take over HTTP, compared with transformers with `output_attentions=True` in
process; and what running streams lose when one of them returns its attention.

1. One prompt, as safetensors: one head of the middle layer and of the last (1024 tokens), and all heads of all layers
   (512 tokens, float16). The peer is `transformers` (eager), which computes all patterns whatever is requested, and
   writes the same bytes in its process. Both get prompts they have not seen, in turn; ratios are medians over the
   turns. Memory is the most that all processes of the server, or the peer's, had beyond what they held when ready: of
   the first answer after a short one, since allocators keep what they have had.
2. Tokens/s of 8 streams with one of them returning all heads of one layer (base64 float16) with each token, as a share
   of the same without, in turn.

    python -m benchmarks.attention --dtype float32 bfloat16 --turns 5
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from benchmarks.checkpoint import CONTEXT, make_checkpoint, random_prompts
from benchmarks.load import stream_completion
from tests.support.processes import ROOT, Server, serve

SAFETENSORS = {"Accept": "application/vnd.safetensors"}
STREAMS, STREAMED_TOKENS = 8, 192


@dataclass(frozen=True)
class Wish:
    name: str
    prompt_tokens: int
    layer: int | None
    """The layer, or None for all heads of all layers."""
    dtype: str

    def body(self, prompt: Sequence[int]) -> dict[str, Any]:
        place = {} if self.layer is None else {"layers": self.layer, "heads": 3}
        return {"input": prompt, "dtype": self.dtype, **place}

    def for_peer(self, prompt: Sequence[int]) -> dict[str, Any]:
        return {"prompt": prompt, "dtype": self.dtype, "layer": self.layer, "head": 3}


WISHES = (
    Wish("one head of the middle layer", CONTEXT, 6, "float32"),
    Wish("one head of the last layer", CONTEXT, 11, "float32"),
    Wish("all heads of all layers", 512, None, "float16"),
)


@dataclass
class Found:
    """The results of one selection: seconds of each turn, bytes of the answer without its head, and bytes of memory."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    our_peak: int = 0
    their_peak: int = 0

    @property
    def ratio(self) -> float:
        return statistics.median(b / a for a, b in zip(self.ours, self.theirs, strict=True))


@dataclass(frozen=True)
class Peer:
    asks: IO[str]
    answers: IO[str]

    def ask(self, wish: Wish, prompt: Sequence[int]) -> dict[str, Any]:
        self.asks.write(json.dumps(wish.for_peer(prompt)) + "\n")
        self.asks.flush()
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer


@contextmanager
def eager(folder: Path, dtype: str) -> Iterator[Peer]:
    command = [sys.executable, "-m", "benchmarks.peers.eager_attention", str(folder), "--dtype", dtype]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield Peer(process.stdin, process.stdout)
        process.stdin.close()


class PeakOf:
    """The most memory that a server's processes have beyond what they had, sampled every few milliseconds."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_over = threading.Event()
        self.num_bytes = 0

    def __enter__(self) -> "PeakOf":
        self._before = sum(self._server.resident_bytes().values())
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.num_bytes = max(self.num_bytes, sum(self._server.resident_bytes().values()) - self._before)


def ask(http: httpx.Client, wish: Wish, prompt: Sequence[int]) -> float:
    """Return the seconds from the request to the last byte."""
    started = time.perf_counter()
    answer = http.post("/v1/attention", json=wish.body(prompt), headers=SAFETENSORS)
    seconds = time.perf_counter() - started
    answer.raise_for_status()
    maps = 1 if wish.layer is not None else 144
    expected = maps * wish.prompt_tokens**2 * {"float32": 4, "float16": 2}[wish.dtype]
    if not expected <= len(answer.content) <= expected + (1 << 20):
        raise RuntimeError(f"{wish.name}: {len(answer.content)} bytes; {expected} of them are patterns")
    return seconds


def measure_wish(folder: Path, dtype: str, wish: Wish, turns: int) -> Found:
    """Measure one selection with a server and a peer of its own, so that their first answers show what memory it
    takes.
    """
    found = Found()
    short = Wish("warm-up", 16, wish.layer, wish.dtype)
    prompts = random_prompts(2 * (turns + 1), 1, wish.prompt_tokens)
    with (
        serve([str(folder), "--dtype", dtype]) as server,
        eager(folder, dtype) as peer,
        httpx.Client(base_url=server.url, timeout=120.0) as http,
    ):
        for seed in (2, 3):
            ask(http, short, random_prompts(1, seed, 16)[0])
            peer.ask(short, random_prompts(1, seed, 16)[0])
        with PeakOf(server) as peak:
            ask(http, wish, prompts.pop())
        found.our_peak = peak.num_bytes
        found.their_peak = peer.ask(wish, prompts.pop())["peak"]
        for _ in range(turns):
            found.ours.append(ask(http, wish, prompts.pop()))
            found.theirs.append(peer.ask(wish, prompts.pop())["seconds"])
    return found


async def stream_all(server: Server, seed: int, *, layer: int | None) -> float:
    """Return the tokens/s of all streams, the first of which returns the attention of `layer` unless it is None."""
    bodies: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": STREAMED_TOKENS, "temperature": 0, "ignore_eos": True}
        for prompt in random_prompts(STREAMS, seed)
    ]
    if layer is not None:
        bodies[0]["attention"] = {"layers": layer, "dtype": "float16", "encoding_format": "base64"}
    started = time.perf_counter()
    timelines = await asyncio.gather(*(stream_completion(server.host, server.port, body) for body in bodies))
    return sum(timeline.completion_tokens for timeline in timelines) / (time.perf_counter() - started)


def table_of_prompts(folder: Path, options: argparse.Namespace) -> None:
    print(
        "| dtype | asked for | tokens | ms | transformers | times faster | MiB beyond idle | theirs | ours / theirs |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for dtype in options.dtype:
        for wish in WISHES:
            found = measure_wish(folder, dtype, wish, options.turns)
            times = [f"{1e3 * statistics.median(each):.0f}" for each in (found.ours, found.theirs)]
            sizes = [f"{size / (1 << 20):.0f}" for size in (found.our_peak, found.their_peak)]
            cells = [dtype, wish.name, str(wish.prompt_tokens), *times, f"{found.ratio:.2f}", *sizes]
            print(f"| {' | '.join([*cells, f'{found.our_peak / found.their_peak:.2f}'])} |", flush=True)


def table_of_streams(folder: Path, options: argparse.Namespace) -> None:
    print(f"\n| dtype | {STREAMS} streams, tokens/s | one with attention | share |\n|---|---|---|---|", flush=True)
    for dtype in options.dtype:
        with serve([str(folder), "--dtype", dtype]) as server:
            asyncio.run(stream_all(server, 0, layer=6))
            pairs = []
            for turn in range(options.turns):
                plain, looked = (asyncio.run(stream_all(server, 10 + turn, layer=layer)) for layer in (None, 6))
                pairs.append((plain, looked))
        rates = [f"{statistics.median(each):.0f}" for each in zip(*pairs, strict=True)]
        share = statistics.median(looked / plain for plain, looked in pairs)
        print(f"| {dtype} | {' | '.join(rates)} | {share:.3f} |", flush=True)


TABLES = {"prompts": table_of_prompts, "streams": table_of_streams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=ROOT / "benchmarks" / ".cache")
    options = parser.parse_args()
    folder = make_checkpoint(options.cache)
    for name in options.tables:
        TABLES[name](folder, options)


if __name__ == "__main__":
    main()
