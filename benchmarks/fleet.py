"""Watches one server with several timed workers while a load runs: which worker had what to do, and what the processes
themselves took.

It knows /metrics and /proc; it prints nothing.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load import run
from benchmarks.recorded_load import Record
from benchmarks.timed_server import BLOCK_SIZE, FIRST_TOKEN, Fleet
from tests.support.processes import Server, descendants, is_worker
from tests.support.wire import scrape

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Loss:
    """A worker killed under load. Times are seconds from the beginning of its run."""

    killed: float = 0.0
    lost: int | None = None
    """The worker that was killed."""
    up: float | None = None
    """When it took requests again, in seconds."""

    def watch(self, now: float, values: dict[str, float], num_workers: int) -> None:
        """Read what the server reports of its workers."""
        ups = [values[f'lightwell_worker_up{{worker="{worker}"}}'] for worker in range(num_workers)]
        if self.lost is None and 0.0 in ups:
            self.lost = ups.index(0.0)
        elif self.lost is not None and self.up is None and ups[self.lost]:
            self.up = now

    def balanced(self, run: "Run") -> float | None:
        """Return when it had three quarters of the others' mean of requests in flight, or None if never."""
        others = run.fleet.num_workers - 1
        at = self.killed
        while self.lost is not None and self.up is not None and at < run.seconds:
            under_way = run.outstanding(at)
            if at > self.up and under_way[self.lost] * others >= 0.75 * (under_way.total() - under_way[self.lost]):
                return at
            at += 0.05
        return None

    def elsewhere(self, run: "Run") -> int:
        """Return the number of requests that the other workers had in flight when it was killed."""
        under_way = run.outstanding(self.killed)
        return under_way.total() - (0 if self.lost is None else under_way[self.lost])


@dataclass
class Run:
    """A load and what it took."""

    name: str
    fleet: Fleet
    records: list[Record]
    seconds: float
    """Seconds from the first request to the end of the last answer."""
    api_seconds: float
    """CPU seconds of the API process."""
    worker_seconds: float
    """CPU seconds of all workers."""
    client_seconds: float
    """CPU seconds of this process, which sends the load."""
    counted: dict[str, float] = field(default_factory=dict)
    """By how much each of the server's counters grew."""
    loss: Loss | None = None
    """The loss of a worker during the run, if there was one."""

    @property
    def answered(self) -> list[Record]:
        return [record for record in self.records if record.error is None]

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.records if record.error is not None]

    @property
    def failures(self) -> Counter[str]:
        """Return the number of failures by the code of the error."""
        return Counter(str(record.error) for record in self.failed)

    @property
    def num_messages(self) -> float:
        """Return the number of messages between the API process and the workers: one for each request and one for
        each step.
        """
        return len(self.records) + self.counted["lightwell_engine_steps_total"]

    @property
    def num_output_tokens(self) -> int:
        return sum(record.output_tokens for record in self.records)

    @property
    def hit_rate(self) -> float:
        """Return the share of prompt tokens that a prefix cache held."""
        return sum(each.cached_tokens for each in self.answered) / sum(each.prompt_tokens for each in self.answered)

    def rate_between(self, start: float, end: float) -> float:
        """Return the output tokens a second of that part of the run; those of a stream are assumed to come evenly."""
        return sum(_tokens_between(record, start, end) for record in self.answered) / (end - start)

    def imbalance(self) -> float:
        """Return the tokens computed by the worker that computed most, over the mean of all: 1 is even."""
        tokens = Counter[int](dict.fromkeys(range(self.fleet.num_workers), 0))
        for record in self.answered:
            assert record.worker is not None
            tokens[record.worker] += record.output_tokens + record.prompt_tokens - record.cached_tokens
        return max(tokens.values()) * len(tokens) / max(1, sum(tokens.values()))

    def outstanding(self, at: float) -> Counter[int]:
        """Return the number of requests of each worker that were in flight at a time of the run; failed requests are
        not known.
        """
        found = Counter[int](dict.fromkeys(range(self.fleet.num_workers), 0))
        for record in self.answered:
            assert record.end is not None
            assert record.worker is not None
            found[record.worker] += record.arrival <= at < record.end
        return found

    def as_data(self) -> dict[str, Any]:
        """Return what a replay has to know of the run."""
        loss = None if self.loss is None else asdict(self.loss)
        told = {"name": self.name, "block_size": BLOCK_SIZE, "seconds": self.seconds, "loss": loss}
        return told | asdict(self.fleet)


def _tokens_between(record: Record, start: float, end: float) -> float:
    assert record.ttft is not None
    assert record.end is not None
    first, last = record.arrival + record.ttft, record.end
    if last <= first:
        return float(record.output_tokens if start <= first < end else 0)
    return record.output_tokens * max(0.0, min(end, last) - max(start, first)) / (last - first)


def measure(name: str, fleet: Fleet, server: Server, load: Coroutine[Any, Any, list[Record]]) -> Run:
    """Run a load on a server that does nothing else."""

    async def measured() -> Run:
        before = await scrape(server.host, server.port)
        api, workers, client, started = (
            cpu_seconds(server.pid),
            _of_workers(server),
            _own_seconds(),
            time.perf_counter(),
        )
        records = await load
        seconds = time.perf_counter() - started
        after = await scrape(server.host, server.port)
        return Run(
            name,
            fleet,
            records,
            seconds,
            cpu_seconds(server.pid) - api,
            _of_workers(server) - workers,
            _own_seconds() - client,
            {name: value - before.get(name, 0.0) for name, value in after.items() if "_total" in name},
        )

    return run(measured())


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def _of_workers(server: Server) -> float:
    return sum(cpu_seconds(pid) for pid in worker_pids(server))


def worker_pids(server: Server) -> list[int]:
    return [pid for pid in descendants(server.pid) if is_worker(pid)]


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def words_of_workers(server: Server, fleet: Fleet) -> dict[str, int]:
    """Return the text of one token of each worker, which shows which worker wrote an answer."""
    words = {}
    for worker in range(fleet.num_workers):
        answer = httpx.post(f"{server.url}/detokenize", json={"tokens": [FIRST_TOKEN + worker]}, timeout=30)
        words[answer.raise_for_status().json()["prompt"]] = worker
    return words
