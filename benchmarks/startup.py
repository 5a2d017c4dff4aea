"""From the start of the process to ready and to the first token, beside other engines, with cold and warm caches.

Each engine gets a folder of its own for what it compiles. Its first start finds that empty and is the cold figure; of
those after it the medians are told. Python's own bytecode and the files of model and libraries are there in both: that
is a machine on which the engine was installed and tried. Ready is asked for ten times a second; then one request with a
short prompt is sent.

    python -m benchmarks.startup --models default 124m --turns 5
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.comparison import OURS, ratio, table
from benchmarks.load import stream_completion
from benchmarks.models import MODELS, add_folders
from benchmarks.peers.engines import ENGINES, Absent, Setup
from benchmarks.processes import ServerFailed
from benchmarks.subjects import vocabulary_of

PROMPT_TOKENS = 16
DTYPE = "bfloat16"
VLLM = "vllm"


@dataclass(frozen=True)
class Start:
    """Of one process. Seconds since it was started."""

    ready: float
    first_token: float


def start_once(name: str, setup: Setup) -> Start:
    """Raises Absent or ServerFailed."""
    prompt = [id_ % vocabulary_of(setup.folder) for id_ in range(300, 300 + PROMPT_TOKENS)]
    started = time.perf_counter()
    with ENGINES[name](setup) as engine:
        ready = time.perf_counter() - started
        body = {"model": engine.model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        line = asyncio.run(stream_completion(engine.server.host, engine.server.port, body))
        return Start(ready, line.tokens_at[0] - started)


def caches_in(folder: Path) -> dict[str, str]:
    """The environment with which what engines compile is kept there: numba's, inductor's and vLLM's own."""
    names = ("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT")
    return {name: str(folder / name.lower()) for name in names}


def measure(names: Sequence[str], setup: Setup, turns: int) -> dict[str, list[Start]]:
    """Of each engine that is there a cold start and so many warm ones, in turns. Prints why one is not there."""
    found: dict[str, list[Start]] = {name: [] for name in names}
    with TemporaryDirectory(prefix="lightwell-startup-") as caches:
        for _ in range(turns + 1):
            for name in [*found]:
                environment = caches_in(Path(caches) / name)
                try:
                    found[name].append(start_once(name, replace(setup, environment=environment)))
                except (Absent, ServerFailed) as error:
                    print(f"{name} is not in the table of starts: {error}", flush=True)
                    del found[name]
    return found


def table_of_starts(title: str, found: dict[str, list[Start]]) -> str:
    """Seconds. The ratio is of the warm starts."""
    head = [
        "engine",
        "cold: ready s",
        "cold: first token",
        "warm: ready s",
        "warm: first token",
        "ready, ours / vLLM's",
    ]
    rows = [[title, *head]]
    warm = {name: [each.ready for each in starts[1:]] for name, starts in found.items()}
    for name, (cold, *others) in found.items():
        is_compared = name == OURS and VLLM in found
        rows.append([
            "",
            name,
            f"{cold.ready:.1f}",
            f"{cold.first_token:.1f}",
            f"{statistics.median(warm[name]):.1f}",
            f"{statistics.median(each.first_token for each in others):.1f}",
            f"{ratio(warm, VLLM):.2f}" if is_compared else "",
        ])  # fmt: skip
    return table(rows)


def report(models: Sequence[str], names: Sequence[str], cache: Path, home: Path, turns: int) -> None:
    """Prints a table for each of `models` (of MODELS)."""
    for model in models:
        found = measure(names, Setup(MODELS[model].folder(cache), DTYPE, home), turns)
        print(f"{table_of_starts(f'start, {model}, {DTYPE}', found)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--engines", nargs="+", default=[*ENGINES], choices=[*ENGINES])
    parser.add_argument("--turns", type=int, default=5, help="warm starts of each engine")
    add_folders(parser)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores\n")
    report(options.models, options.engines, options.cache, options.home, options.turns)


if __name__ == "__main__":
    main()
