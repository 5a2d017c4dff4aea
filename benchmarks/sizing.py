"""Measure the memory of servers, compared with the prediction of `lightwell size` (docs/sizing.md).

Memory is the proportional set size (PSS) of all processes of a server some seconds after load, so that a shared page
counts once. The unused part of the KV cache occupies no memory, and is added. No other programs should run: if they map
the same libraries, the measured size is smaller.

    python -m benchmarks.sizing --cache /tmp/lightwell-benchmarks

`report_bar` is the table `memory` of `benchmarks.generation`: the 124M checkpoint in bfloat16, one minute after load
and without its KV cache, compared with its weights.
"""

import argparse
import asyncio
import time
import urllib.request
from pathlib import Path

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.comparison import table
from benchmarks.load import closed_loop
from benchmarks.models import MODELS, add_cache
from lightwell.model.checkpoint.registry import read_config
from lightwell.server.config.memory_estimate import sizes
from lightwell.server.config.settings import Settings
from tests.support.processes import Server, is_worker, serve
from tests.support.wire import samples

CASES = (
    ("fables", "float32", "none"),
    ("fables", "bfloat16", "none"),
    ("124m", "float32", "none"),
    ("124m", "bfloat16", "none"),
    ("124m", "bfloat16", "int8"),
)
KV_CACHE = 256 << 20
SMALLEST_VOCABULARY = 4096
MOST_TIMES_WEIGHTS, MOST_BESIDE = 1.5, 400_000_000
"""The bar: a multiple of the weights, and bytes in addition."""


def measured(
    folder: Path, dtype: str, quantize: str, *, clients: int, requests: int, max_tokens: int, rest: float
) -> tuple[dict[str, int], int]:
    """Return the bytes by kind of process, `rest` seconds after the last request, and the bytes of the KV cache, a
    part of the worker's: only the blocks that requests have used take memory.
    """
    arguments = [str(folder), "--dtype", dtype, "--quantize", quantize, "--kv-cache-memory", str(KV_CACHE)]
    with serve([*arguments, "--served-model-name", "model"]) as server:
        prompts = random_prompts(requests, seed=0, vocabulary=SMALLEST_VOCABULARY)
        asked = {"model": "model", "max_tokens": max_tokens, "ignore_eos": True}
        bodies = [{**asked, "prompt": prompt} for prompt in prompts]
        asyncio.run(closed_loop(server.host, server.port, bodies, clients))
        time.sleep(rest)
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            committed = samples(answer.read().decode())["lightwell_kv_cache_committed_bytes"]
        return by_kind(server), int(committed)


def by_kind(server: Server) -> dict[str, int]:
    found: dict[str, int] = {}
    for pid, size in server.resident_bytes().items():
        kind = "API process" if pid == server.pid else "worker" if is_worker(pid) else "others"
        found[kind] = found.get(kind, 0) + size
    return found


def report_bar(cache: Path) -> None:
    """Print the memory of the 124M checkpoint and its bar. MB are 10^6 bytes."""
    folder = make_checkpoint(cache)
    weights = (folder / "model.safetensors").stat().st_size // 2  # stored in float32
    found, committed = measured(folder, "bfloat16", "none", clients=32, requests=64, max_tokens=64, rest=60)
    without_cache, bar = sum(found.values()) - committed, MOST_TIMES_WEIGHTS * weights + MOST_BESIDE
    cells = {
        **{f"{kind} MB": size for kind, size in found.items()},
        "KV cache": committed,
        "all without it": without_cache,
        "weights": weights,
        f"bar: weights x {MOST_TIMES_WEIGHTS} + {MOST_BESIDE / 1e6:.0f}": bar,
    }
    figures = [f"{size / 1e6:.0f}" for size in cells.values()]
    head = ["memory, 124m, bfloat16", *cells, "share of the bar"]
    print(f"{table([head, ['', *figures, f'{without_cache / bar:.2f}']])}\n", flush=True)


def row(model: str, cache: Path, dtype: str, quantize: str) -> list[str]:
    """Return one line of the table of predictions. MB are 10^6 bytes."""
    folder = MODELS[model].folder(cache)
    settings = Settings(dtype=dtype, quantize=quantize, kv_cache_memory=KV_CACHE)
    foretold = sizes(read_config(folder), settings)
    found, committed = measured(folder, dtype, quantize, clients=16, requests=32, max_tokens=16, rest=10)
    total = sum(found.values()) - committed + KV_CACHE
    numbers = (foretold.weights, found["worker"] - committed, found["API process"], total, foretold.idle)
    return [model, dtype, quantize, *(f"{size / 1e6:.0f}" for size in numbers), f"{total / foretold.idle:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cache(parser)
    options = parser.parse_args()
    head = ["model", "dtype", "quantize", "weights MB", "worker without cache", "API process"]
    head += ["all, with a full cache", "foretold", "ratio"]
    print(table([head, *(row(model, options.cache, dtype, kind) for model, dtype, kind in CASES)]), flush=True)


if __name__ == "__main__":
    main()
