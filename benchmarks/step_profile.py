"""Measures where the time of one decode step goes: products, attention, norms, and what is between them.

A network in this process runs steps of one token each of 1, 8 and 32 sequences that hold 160 tokens. The step is timed
as a server takes it, all blocks in one call where that can be, and block by block; the parts are timed in further steps
block by block, with a clock around each, so that they add up to a little more. "Products alone" are the same products,
one after the other with nothing between them (`benchmarks.ceiling`), timed in turn with the steps.

    python -m benchmarks.step_profile --dtype bfloat16 --rows 1 8 32
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.ceiling import Products
from benchmarks.checkpoint import make_checkpoint
from benchmarks.comparison import table
from model.batch import Batch, Span
from model.checkpoint.registry import read_config
from model.kv_cache import KVCache
from model.layers import attention, linear, norm
from model.loading.loader import load_model
from server.engine.execution.threads import use_threads
from server.lifecycle.worker_process import prepare_environment
from tests.support.processes import ROOT

KEYS, BLOCK = 160, 32
PARTS: list[tuple[str, type, str]] = [
    ("products", linear.Linear, "__call__"),
    ("norms", norm.RmsNorm, "__call__"),
    ("rotation, cache", attention.NativeAttention, "enter"),
    ("attention", attention.NativeAttention, "attend"),
]
"""What is timed in a step: a name, and the method that does it."""


@contextmanager
def clocks(seconds: dict[str, float]) -> Iterator[None]:
    """Add to `seconds` what each of PARTS takes."""
    originals = [getattr(owner, method) for _, owner, method in PARTS]

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = call(*arguments, **named)
            seconds[name] += time.perf_counter() - started
            return result

        return run

    for (name, owner, method), original in zip(PARTS, originals, strict=True):
        setattr(owner, method, timed(name, original))
    try:
        yield
    finally:
        for (_, owner, method), original in zip(PARTS, originals, strict=True):
            setattr(owner, method, original)


class Decoder:
    """A network and a cache in which a number of sequences hold KEYS tokens."""

    def __init__(self, folder: Path, dtype: torch.dtype, rows: int) -> None:
        self.config = read_config(folder)
        device, length = torch.device("cpu"), min(self.config.max_model_len, 1024)
        self.model = load_model(folder, self.config, dtype, device, max_model_len=length, batch_invariant=True)
        self._per_row = KEYS // BLOCK + 1
        self._cache = KVCache(self.config, rows * self._per_row + 1, BLOCK, dtype, device)
        for layer in self._cache.layers:  # of memory that was never written to the kernel gives one page for all of it
            layer.keys.normal_()
            layer.values.normal_()
        self._rows = rows
        decoder = self.model.decoder
        assert decoder is not None
        self._stacks = {False: decoder, True: replace(decoder, decode_step=None)}

    def step(self, *, block_by_block: bool) -> list[int]:
        self.model.decoder = self._stacks[block_by_block]
        spans = []
        for row in range(self._rows):
            first = 1 + row * self._per_row
            spans.append(Span([row], KEYS, range(first, first + self._per_row), self.config.num_layers))
        batch = Batch(spans, BLOCK, self.model.device)
        return self.model.largest_logits(self.model.forward(batch, self._cache))[0]


def measure(folder: Path, dtype: torch.dtype, rows: int, rounds: int) -> list[str]:
    """Measure and return a row of the table: medians in milliseconds."""
    decoder = Decoder(folder, dtype, rows)
    products = Products(decoder.config, dtype)
    whole: dict[bool, list[float]] = {False: [], True: []}
    alone: list[float] = []
    parts: dict[str, list[float]] = defaultdict(list)
    for turn in range(-1, rounds):  # the first one warms up
        for block_by_block, seconds_of_steps in whole.items():
            for _ in range(10):
                started = time.perf_counter()
                decoder.step(block_by_block=block_by_block)
                if turn >= 0:
                    seconds_of_steps.append(time.perf_counter() - started)
        for _ in range(5):
            seconds = dict.fromkeys((name for name, _, _ in PARTS), 0.0)
            with clocks(seconds):
                decoder.step(block_by_block=True)
            if turn >= 0:
                for name, spent in seconds.items():
                    parts[name].append(spent)
        if turn >= 0:
            alone.append(products.step_seconds(rows, rows))
    medians = [statistics.median(parts[name]) for name, _, _ in PARTS]
    step, slow_step = statistics.median(whole[False]), statistics.median(whole[True])
    cells = [step, slow_step, *medians, max(0.0, slow_step - sum(medians)), statistics.median(alone)]
    return [str(rows), *(f"{1e3 * cell:.2f}" for cell in cells), f"{statistics.median(alone) / step:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint folder; None is the 124M one")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--rounds", type=int, default=10, help="of ten steps each way, five in parts and seven of products"
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "benchmarks" / ".cache", help="where the checkpoint is kept"
    )
    options = parser.parse_args()
    prepare_environment(options.threads)
    folder = options.model or make_checkpoint(options.cache)
    use_threads(options.threads, read_config(folder).num_matrix_parameters)
    for name in options.dtype:
        parts = [*(part for part, _, _ in PARTS), "the rest"]
        rows = [["rows", "step, ms", "block by block", *parts, "products alone", "they / step"]]
        rows += [measure(folder, getattr(torch, name), count, options.rounds) for count in options.rows]
        print(f"{name}, {torch.get_num_threads()} threads\n\n{table(rows)}\n", flush=True)


if __name__ == "__main__":
    main()
