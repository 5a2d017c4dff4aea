"""Memory and file descriptors of the server's processes over time, and whether they stay flat.

Each process is judged over the second half of its own life, as a new worker still grows. Only allocated memory counts,
without shared libraries: when two other programs that map the same libraries ended during a soak, the proportional
share of the libraries' pages rose by 40 MiB per process.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.processes import Server, allocated_bytes, is_worker, num_open_files
from tests.support.processes import descendants as descendants_of

API_PROCESS, WORKER = "the API process", "worker"
INTERVAL = 2.0
"""Seconds between two samples."""
MIN_LIFE = 300.0
"""Seconds that a worker must live to be judged: a younger one is still growing into its work, and its line says
nothing of a leak.
"""
MUST_JUDGE = 600.0
"""Seconds of a soak from which on the memory of the API process and of a worker must be judged."""
MEMORY_GROWTH, MEMORY_SLACK = 0.05, 16 << 20
"""Maximum growth of flat memory in half a life: this share, or this number of bytes."""
FILES_SLACK = 16


@dataclass(frozen=True)
class Sample:
    """One process at one moment."""

    at: float
    num_bytes: int
    num_files: int


@dataclass(frozen=True)
class Growth:
    """The growth of one process over the second half of its life, along a fitted line."""

    pid: int
    name: str
    seconds: float
    num_bytes: float
    """Bytes at the half of its life."""
    more_bytes: float
    most_bytes: int
    num_files: float
    more_files: float

    @property
    def problems(self) -> list[str]:
        """Return the series that are not flat, as text."""
        found = []
        if self.more_bytes > max(MEMORY_GROWTH * self.num_bytes, MEMORY_SLACK):
            found.append(
                f"the memory of {self.name} {self.pid} grows: {self.more_bytes / 2**20:+.1f} MiB in half its life"
            )
        if self.more_files > FILES_SLACK:
            found.append(f"the open files of {self.name} {self.pid} grow: {self.more_files:+.1f} in half its life")
        return found


class Watch:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.names: dict[int, str] = {}
        """The kind of each process, by its id, as of `samples`."""
        self.samples: dict[int, list[Sample]] = defaultdict(list)

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self._take)
            await asyncio.sleep(INTERVAL)

    def _take(self) -> None:
        for pid in descendants_of(self._server.pid):
            num_bytes = allocated_bytes(pid)
            if num_bytes:
                self.names.setdefault(pid, name_of(pid, self._server))
                self.samples[pid].append(Sample(time.monotonic(), num_bytes, num_open_files(pid)))

    def growths(self) -> list[Growth]:
        """Return the growth of each process that lived long enough, the API process first."""
        return [
            growth_of(pid, self.names[pid], samples)
            for pid, samples in self.samples.items()
            if samples[-1].at - samples[0].at >= MIN_LIFE
        ]

    def unjudged(self) -> list[str]:
        """Return the kinds of processes without a process that lived long enough."""
        return sorted({API_PROCESS, WORKER} - {growth.name for growth in self.growths()})


def name_of(pid: int, server: Server) -> str:
    if pid == server.pid:
        return API_PROCESS
    return WORKER if is_worker(pid) else "helper"


def growth_of(pid: int, name: str, samples: Sequence[Sample]) -> Growth:
    """Fit lines to the second half of the samples."""
    half = samples[len(samples) // 2 :]
    times = [sample.at for sample in half]
    seconds = times[-1] - times[0]
    memory, files = [float(sample.num_bytes) for sample in half], [float(sample.num_files) for sample in half]
    return Growth(
        pid=pid,
        name=name,
        seconds=samples[-1].at - samples[0].at,
        num_bytes=sum(memory) / len(memory) - slope(times, memory) * seconds / 2,
        more_bytes=slope(times, memory) * seconds,
        most_bytes=max(sample.num_bytes for sample in samples),
        num_files=sum(files) / len(files) - slope(times, files) * seconds / 2,
        more_files=slope(times, files) * seconds,
    )


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line of least squares; 0 for fewer than two moments."""
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((time - middle) ** 2 for time in times)
    return sum((t - middle) * (v - mean) for t, v in zip(times, values, strict=True)) / spread if spread else 0.0
