"""Measure a server at ten times its capacity: the rate and latency of its answers, and its rejections.

First it measures the capacity, with `--clients` clients that each send their next request as soon as the last is
answered. Then it sends requests at `--times` that rate, independent of answers (Poisson arrivals), for `--seconds`
seconds. Times count from the scheduled time of a request, so delays of the generator are visible. The generator runs on
the server's cores, so it implements only the necessary HTTP, over persistent connections. Answers of the first seconds
of a run, while the server fills up, are not counted.

The exit status is 1 if the rate falls below 90 % of the capacity, if accepted requests take more than 1.5 times as long
as at capacity, if rejections are not immediate, or if a request is lost.

    python -m benchmarks.overload --cache /tmp/lightwell-benchmarks --seconds 120
"""

import argparse
import asyncio
import json
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.checkpoint import make_checkpoint
from benchmarks.load import percentile
from tests.support.processes import Server, serve

_END = b"0\r\n\r\n"
"""The end of a chunked body."""
_TICKS = 100
"""Clock ticks in a second, as /proc counts processor time."""
_COMMON_IDS = 4000
"""Token ids that every vocabulary has."""
_RAMP = 5.0
"""Seconds of a run that are not counted."""
_PATIENCE = 60.0
"""Seconds without the end of a request, after which the rest is lost."""
GOODPUT = 0.9
"""The least share of the capacity that must be left."""
LATENCY = 1.5
"""Maximum latency of accepted requests, at the median and at p99, as a multiple of the latency at capacity."""
IMMEDIATE_MS = 100.0
"""The most milliseconds that 99 of 100 refusals may take."""


@dataclass(slots=True)
class Outcome:
    """One request. Times are seconds on one clock; 0 means that the event did not occur."""

    due: float
    status: int = 0
    first_token: float = 0.0
    ended: float = 0.0
    retry_after: int = 0
    is_whole: bool = False
    """True if the stream ended with [DONE], or the error has its complete body."""


@dataclass
class Run:
    """All requests of one run."""

    started: float
    seconds: float = 0.0
    processor: float = 0.0
    """CPU seconds of the server's first process, which takes and refuses requests."""
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def answered(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == 200 and outcome.is_whole]

    @property
    def refused(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == 429 and outcome.is_whole]

    @property
    def rate(self) -> float:
        """Return the complete answers per second, counted while requests arrived and the server was full."""
        begin, end = self.started + _RAMP, self.started + self.seconds
        return sum(begin <= each.ended <= end for each in self.answered) / (end - begin)


class Connection(asyncio.Protocol):
    """One persistent connection. It sends one request at a time and records the received bytes without parsing."""

    def __init__(self, on_idle: Callable[["Connection"], None]) -> None:
        self._on_idle = on_idle
        self._transport: asyncio.Transport | None = None
        self._outcome: Outcome | None = None
        self._received = b""
        self._body_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish(is_whole=False)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, request: bytes, outcome: Outcome) -> None:
        assert self._transport is not None
        self._outcome, self._received, self._body_at = outcome, b"", 0
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        outcome = self._outcome
        if outcome is None:
            return
        self._received += data
        if not self._body_at:
            self._body_at = self._received.find(b"\r\n\r\n") + 4
            if self._body_at < 4:
                self._body_at = 0
                return
            outcome.status = int(self._received[9:12])
        if outcome.status == 200:
            if not outcome.first_token and b"data: " in self._received[self._body_at :]:
                outcome.first_token = time.perf_counter()
            if self._received.endswith(_END):
                self._finish(is_whole=b"data: [DONE]" in self._received[-80:])
        elif len(self._received) - self._body_at >= int(self._header(b"content-length") or b"0"):
            outcome.retry_after = int(self._header(b"retry-after") or b"0")
            self._finish(is_whole=True)

    def _header(self, name: bytes) -> bytes:
        head = self._received[: self._body_at].lower()
        return head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()

    def _finish(self, *, is_whole: bool) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome.ended, outcome.is_whole = time.perf_counter(), is_whole
            self._on_idle(self)


class Generator:
    """Sends requests of one size. The open loop repeats prompts, to make them beforehand: the server should keep no
    prefixes, or repeated ones cost less than the capacity was measured with.
    """

    def __init__(self, server: Server, prompt_tokens: int, max_tokens: int) -> None:
        self._server = server
        self._draw = random.Random(7)
        self._prompt_tokens, self._max_tokens = prompt_tokens, max_tokens
        self._idle: list[Connection] = []
        self._num_sent = 0

    def request(self) -> bytes:
        prompt = [self._draw.randrange(_COMMON_IDS) for _ in range(self._prompt_tokens)]
        options = {"max_tokens": self._max_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
        body = json.dumps({"prompt": prompt, **options}).encode()
        host = f"{self._server.host}:{self._server.port}"
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def closed_loop(self, num_clients: int, seconds: float) -> Run:
        """Run clients that each send their next request when the last has been answered, or a moment after it was
        refused.
        """
        run, end = Run(time.perf_counter()), time.perf_counter() + seconds

        async def client() -> None:
            done = asyncio.Event()
            connection = await self._connect(lambda _: done.set())
            while time.perf_counter() < end:
                done.clear()
                outcome = Outcome(time.perf_counter())
                run.outcomes.append(outcome)
                connection.send(self.request(), outcome)
                await done.wait()
                if outcome.status == 429:
                    await asyncio.sleep(0.05)
            connection.close()

        before = processor_seconds(self._server.pid)
        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(client())
        run.seconds, run.processor = seconds, processor_seconds(self._server.pid) - before
        return run

    async def open_loop(self, rate: float, seconds: float) -> Run:
        """Send requests at their scheduled times, independent of earlier answers; wait for the last answer."""
        requests = [self.request() for _ in range(256)]
        run = Run(time.perf_counter())
        before, due = processor_seconds(self._server.pid), run.started
        while (due := due + self._draw.expovariate(rate)) < run.started + seconds:
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            outcome = Outcome(due)
            run.outcomes.append(outcome)
            connection = await self._free_connection()
            connection.send(requests[len(run.outcomes) % len(requests)], outcome)
        run.seconds, run.processor = seconds, processor_seconds(self._server.pid) - before
        last, num_left = time.perf_counter(), len(run.outcomes)
        while num_left and time.perf_counter() < last + _PATIENCE:
            await asyncio.sleep(0.05)
            num_unended = sum(not outcome.ended for outcome in run.outcomes)
            if num_unended < num_left:
                last, num_left = time.perf_counter(), num_unended
        return run

    async def _free_connection(self) -> Connection:
        """Return the connection used last: the server may close the others when they are unused."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return await self._connect(self._put_back)

    async def _connect(self, on_idle: Callable[[Connection], None]) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(on_idle), self._server.host, self._server.port)
        return connection

    def _put_back(self, connection: Connection) -> None:
        if connection.is_open:
            self._idle.append(connection)


def processor_seconds(pid: int) -> float:
    """Return the seconds that a process has computed, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def report(capacity: Run, overload: Run, times: float) -> bool:
    """Print the measurements. Return True if all bars are met."""
    print(f"capacity {capacity.rate:.1f} answers/s; offered {times:g} times as much: {len(overload.outcomes)} requests")
    print("\n| run | answers/s | TTFT p50 ms | TTFT p99 | E2E p50 | E2E p99 |\n|---|---|---|---|---|---|")
    whole = {}
    for name, run in (("capacity", capacity), ("overload", overload)):
        first = [1e3 * (each.first_token - each.due) for each in run.answered]
        whole[name] = [1e3 * (each.ended - each.due) for each in run.answered]
        figures = (percentile(values, part) for values in (first, whole[name]) for part in (0.5, 0.99))
        print(f"| {name} | {run.rate:.1f} | " + " | ".join(f"{figure:.0f}" for figure in figures) + " |")
    refused = overload.refused
    seconds = [1e3 * (each.ended - each.due) for each in refused]
    print(f"\nrefusals: {len(refused)}, p50 {percentile(seconds, 0.5):.1f} ms, p99 {percentile(seconds, 0.99):.1f} ms")
    each = 1e6 * overload.processor / max(1, len(overload.outcomes))
    print(f"processor time of the API process: {each:.0f} us for each request, answered or refused")
    report_honesty(overload)
    lost = [each for each in overload.outcomes if each.status not in (200, 429) or not each.is_whole]
    statuses = sorted({each.status for each in lost})
    print(f"lost: {len(lost)} {statuses if lost else ''}")
    kept = overload.rate / capacity.rate
    longer = [percentile(whole["overload"], part) / percentile(whole["capacity"], part) for part in (0.5, 0.99)]
    print(f"goodput: {kept:.1%} of the capacity; E2E of what is accepted: {longer[0]:.2f} (p50), {longer[1]:.2f} (p99)")
    wrong = {
        "goodput": kept < GOODPUT,
        "latency": max(longer) > LATENCY,
        "refusals": percentile(seconds, 0.99) > IMMEDIATE_MS,
        "lost": bool(lost),
    }
    print("not as it should be: " + (", ".join(name for name, is_wrong in wrong.items() if is_wrong) or "nothing"))
    return not any(wrong.values())


def report_honesty(run: Run) -> None:
    """Print whether there was room again by the time that each refusal named: then a request was let in."""
    let_in = sorted(each.due for each in run.answered)
    waits = []
    for each in run.refused:
        place = bisect_left(let_in, each.ended)
        if place < len(let_in) and each.ended + each.retry_after <= run.started + run.seconds:
            waits.append((let_in[place] - each.ended, each.retry_after))
    if waits:
        kept = sum(wait <= promised for wait, promised in waits) / len(waits)
        promised, actual = (percentile([pair[i] for pair in waits], 0.5) for i in (1, 0))
        print(f"Retry-After: p50 {promised:.0f} s; somebody was let in {actual:.2f} s later (p50), {kept:.1%} in time")


async def measure(server: Server, options: argparse.Namespace) -> tuple[Run, Run]:
    generator = Generator(server, options.prompt_tokens, options.max_tokens)
    capacity = await generator.closed_loop(options.clients, options.capacity_seconds)
    return capacity, await generator.open_loop(options.times * capacity.rate, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--cache", type=Path, help="folder for the 124M checkpoint")
    model.add_argument("--model", help="a model folder to serve instead")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--capacity-seconds", type=float, default=60)
    parser.add_argument("--times", type=float, default=10)
    parser.add_argument("--clients", type=int, default=20, help="of the closed loop: more than --max-num-seqs")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    default = ["--dtype", "bfloat16", "--no-prefix-caching", "--max-num-seqs", "16", "--max-queue-time", "1"]
    default += ["--log-level", "warning"]
    parser.add_argument("serve", nargs="*", default=default, help="arguments for `lightwell serve` (after --)")
    options = parser.parse_args()
    with serve([options.model or str(make_checkpoint(options.cache)), *options.serve]) as server:
        capacity, overload = asyncio.run(measure(server, options))
    sys.exit(0 if report(capacity, overload, options.times) else 1)


if __name__ == "__main__":
    main()
