"""Measure the memory of servers, compared with the prediction of `lightwell size` (docs/sizing.md).

Memory is the proportional set size of all processes of a server some seconds after load. The unused part of the KV
cache occupies no memory, and is added. No other programs should run: if they map the same libraries, the measured
size is smaller.

    python -m benchmarks.sizing --cache /tmp/lightwell-benchmarks
"""

import argparse
import asyncio
import time
from pathlib import Path

from benchmarks.checkpoint import random_prompts
from benchmarks.comparison import table
from benchmarks.load import closed_loop
from benchmarks.models import MODELS, add_folders
from benchmarks.serving_memory import by_kind, committed_bytes
from model.checkpoint.registry import read_config
from server.config.memory_estimate import sizes
from server.config.settings import Settings
from tests.support.processes import serve

CASES = (
    ("fables", "float32", "none"),
    ("fables", "bfloat16", "none"),
    ("124m", "float32", "none"),
    ("124m", "bfloat16", "none"),
    ("124m", "bfloat16", "int8"),
)
KV_CACHE = 256 << 20
REST = 10.0
CLIENTS, REQUESTS = 16, 32
SMALLEST_VOCABULARY = 4096


def measured(folder: Path, dtype: str, quantize: str) -> dict[str, int]:
    """Return the bytes by kind of process, without the KV cache, some seconds after the last of some requests."""
    arguments = [str(folder), "--dtype", dtype, "--quantize", quantize, "--kv-cache-memory", str(KV_CACHE)]
    with serve([*arguments, "--served-model-name", "model"]) as server:
        prompts = random_prompts(REQUESTS, seed=0, vocabulary=SMALLEST_VOCABULARY)
        bodies = [{"model": "model", "prompt": prompt, "max_tokens": 16, "ignore_eos": True} for prompt in prompts]
        asyncio.run(closed_loop(server.host, server.port, bodies, CLIENTS))
        time.sleep(REST)
        found = by_kind(server)
        return found | {"worker": found["worker"] - committed_bytes(server)}


def row(model: str, cache: Path, dtype: str, quantize: str) -> list[str]:
    """Return one line of the table. MB are 10^6 bytes."""
    folder = MODELS[model].folder(cache)
    settings = Settings(dtype=dtype, quantize=quantize, kv_cache_memory=KV_CACHE)
    foretold = sizes(read_config(folder), settings)
    found = measured(folder, dtype, quantize)
    total = sum(found.values()) + KV_CACHE
    numbers = (foretold.weights, found["worker"], found["API process"], total, foretold.idle)
    return [model, dtype, quantize, *(f"{size / 1e6:.0f}" for size in numbers), f"{total / foretold.idle:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_folders(parser)
    options = parser.parse_args()
    head = [
        "model",
        "dtype",
        "quantize",
        "weights MB",
        "worker without cache",
        "API process",
        "all, with a full cache",
        "foretold",
        "ratio",
    ]
    print(table([head, *(row(model, options.cache, dtype, kind) for model, dtype, kind in CASES)]), flush=True)


if __name__ == "__main__":
    main()
