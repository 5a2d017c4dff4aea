"""Measure the memory of a server of the 124M checkpoint in bfloat16, one minute after load, compared with its weights.

Memory is the proportional set size (PSS) of all its processes, so that a shared page counts once. Other programs that
map the same libraries reduce it, so no others should run. The used part of the KV cache is counted separately: the
server reports it.

    python -m benchmarks.serving_memory --cache /tmp/lightwell-benchmarks
"""

import argparse
import asyncio
import re
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoint import CONTEXT, make_checkpoint, random_prompts
from benchmarks.comparison import table
from benchmarks.load import closed_loop
from benchmarks.models import add_folders
from tests.support.processes import Server, is_worker, serve

CLIENTS = 32
REQUESTS = 64
SECONDS = 60.0
CONTEXTS = 64
BLOCK_SIZE = 32
MOST_TIMES_WEIGHTS, MOST_BESIDE = 1.5, 400_000_000
"""The limit: a multiple of the weights, and bytes in addition."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint in bfloat16, in bytes."""

    weights: int
    kv_cache: int

    @property
    def allowed(self) -> float:
        return MOST_TIMES_WEIGHTS * self.weights + MOST_BESIDE


def sizes_of(folder: Path) -> Sizes:
    """Return the sizes of a folder with weights in float32."""
    import torch

    from model.checkpoint.registry import read_config
    from model.kv_cache import KVCache

    num_blocks = CONTEXTS * CONTEXT // BLOCK_SIZE
    kv_cache = num_blocks * KVCache.bytes_per_block(read_config(folder), BLOCK_SIZE, torch.bfloat16)
    return Sizes((folder / "model.safetensors").stat().st_size // 2, kv_cache)


def memory_after_load(folder: Path, kv_cache: int, seconds: float) -> tuple[dict[str, int], int]:
    """Return the bytes by kind of process, `seconds` after REQUESTS by CLIENTS clients, and of the KV cache."""
    arguments = [str(folder), "--dtype", "bfloat16", "--served-model-name", "model"]
    with serve([*arguments, "--kv-cache-memory", str(kv_cache), "--block-size", str(BLOCK_SIZE)]) as server:
        prompts = random_prompts(REQUESTS, seed=0)
        bodies = [{"model": "model", "prompt": prompt, "max_tokens": 64, "ignore_eos": True} for prompt in prompts]
        asyncio.run(closed_loop(server.host, server.port, bodies, CLIENTS))
        time.sleep(seconds)
        return by_kind(server), committed_bytes(server)


def committed_bytes(server: Server) -> int:
    """Return the bytes of the KV cache that requests have used."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        found = re.search(rb"^lightwell_kv_cache_committed_bytes\S* (\S+)$", answer.read(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def by_kind(server: Server) -> dict[str, int]:
    found: dict[str, int] = {}
    for pid, size in server.resident_bytes().items():
        kind = "API process" if pid == server.pid else "worker" if is_worker(pid) else "others"
        found[kind] = found.get(kind, 0) + size
    return found


def report(folder: Path, seconds: float) -> None:
    """Print the table. MB are 10^6 bytes."""
    sizes = sizes_of(folder)
    found, kv_cache = memory_after_load(folder, sizes.kv_cache, seconds)
    without_cache = sum(found.values()) - kv_cache
    cells = {
        **{f"{kind} MB": size for kind, size in found.items()},
        "KV cache": kv_cache,
        "all without it": without_cache,
        "weights": sizes.weights,
        f"bar: weights x {MOST_TIMES_WEIGHTS} + {MOST_BESIDE / 1e6:.0f}": sizes.allowed,
    }
    figures = [f"{size / 1e6:.0f}" for size in cells.values()]
    rows = [
        ["memory, 124m, bfloat16", *cells, "share of the bar"],
        ["", *figures, f"{without_cache / sizes.allowed:.2f}"],
    ]
    print(f"{table(rows)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_folders(parser)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of rest before memory is read")
    options = parser.parse_args()
    report(make_checkpoint(options.cache), options.seconds)


if __name__ == "__main__":
    main()
