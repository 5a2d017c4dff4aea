"""Compares the simulation with real servers: the same arrivals, and by how much each figure is off.

    python -m benchmarks.simulation.check                       # one, two and four workers with timed engines
    python -m benchmarks.simulation.check --real                # and one with the default model, whose steps are fitted
    python -m benchmarks.simulation.check --record runs.jsonl   # of what benchmarks.scaling --record wrote

Timed engines (`benchmarks.timed_engine`) are the real server around a network that sleeps, so what is checked is all
but the network: HTTP, routing, scheduling, the prefix cache. "From step times" knows these times and nothing else;
"calibrated" also knows what steps, their sequences and requests take in addition to them, measured on a server of one
worker that does nothing else, before anything else runs. Neither sees the run that it predicts.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import random_prompts
from benchmarks.comparison import table
from benchmarks.engine_overhead import use_worker_environment
from benchmarks.fleet import measure
from benchmarks.load import run
from benchmarks.recorded_load import (
    Record,
    Request,
    append_run,
    endless_requests,
    grouped_requests,
    plain_requests,
    read_runs,
    send_closed,
    send_open,
)
from benchmarks.simulation import fit
from benchmarks.simulation.replay import HEAD, Figures, Overheads, predict, rows_of, setup_of
from benchmarks.simulation.routers import POLICIES
from benchmarks.simulation.step_times import StepTimes
from benchmarks.timed_server import BLOCK_SIZE, Fleet, timed_server
from tests.support.processes import ROOT, Server, serve

FABLES = ROOT / "model" / "fables"
TIMES = StepTimes(base=0.015, per_prompt_token=0.0001, per_sequence=0.0003)
"""Step times near those of the 124M checkpoint on two cores; the same as in `benchmarks.scaling`."""
PLAIN = {"prompt_tokens": 128, "max_tokens": 64}
PLAIN_RATE = 10.0
"""Requests a second for each worker: about two thirds of what a worker can do."""
GROUPED: dict[str, int] = {"groups": 16, "prefix_tokens": 1024, "own_tokens": 32, "max_tokens": 16}
GROUPED_RATE = 5.0
GROUPED_BLOCKS = 400
CALIBRATION_SECONDS = 6.0
WAVE = 16
Recorded = tuple[dict[str, Any], list[Record]]
"""What served a run, and what became of its requests."""
NEEDED = ("num_workers", "step_times", "num_blocks", "max_num_seqs", "routing", "block_size")


def calibrate(server: Server, times: StepTimes) -> Overheads:
    """Calibrate on a server of one worker that does nothing else: one request after another, then waves of several."""
    asked = endless_requests(5, prompt_tokens=100, max_tokens=24)
    alone: list[Record] = run(send_closed(server.host, server.port, asked, 1, CALIBRATION_SECONDS))
    waves = []
    for seed in range(5):
        prompts = random_prompts(WAVE, 900 + seed, 64, 4096)
        wave = [Request(prompt, 48, arrival=0.0) for prompt in prompts]
        waves.append(run(send_open(server.host, server.port, wave)))
    return Overheads.of(alone[2:], waves[1:], times)


def requests_of(kind: str, workers: int, seconds: float) -> list[Request]:
    """Return what a run is offered."""
    if kind == "plain":
        rate = PLAIN_RATE * workers
        return plain_requests(round(rate * seconds), 7, rate=rate, **PLAIN)
    rate = GROUPED_RATE * workers
    return grouped_requests(round(rate * seconds), 3, rate=rate, **GROUPED)


def record(workers: list[int], seconds: float, out: Path | None) -> tuple[Overheads, list[Recorded]]:
    """Record real runs, plain prompts and prompts with prefixes, of each number of workers, after a calibration."""
    with timed_server(Fleet(1, TIMES)) as server:
        overheads = calibrate(server, TIMES)
    runs = []
    for num in workers:
        for kind, blocks in (("plain", 1024), ("prefixes", GROUPED_BLOCKS)):
            fleet = Fleet(num, TIMES, num_blocks=blocks)
            with timed_server(fleet) as server:
                load = send_open(server.host, server.port, requests_of(kind, num, seconds))
                done = measure(kind, fleet, server, load)
            if out is not None:
                append_run(out, done.as_data(), done.records)
            runs.append((done.as_data(), done.records))
    return overheads, runs


def rows_of_run(served: dict[str, Any], records: list[Record], overheads: Overheads | None) -> list[list[str]]:
    """Return what the simulation predicts for one run, without and with the overheads."""
    answered = [record for record in records if record.error is None]
    predicted = {}
    for title, known in (("from step times", Overheads()), ("calibrated", overheads)):
        if known is not None:
            predicted[title] = Figures.of(predict(setup_of(served, known), records, known))
    return rows_of(served["name"], served["num_workers"], Figures.of(answered), predicted)


@contextmanager
def default_model() -> Iterator[tuple[Server, dict[str, Any]]]:
    """Start the real engine with one worker. Return it and what a replay has to know of it, except its step times."""
    blocks = 1024
    bytes_per_block = 4 * 2 * 6 * 256 * BLOCK_SIZE
    flags = ["--device=cpu", f"--block-size={BLOCK_SIZE}", f"--kv-cache-memory={(blocks - 1) * bytes_per_block}"]
    with serve([*flags, "--max-num-seqs=64"]) as server:
        yield server, {"name": "default model", "num_workers": 1, "num_blocks": blocks, "max_num_seqs": 64,
                       "routing": "prefix", "block_size": BLOCK_SIZE}  # fmt: skip


def real_rows(seconds: float) -> list[list[str]]:
    """Return rows of the default model at a quarter and at half of its capacity according to the fitted step times."""
    fitted = fit.fit_folder(FABLES, "float32")
    print(f"Default model: {fitted.times.to_json()}; {fitted.error}\n", flush=True)
    capacity = fitted.capacity(PLAIN["prompt_tokens"], PLAIN["max_tokens"], 64)
    rows = []
    with default_model() as (server, served):
        served["step_times"] = {name: getattr(fitted.times, name) for name in StepTimes.__dataclass_fields__}
        overheads = calibrate(server, fitted.times)
        print(f"{_shown(overheads)}\n")
        for share in (0.25, 0.5):
            rate = share * capacity
            requests = plain_requests(round(rate * seconds), round(100 * share), rate=rate, **PLAIN)
            records = run(send_open(server.host, server.port, requests))
            served["name"] = f"default model, {rate:.0f} requests/s"
            rows += rows_of_run(served, records, overheads)
    return rows


def _shown(overheads: Overheads) -> str:
    own = [overheads.step, overheads.sequence, overheads.request]
    step, sequence, request = (f"{1e3 * seconds:.2f} ms" for seconds in own)
    return f"Beside the step times, of a quiet server: {step} a step, {sequence} a sequence in it, {request} a request"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FILE", help="runs that were recorded, instead of making some")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the runs that are made are recorded")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--real", action="store_true", help="also the default model, with fitted step times")
    options = parser.parse_args()
    if options.real:
        use_worker_environment("benchmarks.simulation.check", FABLES)
    overheads = None
    if options.record is not None:
        runs = read_runs(options.record)
    else:
        overheads, runs = record(options.workers, options.seconds, options.keep)
        print(f"{_shown(overheads)}\n")
    rows = [HEAD]
    for served, records in runs:
        unfit = [name for name in NEEDED if name not in served] or (served["routing"] not in POLICIES and ["routing"])
        failed = sum(record.error is not None for record in records)
        if unfit or failed:
            print(f"left out: {served['name']} ({failed} requests failed; not known: {unfit or 'nothing'})")
            continue
        rows += rows_of_run(served, records, overheads)
    print(table(rows), flush=True)
    if options.real:
        print()
        print(table([HEAD, *real_rows(options.seconds)]), flush=True)


if __name__ == "__main__":
    main()
