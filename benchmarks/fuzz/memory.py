"""Fuzz test of the CPU kernels (random shapes) and of checkpoint files (mutations), in processes whose kernels check
every address: `python -m benchmarks.fuzz.memory --count 100000`.

Half of the cases call kernels with drawn shapes, also shapes that do not fit each other. They are refused with a
ValueError, or computed. The others are small checkpoints of every format in which bytes, values of JSON files, shapes
or dtypes were changed. They are refused with a ModelLoadError of one line, or loaded, and then the network computes.

The levels of this CPU alternate, each in a separate process. The exit status is 1 if a case has another result or takes
longer than `SLOW` seconds, or if the sanitizers find an invalid address or undefined behaviour. A case depends only on
the seed and its number: `--first NUMBER --count 1` repeats it.
"""

import argparse
import faulthandler
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.fuzz.checkpoints import Sources, read_and_run
from benchmarks.fuzz.kernels import CASES, run_kernel
from lightwell.model.checkpoint.folder import ModelLoadError, is_failure
from lightwell.model.kernels import library
from tests.model.kernels.levels import at_level
from tests.model.kernels.sanitizers import sanitized_library, sanitizer_variables

SLOW, HANGS = 30.0, 300.0
"""Seconds of a case that are a fault, and at which its process is ended; with sanitizers, on a busy machine."""
MOST_CRASHES = 10
"""Maximum number of crashed processes before the test of a level stops."""


def run_cases(first: int, count: int, seed: int, sources: Sources, note: Callable[[int], None]) -> list[str]:
    """Run the cases and print how many ended how. note: called with each number before its case. Return the faults.

    If the environment names a level, only its cases are run.
    """
    wrong, ends, levels = list[str](), Counter[str](), library.levels()
    began, began_cpu = time.monotonic(), time.process_time()
    for number in range(first, first + count):
        level = levels[number % len(levels)]
        if os.environ.get(library.LEVEL_VARIABLE, level) != level:
            continue
        note(number)
        start = time.monotonic()
        with at_level(level):
            end, fault = _run_case(number, seed, sources)
        if (seconds := time.monotonic() - start) > SLOW:
            fault = f"it took {seconds:.0f} s"
        if fault is not None:
            wrong.append(f"case {number}, {end}: {fault}")
            print(wrong[-1], file=sys.stderr, flush=True)
        ends[end] += 1
    minutes, of_cpu = (time.monotonic() - began) / 60, (time.process_time() - began_cpu) / 60
    for end, number in sorted(ends.items()):
        print(f"{number:8} {end}")
    cases = ends.total()
    print(f"{cases} cases, {cases / minutes:.0f} a minute, {cases / of_cpu:.0f} a minute of CPU time", flush=True)
    return wrong


def _run_case(number: int, seed: int, sources: Sources) -> tuple[str, str | None]:
    """Run a case. Return its name and how it ended, and the fault, if that is one."""
    rng = random.Random(f"{seed} {number}")
    torch.manual_seed(rng.randrange(2**63))
    name = rng.choice([*CASES]) if rng.random() < 0.5 else sources.choose(rng)
    faulthandler.dump_traceback_later(HANGS, exit=True)
    fault = None
    try:
        end = run_kernel(name, rng) if name in CASES else read_and_run(sources.mutated(name, rng))
    except ModelLoadError as error:
        end, fault = "refused", f"an error of several lines: {error}" if "\n" in str(error) else None
    except BaseException as error:
        if not is_failure(error):
            raise
        end, fault = type(error).__name__, "".join(traceback.format_exception(error)[-6:])
    faulthandler.cancel_dump_traceback_later()
    return f"{name}: {end}", fault


def check(first: int, count: int, seed: int) -> list[str]:
    """Run the cases with the sanitizers, in a process for each level. Return the faults."""
    environment = os.environ | sanitizer_variables() | {library.LIBRARY_VARIABLE: str(sanitized_library())}

    def check_level(level: str) -> list[str]:
        return _check_level(first, count, seed, environment | {library.LEVEL_VARIABLE: level})

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [fault for faults in pool.map(check_level, library.levels()) for fault in faults]


def _check_level(first: int, count: int, seed: int, environment: dict[str, str]) -> list[str]:
    """Run a level's cases in processes of this environment, a new one after each that crashes. Return the faults, which
    the processes describe on stderr.
    """
    wrong, end = list[str](), first + count
    while first < end and len(wrong) < MOST_CRASHES:
        with tempfile.NamedTemporaryFile("r") as at:
            command = [sys.executable, "-m", "benchmarks.fuzz.memory", "--inside", at.name]
            command += ["--first", str(first), "--count", str(end - first), "--seed", str(seed)]
            done = subprocess.run(command, env=environment, check=False)
            last = at.read()
        if done.returncode == 0:
            break
        level = environment[library.LEVEL_VARIABLE]
        where = f"in case {last}" if last.isdigit() else "after its cases"
        wrong.append(f"seed {seed}: the process of {level} ended with {done.returncode} {where}, see stderr")
        print(wrong[-1], file=sys.stderr, flush=True)
        first = int(last) + 1 if last.isdigit() else end
    return wrong


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
        logging.disable(logging.WARNING)
        note = lambda number: options.inside.write_text(str(number))  # noqa: E731
        with tempfile.TemporaryDirectory() as room:
            wrong = run_cases(options.first, options.count, options.seed, Sources(Path(room)), note)
        options.inside.write_text("done")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
