"""Measures batches over HTTP: the speed of other requests while a batch runs, and of a batch compared with
`lightwell batch`.

    python -m benchmarks.batches --model smollm2

Other requests are measured with a batch and without one, in turns: a closed loop for tokens per second, and Poisson
arrivals with gaps, which the batch fills, for the time to the first token. Status 1 if a bar is missed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.load import Load, closed_loop, open_loop, poisson_arrivals, run
from lightwell.server.batches.job import Progress
from lightwell.server.config.settings import Settings
from lightwell.server.library.batch_file import run_file
from tests.support.processes import Server, serve

LEAST_SPEED, MOST_DELAY, LEAST_BATCH_SPEED = 0.95, 0.030, 0.9
PROMPT = "The mouse ran over the nose of the lion, number {}, who was asleep in the forest, and "


def body(number: int, max_tokens: int) -> dict[str, Any]:
    return {"prompt": PROMPT.format(number) * 3, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}


def lines(count: int, max_tokens: int, first: int = 0) -> bytes:
    rows = [
        {"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": body(first + i, max_tokens)}
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class Api:
    """The routes of files and batches of a server."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.url, timeout=60)

    def begin(self, content: bytes) -> str:
        file = self._http.post("/v1/files", files={"file": content}, data={"purpose": "batch"}).raise_for_status()
        wanted = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": file.json()["id"]}
        return str(self._http.post("/v1/batches", json=wanted).raise_for_status().json()["id"])

    def wait(self, batch_id: str, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not is_reached(batch := self._http.get(f"/v1/batches/{batch_id}").json()):
            time.sleep(0.05)
        return dict(batch)

    def cancel(self, batch_id: str) -> None:
        self._http.post(f"/v1/batches/{batch_id}/cancel")
        self.wait(batch_id, lambda batch: batch["status"] in ("cancelled", "completed"))


def of_others(server: Server, options: argparse.Namespace) -> list[tuple[str, float, bool]]:
    """Return the figures of other requests: name, value and whether the bar is met."""
    api = Api(server)

    def closed(seed: int) -> Load:
        bodies = [body(seed * 1000 + i, options.max_tokens) for i in range(options.requests)]
        return run(closed_loop("127.0.0.1", server.port, bodies, options.clients))

    def opened(seed: int) -> Load:
        bodies = [body(seed * 1000 + i, options.max_tokens) for i in range(options.requests)]
        return run(open_loop("127.0.0.1", server.port, bodies, poisson_arrivals(len(bodies), options.rate, seed)))

    closed(1)
    found: dict[tuple[str, bool], list[float]] = {}
    for turn in range(options.turns):
        for has_batch in (turn % 2 == 0, turn % 2 == 1):
            seed = 10 + 4 * turn + 2 * has_batch
            if has_batch:
                batch = api.begin(lines(20_000, options.max_tokens, seed * 100_000))
                api.wait(batch, lambda each: each["status"] == "in_progress")
            load = closed(seed)
            found.setdefault(("speed", has_batch), []).append(load.tokens_per_second)
            load = opened(seed + 1)
            found.setdefault(("delay", has_batch), []).extend(each.time_to_first_token for each in load.timelines)
            if has_batch:
                api.cancel(batch)
    speed = median(found["speed", True]) / median(found["speed", False])
    delay = median(found["delay", True]) - median(found["delay", False])
    print(f"tokens/s without and with a batch: {median(found['speed', False]):.1f}, {median(found['speed', True]):.1f}")
    print(f"median time to first token: {median(found['delay', False]):.4f}, {median(found['delay', True]):.4f} s")
    return [
        (f"tokens/s of other requests, at least {LEAST_SPEED}", speed, speed >= LEAST_SPEED),
        (f"seconds added to their first token, at most {MOST_DELAY}", delay, delay <= MOST_DELAY),
    ]


def of_batches(server: Server, options: argparse.Namespace) -> tuple[str, float, bool]:
    """Return the speed of a batch over HTTP, divided by the speed of `lightwell batch`."""
    api, over_http, at_terminal = Api(server), [], []
    settings = Settings.from_sources({"model": options.model, "threads": str(options.threads)}, {})
    for turn in range(options.turns):
        content = lines(options.lines, options.max_tokens, (turn + 1) * 10_000_000)
        began = time.perf_counter()
        api.wait(api.begin(content), lambda each: each["status"] == "completed")
        over_http.append(time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            source.write_bytes(content)
            times: list[float] = []

            def note(progress: Progress, times: list[float] = times) -> None:
                times.append(time.perf_counter())

            run_file(settings, source, target, note)
            at_terminal.append(times[-1] - times[0])
    print(f"seconds of {options.lines} lines at the terminal and over HTTP: {at_terminal}, {over_http}")
    ratio = median(at_terminal) / median(over_http)
    return f"speed of a batch over HTTP, at least {LEAST_BATCH_SPEED}", ratio, ratio >= LEAST_BATCH_SPEED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second of the Poisson arrivals")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tables", nargs="+", choices=("others", "batches"), default=("others", "batches"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [options.model, "--batch-dir", folder, "--threads", str(options.threads), "--log-level", "warning"]
        with serve(arguments) as server:
            figures = of_others(server, options) if "others" in options.tables else []
            if "batches" in options.tables:
                figures.append(of_batches(server, options))
    for name, value, is_met in figures:
        print(f"{'met   ' if is_met else 'missed'} {value:8.4f}  {name}")
    return 0 if all(is_met for _, _, is_met in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
