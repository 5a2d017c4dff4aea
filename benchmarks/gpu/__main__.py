"""Runs it all: `python -m benchmarks.gpu --out DIR`. Status 2 without a GPU, 1 where a check failed."""

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from benchmarks.checkpoint import random_prompts
from benchmarks.gpu import ceilings, ours, theirs
from benchmarks.gpu.checks import run_checks, run_tests
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.networks import (
    LARGE,
    SMALL,
    Network,
    key_value_bytes,
    make_ours,
    make_theirs,
    prefill_operations,
    weight_bytes,
)
from benchmarks.gpu.report import Captures, Decode, Machine, Prefill, Results, table
from model.network.transformer import Transformer
from server.engine.engine import Engine

LIMIT = 560.0
"""Seconds of a run."""
ENGINE_SECONDS = {"off": 10.0, "plain": 15.0, "compiled": 120.0}
"""Estimated seconds that an engine of each mode may take to start, before anything is known."""


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    networks: tuple[Network, ...] = (SMALL, LARGE)
    dtype: torch.dtype = torch.bfloat16
    rows: tuple[int, ...] = (1, 8, 32)
    modes: tuple[str, ...] = ours.MODES
    prompt: int = 128
    answer: int = 64
    long_prompt: int = 2048
    capture_runs: int = 5
    looking_answer: int = 192

    @property
    def context(self) -> int:
        """Return the context length of the engines: what the longest stream here takes."""
        return self.prompt + max(self.answer, self.looking_answer)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write, and print where the results are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and table.md")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of the whole run (default %(default).0f)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here: there is nothing to measure", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("torch").setLevel(logging.WARNING)
    device, clock = torch.device("cuda", 0), Clock(options.limit)
    results = Results(read_machine(device))
    results.checks += run_checks(device)
    for network in Plan().networks:
        measure(network, Plan(), device, clock, results)
        write(results, clock, options.out)
    if clock.has(60, "tests marked gpu"):
        results.checks.append(run_tests(options.limit - clock.elapsed))
    write(results, clock, options.out)
    print(table(results))
    return 0 if all(check.passed for check in results.checks) else 1


def read_machine(device: torch.device) -> Machine:
    """Return the card and its limits."""
    return Machine(
        name=torch.cuda.get_device_name(device),
        torch=torch.__version__,
        transformers=transformers.__version__,
        bytes_per_second=ceilings.bytes_per_second(device),
        operations_per_second=ceilings.operations_per_second(torch.bfloat16, device),
    )


def measure(network: Network, plan: Plan, device: torch.device, clock: Clock, results: Results) -> None:
    """Measure everything about one network, into `results`; what no longer fits the time is left out."""
    if not clock.has(60, network.name):
        return
    say(clock, f"{network.name}: transformers")
    reference = make_theirs(network, plan.dtype, device, max(plan.context, plan.long_prompt))
    prompts = {rows: random_prompts(rows, rows, plan.prompt) for rows in plan.rows}
    generated = {rows: theirs.decode_tokens_per_second(reference, prompts[rows], plan.answer) for rows in plan.rows}
    prefilled = theirs.prefill_seconds(reference, plan.long_prompt)
    with tempfile.TemporaryDirectory() as folder:
        model = make_ours(reference, Path(folder), plan.dtype, device)
    del reference
    free_memory()
    results.prefill.append(
        Prefill(
            network=network.name,
            num_tokens=plan.long_prompt,
            seconds=ours.prefill_seconds(model, plan.long_prompt),
            floor_seconds=prefill_operations(model.config, plan.long_prompt) / results.machine.operations_per_second,
            theirs=prefilled,
        )
    )
    for mode in plan.modes:
        if clock.has(ENGINE_SECONDS[mode] + 20, f"{network.name} with graphs {mode}"):
            say(clock, f"{network.name}: graphs {mode}")
            began = time.monotonic()
            engine = ours.make_engine(model, mode, max(plan.rows), plan.context)
            start = time.monotonic() - began
            for rows in plan.rows:
                results.decode.append(
                    decode(network, engine, model, prompts[rows], plan, results.machine, generated[rows], start)
                )
            if mode != "off" and clock.has(30, f"{network.name}, captures with graphs {mode}"):
                results.captures.append(captures(network, engine, model, plan))
            del engine
            free_memory()


def decode(
    network: Network,
    engine: Engine,
    model: Transformer,
    prompts: list[list[int]],
    plan: Plan,
    machine: Machine,
    generated: float,
    start: float,
) -> Decode:
    """Measure decoding of one engine with `prompts` sequences."""
    rows, keys = len(prompts), plan.prompt + plan.answer // 2
    ours.decode_tokens_per_second(engine, prompts, 4)
    rates = sorted(ours.decode_tokens_per_second(engine, prompts, plan.answer) for _ in range(3))
    num_bytes = weight_bytes(model.config, plan.dtype) + rows * key_value_bytes(model.config, plan.dtype, keys)
    return Decode(
        network=network.name,
        rows=rows,
        mode=ours.mode_of(engine),
        tokens_per_second=rates[1],
        step_seconds=ours.step_seconds(engine, rows, keys),
        floor_seconds=num_bytes / machine.bytes_per_second,
        theirs=generated,
        start_seconds=start,
    )


def captures(network: Network, engine: Engine, model: Transformer, plan: Plan) -> Captures:
    """Run with and without captures, in turn."""
    prompts, layer = random_prompts(8, 8, plan.prompt), model.config.num_layers // 2
    ours.decode_tokens_per_second(engine, prompts, 4, looking=layer)
    ratios = []
    for _ in range(plan.capture_runs):
        without = ours.decode_tokens_per_second(engine, prompts, plan.looking_answer)
        ratios.append(ours.decode_tokens_per_second(engine, prompts, plan.looking_answer, looking=layer) / without)
    return Captures(network.name, ours.mode_of(engine), ratios)


def write(results: Results, clock: Clock, out: Path) -> None:
    """Write the results so far: a run that ends early leaves them."""
    results.left_out, results.seconds = clock.left_out, clock.elapsed
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results.as_json(), indent=2))
    (out / "table.md").write_text(table(results))


def say(clock: Clock, what: str) -> None:
    print(f"{clock.elapsed:4.0f} s  {what}", flush=True)


def free_memory() -> None:
    """Free memory that is no longer referenced."""
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
