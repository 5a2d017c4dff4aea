"""Run all checks and measurements of a card: `python -m benchmarks.gpu --out DIR [--part numbers|speed]`.

Exit status 2 without a GPU, 1 if a number is wrong or a measurement raised an error. A missed speed bar is only
reported.
"""

import argparse
import json
import logging
import sys
from functools import partial
from pathlib import Path

import torch
import transformers

from benchmarks.gpu import ceilings, suites
from benchmarks.gpu.bars import NUMBERS, PARTS, SPEED
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.measure import Measurement
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import Machine, Results, keep_other_part, table

LIMIT = 560.0
"""Seconds of a run."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and table.md")
    parser.add_argument("--part", choices=PARTS, help="only whether numbers are right, or only how long things take")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of the whole run (default %(default).0f)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here: there is nothing to measure", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("torch").setLevel(logging.WARNING)
    device, clock, plan = torch.device("cuda", 0), Clock(options.limit), Plan()
    torch.cuda.set_device(device)
    results = Results(read_machine(device, plan))
    if options.part is not None:
        keep_other_part(results, options.part, options.out)
    save = partial(write, results, clock, options.out)
    measurement = Measurement(plan, device, clock, results, save)
    if options.part != NUMBERS:  # first: a start is measured with nothing compiled
        measurement.speed()
    if options.part != SPEED:
        measurement.numbers()
        measurement.suites(suites.marked_tests(), suites.KERNEL_TESTS)
    save()
    print(table(results))
    return 1 if results.has_errors else 0


def read_machine(device: torch.device, plan: Plan) -> Machine:
    return Machine(
        name=torch.cuda.get_device_name(device) if device.type == "cuda" else "no card",
        torch=torch.__version__,
        transformers=transformers.__version__,
        bytes_per_second=ceilings.bytes_per_second(device, plan.num_bytes),
        operations_per_second=ceilings.operations_per_second(plan.dtype, device, plan.matrix),
    )


def write(results: Results, clock: Clock, out: Path) -> None:
    """Write the results so far: a run that ends early leaves them."""
    results.left_out, results.seconds = clock.left_out, clock.elapsed
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results.as_json(), indent=2))
    (out / "table.md").write_text(table(results))


if __name__ == "__main__":
    sys.exit(main())
