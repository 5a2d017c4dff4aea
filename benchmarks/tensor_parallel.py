"""Compare a model on one process with the same model on several: differences of numbers, time and memory of a step.

Each line is an engine in a separate process, which starts the other ranks. The compared numbers are every layer's
patterns and residual stream and the logits for a text of 200 tokens, and 64 greedy tokens for each of eight prompts.
Each line is compared with the model's first line. On a CPU the ranks share the cores and communicate over the loopback
interface, so steps are slower, not faster: the difference is the cost of communication.

    python -m benchmarks.tensor_parallel                    # the default model and the 124M checkpoint, 1 and 2 ranks
    python -m benchmarks.tensor_parallel --ranks 1 2 4 --model small
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.models import add_cache
from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.outputs import RequestOutput
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask, PointCapture, Task, TraceTask
from tests.server.engine.driving import as_numpy, generate, request

STREAMS = (1, 8, 32)
POINTS = ("attn.hook_pattern", "hook_resid_post")
_STEPS = 60
_CACHE = 768 << 20
"""Bytes of the cache, for the longest of all streams at once, in float64 too."""


@dataclass
class Measured:
    load: float
    """Seconds to load."""
    steps: dict[int, float]
    """Median milliseconds of a step, by the number of streams that get a token each."""
    prompt: float
    """Milliseconds of a prompt of 512 tokens (less where the context is shorter), median."""
    looking: float
    """Milliseconds of a trace of patterns and residual stream of 200 tokens, median."""
    bytes: list[int]
    """Bytes of each rank's private memory that is in use, torch's and Python's own included."""
    numbers: dict[str, np.ndarray]
    """Patterns, residual stream and logits of a text, and the tokens of each prompt."""


def run(engine: Engine, requests: Sequence[EngineRequest]) -> dict[int, list[RequestOutput]]:
    answers: dict[int, list[RequestOutput]] = {each.uid: [] for each in requests}
    for each in requests:
        engine.add_request(each)
    while engine.has_work:
        for output in engine.step().outputs:
            answers[output.uid].append(output)
    return answers


def writing(num_tokens: int) -> GenerateTask:
    return generate(num_tokens, seed=0, ignore_eos=True)


def tracing(num_layers: int) -> TraceTask:
    points = [
        PointCapture(name=f"blocks.{layer}.{point}", stack="decoder", layer=layer, point=point)
        for layer in range(num_layers)
        for point in POINTS
    ]
    return TraceTask(points=(*points, PointCapture(name="logits", stack="decoder", layer=None, point="logits")))


def measure(folder: Path, num_ranks: int, dtype: str) -> Measured:
    sizes = json.loads((folder / "config.json").read_text())
    began = time.perf_counter()
    engine = Engine.from_folder(
        EngineConfig(model=folder, tensor_parallel=num_ranks, dtype=dtype, kv_cache_bytes=_CACHE // num_ranks)
    )
    load = time.perf_counter() - began
    vocabulary, context = sizes["vocab_size"], engine.info.max_model_len
    prompts = random_prompts(9, 0, 200, vocabulary)
    numbers: dict[str, np.ndarray] = {}
    (traced,) = run(engine, [request(0, prompts[0], tracing(sizes["num_hidden_layers"]))])[0]
    numbers |= {name: as_numpy(array) for name, array in traced.tensors.items()}
    told = run(engine, [request(1 + i, prompt[:64], writing(64)) for i, prompt in enumerate(prompts[1:])])
    numbers["tokens"] = np.array([[output.token_id for output in told[uid]] for uid in sorted(told)])
    steps = {streams: step_ms(engine, streams, vocabulary) for streams in STREAMS}
    length = min(512, context - 1)
    prompt = median_ms(engine, lambda: (random_prompts(1, random.getrandbits(30), length, vocabulary)[0], writing(1)))
    looking = median_ms(engine, lambda: (prompts[0], tracing(sizes["num_hidden_layers"])))
    held = [private_bytes(pid) for pid in (str(os.getpid()), *other_ranks())]
    return Measured(load, steps, prompt, looking, held, numbers)


def other_ranks() -> list[str]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        pid
        for pid in children
        if b"lightwell.server.engine.tensor_parallel.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def private_bytes(pid: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def median_ms(engine: Engine, make: Callable[[], tuple[Sequence[int], Task]]) -> float:
    """Return the median milliseconds of a single request."""
    times = []
    for uid in range(7):
        prompt, task = make()
        began = time.perf_counter()
        run(engine, [request(10_000 + uid, prompt, task)])
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[2:])


def step_ms(engine: Engine, streams: int, vocabulary: int) -> float:
    for i, prompt in enumerate(random_prompts(streams, streams, 64, vocabulary)):
        engine.add_request(request(20_000 + i, prompt, writing(_STEPS + 20)))
    times = []
    while engine.has_work:
        began = time.perf_counter()
        step = engine.step()
        if step.stats.iteration_tokens == len(step.outputs) == streams:
            times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def worst(mine: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> str:
    """Return the largest differences of patterns, residual stream and logits, and how many tokens are the same until
    they differ.
    """
    cells = []
    for ending in ("hook_pattern", "hook_resid_post", "logits"):
        names = [name for name in mine if name.endswith(ending)]
        cells.append(f"{max(float(np.abs(mine[n].astype(float) - other[n]).max()) for n in names):.1e}")
    same = np.cumprod(mine["tokens"] == other["tokens"], 1).sum()
    return " | ".join([*cells, f"{same} of {mine['tokens'].size}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="the first is one of the reference")
    parser.add_argument("--model", nargs="+", default=["small", "124m"], choices=["small", "124m"])
    parser.add_argument("--dtype", nargs="+", default=["float64", "float32", "bfloat16"], help="likewise")
    add_cache(parser)
    options = parser.parse_args()
    print(
        "| model | dtype | ranks | worst pattern | stream | logits | tokens alike | load s | step ms, "
        f"{' / '.join(map(str, STREAMS))} streams | prompt ms | trace ms | MiB of each rank |\n" + "|---" * 12 + "|"
    )
    for name in options.model:
        folder = PACKAGED if name == "small" else make_checkpoint(options.cache)
        first = None
        for dtype, ranks in itertools.product(options.dtype, options.ranks):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
                found = fresh_process.submit(measure, folder, ranks, dtype).result()
            first = first or found
            steps = " / ".join(f"{found.steps[streams]:.1f}" for streams in STREAMS)
            held = " + ".join(str(each >> 20) for each in found.bytes)
            cells = [name, dtype, str(ranks), worst(found.numbers, first.numbers), f"{found.load:.1f}", steps]
            cells += [f"{found.prompt:.1f}", f"{found.looking:.1f}", held]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
