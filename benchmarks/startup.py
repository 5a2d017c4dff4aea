"""Measure the time from the start of the process to ready and to the first token, compared with other engines: first
start and later starts.

The first start of each engine is like that of a fresh clone after `make install`: without bytecode of our own source,
and with empty compile caches for the peers. For later starts the medians are given. The files of model and libraries
are in the page cache, and the libraries' bytecode exists. Readiness is polled ten times per second; then one request
with a short prompt is sent. With `--build-image` a fresh container with the default model is measured too: from the
start of `lightwell serve` in it to its first token.

    python -m benchmarks.startup --models default 124m --turns 5 [--build-image SCRIPT]
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.comparison import OURS, ratio, table
from benchmarks.load import stream_completion
from benchmarks.models import GGUF_MODELS, MODELS, add_folders
from benchmarks.peers.engines import ENGINES, STORED, Absent, Setup
from benchmarks.subjects import vocabulary_of
from tests.support.processes import ROOT, ServerFailed

PROMPT_TOKENS = 16
DTYPE = "bfloat16"
VLLM = "vllm"
IMAGE = "lightwell-startup"


@dataclass(frozen=True)
class Start:
    """The start of one process. Times are seconds since it was started."""

    ready: float
    first_token: float


def start_once(name: str, setup: Setup) -> Start:
    prompt = [id_ % vocabulary_of(setup.folder) for id_ in range(300, 300 + PROMPT_TOKENS)]
    started = time.perf_counter()
    with ENGINES[name](setup) as engine:
        ready = time.perf_counter() - started
        body = {"model": engine.model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        line = asyncio.run(stream_completion(engine.server.host, engine.server.port, body))
        return Start(ready, line.tokens_at[0] - started)


def caches_in(folder: Path) -> dict[str, str]:
    """Return the environment variables that put Triton's and vLLM's compile caches into the folder."""
    names = ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
    return {name: str(folder / name.lower()) for name in names}


def forget_bytecode() -> None:
    """Remove the bytecode, so that our own source is as in a fresh clone."""
    for top in ("model", "server", "src"):
        for folder in list((ROOT / top).rglob("__pycache__")):
            shutil.rmtree(folder)


def measure(names: Sequence[str], setup: Setup, turns: int) -> dict[str, list[Start]]:
    """Measure a fresh start and `turns` more of each engine that is available, in turn. Print why one is not."""
    found: dict[str, list[Start]] = {name: [] for name in names}
    forget_bytecode()
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
    """Return a table of seconds. The ratio is of the starts after the first."""
    times = [f"{which}: {what}" for which in ("fresh", "again") for what in ("ready s", "first token")]
    rows = [[title, "engine", *times, "ready, ours / vLLM's"]]
    again = {name: [each.ready for each in starts[1:]] for name, starts in found.items()}
    for name, (fresh, *others) in found.items():
        figures = [fresh.ready, fresh.first_token, statistics.median(again[name])]
        figures.append(statistics.median(each.first_token for each in others))
        compared = f"{ratio(again, VLLM):.2f}" if name == OURS and VLLM in found else ""
        rows.append(["", name, *(f"{seconds:.1f}" for seconds in figures), compared])
    return table(rows)


def report(models: Sequence[str], names: Sequence[str], cache: Path, home: Path, turns: int) -> None:
    """Print a table for each of `models` (of MODELS and GGUF_MODELS)."""
    for model in models:
        dtype = STORED if model in GGUF_MODELS else DTYPE
        found = measure(names, Setup((MODELS | GGUF_MODELS)[model].folder(cache), dtype, home), turns)
        print(f"{table_of_starts(f'start, {model}, {dtype}', found)}\n", flush=True)


def table_of_container(build_image: str) -> str:
    """Return a table of the seconds of the image in a new container, by a script: SCRIPT TAG builds it, SCRIPT TAG
    -- COMMAND runs in one.
    """
    subprocess.run([build_image, IMAGE], cwd=ROOT, check=True, capture_output=True)
    check = (ROOT / "tests" / "tools" / "serve_once.py").read_text(encoding="utf-8")
    command = [build_image, IMAGE, "--", "python", "-c", check]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    told = json.loads(printed.splitlines()[-1])
    seconds = [f"{told['ready_s']:.1f}", f"{told['answered_s']:.1f}"]
    return table([["start, default", "ready s", "first token"], ["fresh container", *seconds]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS, *GGUF_MODELS])
    parser.add_argument("--engines", nargs="+", default=[*ENGINES], choices=[*ENGINES])
    parser.add_argument("--turns", type=int, default=5, help="starts of each engine after the first")
    parser.add_argument("--build-image", metavar="SCRIPT", help="what builds the image and runs commands in it")
    add_folders(parser)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores\n")
    report(options.models, options.engines, options.cache, options.home, options.turns)
    if options.build_image:
        print(table_of_container(options.build_image), flush=True)


if __name__ == "__main__":
    main()
