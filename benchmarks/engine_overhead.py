"""Measure the overhead of an engine step beyond the network: scheduling, the batch, sampling, counters and the message
to the API process.

An engine runs in this process, with `--streams` requests that generate from prompts of 128 tokens. Measured steps are
those in which every stream gets one token. Their wall time is split into three parts: the network
(`Transformer.forward` and the head, which searches its product for the largest logit where it can), the rest of
`Engine.step`, and the message for the API process. With `--attention` one stream captures all heads of one layer with
each token, as float16: its rows are recomputed inside the network, its sinks count as overhead. The last column is the
number of calls of Python functions in a step, without the network's.

    python -m benchmarks.engine_overhead --streams 1 8 32
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.models import add_cache
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution.threads import use_threads
from lightwell.server.engine.execution.warm_up import warm_up
from lightwell.server.engine.memory.process_memory import freeze_garbage
from lightwell.server.engine.messages.request import AttentionCapture, EngineRequest
from lightwell.server.ipc import messages
from lightwell.server.lifecycle.worker_process import prepare_environment
from tests.server.engine.driving import generate, request

NETWORK = ("forward", "logits", "largest_logits")
_COUNTED = 9


@contextmanager
def uncounted() -> Iterator[None]:
    """Count no calls within."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profile)


def num_calls(work: Callable[[], object]) -> int:
    """Return the number of calls of Python functions in some work."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@dataclass
class Stopwatch:
    """Seconds spent in the network since it was last read."""

    seconds: float = 0.0

    def time(self, model: Transformer) -> None:
        """Measure every call of the network's entries from now on."""
        for name in NETWORK:
            setattr(model, name, self._timed(getattr(model, name)))

    def read(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _timed(self, call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def timed(*arguments: Any, **named: Any) -> torch.Tensor:
            before, started = self.seconds, time.perf_counter()
            try:
                with uncounted():
                    return call(*arguments, **named)
            finally:
                self.seconds = before + time.perf_counter() - started  # one entry may call another

        return timed


@dataclass
class Steps:
    """Seconds of each step that gave every stream a token."""

    network: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    """Seconds of `Engine.step` without the network."""
    message: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    """Calls of Python functions in each of a few more steps."""

    @property
    def overhead(self) -> list[float]:
        return [engine + message for engine, message in zip(self.engine, self.message, strict=True)]


def use_worker_environment(module: str, folder: Path) -> None:
    """Restart the process as `module` with a worker's environment: C libraries read it when they start."""
    before = dict(os.environ)
    prepare_environment(None, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
    os.environ.pop("PYTHONSAFEPATH")  # the module is searched for in the working directory
    if before != os.environ:
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def build_engine(folder: Path, dtype: torch.dtype, watch: Stopwatch, max_num_seqs: int = 64) -> Engine:
    """Build an engine as `Engine.from_folder` does, around a network that is timed."""
    config = read_config(folder)
    use_threads(None, config.num_matrix_parameters)
    model = load_model(folder, config, dtype, torch.device("cpu"), max_model_len=config.max_model_len)
    cache = KVCache(config, 16 * max_num_seqs, 32, dtype, model.device)
    warm_up(model, cache, config.max_model_len, max_num_seqs, 2048)
    freeze_garbage()
    watch.time(model)
    engine_config = EngineConfig(model=folder, max_capture_tokens=32, max_num_seqs=max_num_seqs)
    return Engine(model, cache, engine_config, config.max_model_len)


def stream(uid: int, prompt: Sequence[int], temperature: float, layer: int | None) -> EngineRequest:
    """Return a request that generates, and returns the attention of `layer` unless it is None."""
    capture = None
    if layer is not None:
        capture = AttentionCapture(pairs=tuple((layer, head) for head in range(12)), dtype="float16")
    return request(uid, prompt, generate(4096, seed=uid, temperature=temperature, top_p=0.95, attention=capture))


def measure(
    engine: Engine, watch: Stopwatch, streams: int, num_steps: int, temperature: float, layer: int | None
) -> Steps:
    """Measure steps of `streams` requests that generate together, the first few left out."""
    base = random.getrandbits(30)
    for i, prompt in enumerate(random_prompts(streams, base)):
        engine.add_request(stream(base + i, prompt, temperature, layer if i == 0 else None))
    steps = Steps()
    for number in range(num_steps + 40):
        started = time.perf_counter()
        step = engine.step()
        stepped = time.perf_counter()
        messages.encode(messages.step_message(step))
        told = time.perf_counter()
        network = watch.read()
        if number >= 40 and step.stats.iteration_tokens == len(step.outputs) == streams:
            steps.network.append(network)
            steps.engine.append(stepped - started - network)
            steps.message.append(told - stepped)
    steps.calls = [num_calls(lambda: messages.encode(messages.step_message(engine.step()))) for _ in range(_COUNTED)]
    for i in range(streams):
        engine.abort(base + i)
    engine.step()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0: with top_p 0.95")
    parser.add_argument("--attention", type=int, metavar="LAYER", help="one stream tells this layer's rows")
    add_cache(parser)
    options = parser.parse_args()
    folder = make_checkpoint(options.cache)
    use_worker_environment("benchmarks.engine_overhead", folder)
    names = ["dtype", "streams", "network ms", "beside it, p50", "p90", "of that, message", "calls"]
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for dtype in options.dtype:
        watch = Stopwatch()
        engine = build_engine(folder, getattr(torch, dtype), watch, max(64, *options.streams))
        for streams in options.streams:
            steps = measure(engine, watch, streams, options.steps, options.temperature, options.attention)
            tenths = statistics.quantiles(steps.overhead, n=10)
            figures = [statistics.median(steps.network), statistics.median(steps.overhead), tenths[8]]
            figures.append(statistics.median(steps.message))
            cells = [dtype, str(streams), *(f"{1e3 * seconds:.3f}" for seconds in figures)]
            cells.append(str(round(statistics.median(steps.calls))))
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
