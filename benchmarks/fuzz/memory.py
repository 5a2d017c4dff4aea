"""Draws shapes for the kernels of the CPU and mutates files of checkpoints, each case in a process with kernels that
check every address: `python -m benchmarks.fuzz.memory --count 100000`.

A third of the cases are weights of drawn shapes, also shapes that do not fit each other. They are refused with a
ValueError, or multiplied. The others are small checkpoints of every format in which bytes, values of JSON files, shapes
or dtypes were changed. They are refused with a ModelLoadError of one line, or loaded, and then the network computes.

It ends with status 1 when a case ends otherwise, takes longer than `SLOW` seconds, or the sanitizers find an address
outside or undefined behaviour. A case depends on the seed and its number only: `--first NUMBER --count 1` repeats it.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.fuzz.checkpoints import Sources, read_and_run
from model.checkpoint.folder import ModelLoadError
from model.kernels import build, library
from model.kernels.grouped import GroupedWeight, why_not_grouped
from model.kernels.int8 import Int8BlockedWeight
from model.kernels.products import DOT, WIDEN, BlockedWeight
from model.quantized import GroupedRows
from tests.model.kernels.draw_grouped import VALUES
from tests.model.kernels.levels import at_level

SLOW = 30.0
"""Seconds; with sanitizers, on a busy machine."""
SANITIZED = Path(__file__).parents[1] / ".cache" / "sanitized.so"
"""The kernels with sanitizers, built once for the sources."""


def run_weight(rng: random.Random) -> str:
    """Draw a weight and rows and multiply them. Return the outcome: the kind of weight, or "refused"."""
    inputs = rng.choice([rng.randint(1, 700), 16 * rng.randint(1, 40), 32 * rng.randint(1, 20)])
    outputs, rows = rng.choice([1, 7, 63, 64, 65, 130, rng.randint(1, 200)]), rng.choice([1, 2, 5, 9, 17, 33])
    dtype = rng.choice([torch.float32, torch.bfloat16])
    library.set_num_threads(rng.randint(1, 3))
    kind = rng.choice(["grouped", "grouped", "plain", "int8"])
    weight: GroupedWeight | BlockedWeight | Int8BlockedWeight
    with at_level(rng.choice(library.levels())):
        if kind == "grouped":
            try:
                part = _draw_rows(rng, outputs, inputs)
            except ValueError:
                return "refused"
            if why_not_grouped([part]) is not None:
                return "no form"
            is_rounded = rng.random() < 0.3
            weight = GroupedWeight([part], dtype, rng.choice([WIDEN, DOT]), int8_activations=is_rounded)
        elif kind == "plain":
            weight = BlockedWeight(torch.randn(outputs, inputs).to(dtype), rng.choice([WIDEN, DOT]))
        else:
            values = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
            weight = Int8BlockedWeight(values, torch.rand(outputs), dtype, int8_activations=rng.random() < 0.3)
        x = torch.randn(rows, inputs).to(dtype)
        weight.multiply(x, torch.randn(outputs).to(dtype) if rng.random() < 0.5 else None)
        weight.find_largest(x)
        if not isinstance(weight, Int8BlockedWeight):
            weight.rows(torch.randint(outputs, (rng.randint(0, 9),)))
            weight.to_dense()
    return kind


def _draw_rows(rng: random.Random, outputs: int, inputs: int) -> GroupedRows:
    """Draw rows of parts that may not fit each other. Raises ValueError where they do not."""

    def groups() -> int:
        fitting = [size for size in (16, 32, 64, 128, 256) if inputs % size == 0]
        size = rng.choice(fitting) if fitting and rng.random() < 0.8 else rng.randint(1, inputs)
        return inputs // size + (rng.choice([-1, 1]) if rng.random() < 0.1 else 0)

    count, is_short = groups(), rng.random() < 0.5
    factors = rng.choice([None, count, count * rng.choice([1, 2, 8]), groups()])
    dtype = rng.choice([torch.float16, torch.bfloat16])
    has_min = rng.random() < 0.5
    has_min_factors = (has_min and factors is not None) != (rng.random() < 0.1)
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    return GroupedRows(
        codes if is_short else codes.to(torch.int8),
        torch.randn(outputs, count).to(dtype),
        torch.randn(outputs, count).to(dtype) if has_min else None,
        None if factors is None else torch.randint(-9, 9, (outputs, factors), dtype=torch.int8),
        torch.randint(9, (outputs, factors or count), dtype=torch.uint8) if has_min_factors else None,
        rng.choice(VALUES) if is_short else None,
    )


def run_cases(first: int, count: int, seed: int, note: Callable[[int], None]) -> list[str]:
    """Run the cases and print how many ended how. note: called with each number before its case. Return the faults."""
    wrong, ends = list[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as room:
        sources = Sources(Path(room))
        began, began_cpu = time.monotonic(), time.process_time()
        for number in range(first, first + count):
            note(number)
            rng = random.Random(f"{seed} {number}")
            torch.manual_seed(rng.randrange(2**63))
            start = time.monotonic()
            name = "weights" if number % 3 == 0 else sources.choose(rng)
            try:
                end = run_weight(rng) if name == "weights" else read_and_run(sources.mutated(name, rng))
            except ModelLoadError as error:
                end = "refused"
                if "\n" in str(error):
                    wrong.append(f"case {number}, {name}: an error of several lines: {error}")
            except Exception as error:
                end = type(error).__name__
                wrong.append(f"case {number}, {name}: {''.join(traceback.format_exception(error)[-3:])}")
            if (seconds := time.monotonic() - start) > SLOW:
                wrong.append(f"case {number}, {name}: {seconds:.0f} s")
            ends[f"{name}: {end}"] += 1
        minutes, of_cpu = (time.monotonic() - began) / 60, (time.process_time() - began_cpu) / 60
    for end, number in sorted(ends.items()):
        print(f"{number:8} {end}")
    print(f"{count} cases, {count / minutes:.0f} a minute, {count / of_cpu:.0f} a minute of CPU time", flush=True)
    return wrong


def check(first: int, count: int, seed: int) -> list[str]:
    """Run the cases with the sanitizers, in a process of its own. Return the faults."""
    if not build.is_current(SANITIZED):
        print("building the kernels with sanitizers, which takes minutes", flush=True)
        build.build(SANITIZED, compiler=("g++",), sanitize=True)
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        library.LIBRARY_VARIABLE: str(SANITIZED),
    }
    with tempfile.NamedTemporaryFile("r") as at:
        command = [sys.executable, "-m", "benchmarks.fuzz.memory", "--inside", at.name]
        command += ["--first", str(first), "--count", str(count), "--seed", str(seed)]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        last = at.read()
    if done.returncode == 0:
        return []
    if done.returncode == 1 and last == "done":
        return [done.stderr]
    return [f"the process ended with {done.returncode} in case {last} of seed {seed}:\n{done.stderr[-4000:]}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2_000, help="cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is None:
        print(f"seed {options.seed}", flush=True)
        wrong = check(options.first, options.count, options.seed)
        print("\n".join(wrong) or "0 wrong")
    else:
        note = lambda number: options.inside.write_text(str(number))  # noqa: E731
        wrong = run_cases(options.first, options.count, options.seed, note)
        options.inside.write_text("done")
        print("\n".join(wrong), file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
