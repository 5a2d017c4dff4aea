"""Fits step times to steps of the real engine, in this process: the least relative errors, none below 0.

    python -m benchmarks.simulation.fit                          # the default model, and the 124M one if it is there
    python -m benchmarks.simulation.fit --model FOLDER --out times.json

Streams of all lengths come and go while the engine runs, so that steps of many kinds are timed: each with what the
scheduler put into it. What a line cannot fit is reported as the error.
"""

import argparse
import random
import time
from pathlib import Path

import torch

from benchmarks.checkpoint import NAME, random_prompts
from benchmarks.comparison import table
from benchmarks.engine_overhead import Stopwatch, build_engine, stream, use_worker_environment
from benchmarks.models import CACHE
from benchmarks.simulation.line import Fit, Step, fit_steps
from model.checkpoint.registry import read_config
from server.engine.engine import Engine
from server.ipc import messages
from tests.support.processes import ROOT


def measure_steps(engine: Engine, length: int, seconds: float, vocabulary: int) -> list[Step]:
    """Return steps while streams come and go, for `seconds`; `length` is the context. Those with no tokens are left
    out.
    """
    draw, steps = random.Random(1), []
    scheduler = engine._scheduler
    schedule = scheduler.schedule
    seen = []

    def noted(*arguments: object) -> object:
        seen.append(schedule(*arguments))
        return seen[-1]

    scheduler.schedule = noted
    uid, ends = 0, time.perf_counter() + seconds
    wanted = 1
    while time.perf_counter() < ends:
        if draw.random() < 0.02:
            wanted = draw.choice([1, 2, 4, 8, 16, 32, 48])
        while scheduler.num_running + scheduler.num_waiting < wanted:
            prompt = random_prompts(1, uid, draw.randint(8, length // 2), vocabulary)[0]
            engine.add_request(stream(uid, prompt, draw.randint(4, length // 3), 0.0, None))
            uid += 1
        started = time.perf_counter()
        message, _ = messages.step_message(engine.step())
        messages.encode(message)
        spent = time.perf_counter() - started
        done, num_decodes = seen[-1], seen[-1].num_decodes
        keys = sum(chunk.end for chunk in done.chunks[:num_decodes])
        steps.append(Step(done.num_tokens - num_decodes, num_decodes, keys, spent))
    return steps[20:]


def fit_folder(folder: Path, dtype: str, seconds: float = 15.0) -> Fit:
    """Fit the steps of a model folder, with the engine's defaults."""
    config = read_config(folder)
    engine = build_engine(folder, getattr(torch, dtype), Stopwatch())
    return fit_steps(measure_steps(engine, min(config.max_model_len, 1024), seconds, config.vocab_size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; None is the default model, and the 124M one if made")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=15.0, help="of steps")
    parser.add_argument("--out", type=Path, help="where the last one's step times are written")
    options = parser.parse_args()
    folders = [options.model] if options.model else [ROOT / "model" / "fables"]
    if options.model is None and (CACHE / NAME / "complete").exists():
        folders.append(CACHE / NAME)
    use_worker_environment("benchmarks.simulation.fit", folders[0])
    rows = [["model", "dtype", "base ms", "prompt token us", "sequence us", "1000 keys us", "error"]]
    for folder in folders:
        fitted = fit_folder(folder, options.dtype, options.seconds)
        times = fitted.times
        cells = [1e3 * times.base, 1e6 * times.per_prompt_token, 1e6 * times.per_sequence, 1e9 * times.per_context_key]
        rows.append([folder.name, options.dtype, *(f"{cell:.3g}" for cell in cells), fitted.error])
        if options.out is not None:
            times.save(options.out)
    print(table(rows))


if __name__ == "__main__":
    main()
