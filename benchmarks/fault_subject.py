"""The server under test of `benchmarks.faults`: started, watched and removed.

Independent of the faults (`benchmarks.faults`) and of the clients (`benchmarks.fault_load`).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from benchmarks.fault_judge import num_open
from lightwell.model.checkpoint.folder import PACKAGED
from tests.server import running
from tests.support.processes import ROOT, descendants, free_port, worker_pid
from tests.support.wire import samples
from tests.support.worker_memory import leave_room

PATIENCE = 300.0
"""Seconds after which something is assumed never to come; five workers must have started by then on a busy machine."""
_SCRAPE_EVERY = 0.1
"""Seconds between two reads of the metrics of a server that is not ready."""

wait_for = partial(running.wait_for, patience=PATIENCE, pause=0.02)


@dataclass
class Subject:
    process: subprocess.Popen[bytes]
    port: int
    model: Path
    tmp: Path
    log: Path | None
    """The log file, or None if the log goes to a disk without room."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def worker(self) -> int:
        """Return the worker's process id, once there is one."""
        return wait_for(lambda: worker_pid(self.process.pid), "a worker runs")

    def next_worker(self, last: int) -> int:
        """Return the process id of the worker after the one that had `last`."""

        def find() -> int | None:
            found = worker_pid(self.process.pid)
            return found if found != last else None

        return wait_for(find, "another worker is started")

    def kill_worker(self) -> int:
        pid = self.worker()
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def metrics(self) -> dict[str, float]:
        """Return every value of /metrics. Raises httpx.TransportError."""
        return samples(httpx.get(f"{self.url}/metrics", timeout=5).text)

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log is not None else []
        return lines[-1] if lines else ""


def wait_mapped(pid: int, name: str) -> None:
    """Wait until the process has a file of this name in its memory: it shows how far its start has come."""

    def is_mapped() -> bool:
        with contextlib.suppress(OSError):  # not yet begun
            return name in Path(f"/proc/{pid}/maps").read_text()
        return False

    wait_for(is_mapped, f"process {pid} opens {name}")


@contextlib.contextmanager
def start(
    folder: Path,
    arguments: Sequence[str],
    *,
    room: int | None = None,
    is_disk_full: bool = False,
    port: int | None = None,
) -> Iterator[Subject]:
    """Start a server with a model and a separate folder of temporary files, wait until it is ready, and stop it at the
    end.

    `room`: as for `leave_room`. `is_disk_full`: the log goes to a disk without room. Raises AssertionError when the
    server does not become ready.
    """
    folder.mkdir(exist_ok=True)
    model, tmp = folder / "model", folder / "tmp"
    shutil.copytree(PACKAGED, model)
    tmp.mkdir()
    arguments = [str(model), "--kv-cache-memory", "32MiB", *arguments]
    port = port or free_port()
    command = [sys.executable, "-m", "tests.support.breakable_server", *arguments, "--port", str(port)]
    log = None if is_disk_full else folder / "log"
    with (log or Path("/dev/full")).open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp)}, stdout=sink, stderr=subprocess.STDOUT
        )
    subject = Subject(process, port, model, tmp, log)
    try:
        wait_for(lambda: process.poll() is not None or subject.is_ready(), "the server is ready")
        assert process.poll() is None, f"the server ended: {subject.last_line()}"
        if room is not None:
            leave_room(process.pid, room)
        yield subject
    finally:
        for pid in descendants(process.pid) if process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def idle_metrics(subject: Subject, before: dict[str, float]) -> dict[str, float]:
    """Return the metrics once the server is idle. Ends may take a moment to be counted, so they are read until all
    are, for a few seconds.
    """
    end = time.monotonic() + 5.0
    while num_open(before, after := subject.metrics()) and time.monotonic() < end:
        time.sleep(0.05)
    return after


class Watch:
    """Polls readiness without pause, in a thread, and the metrics of a server that is not ready."""

    def __init__(self, subject: Subject, metrics: dict[str, float]) -> None:
        self._subject = subject
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._is_over = False
        self._last_scrape = 0.0
        self.metrics = metrics
        """The last metrics that were read."""
        self.last_unready = 0.0
        """When the server was last seen not ready, on CLOCK_MONOTONIC; 0 if never."""
        self.least_up: float | None = None
        """The least `worker_up` meanwhile."""

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._is_over = True
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over:
            if not self._subject.is_ready():
                self.last_unready = time.monotonic()
                if self._subject.process.poll() is None and self.last_unready > self._last_scrape + _SCRAPE_EVERY:
                    self._scrape()
            time.sleep(0.01)

    def _scrape(self) -> None:
        self._last_scrape = time.monotonic()
        with contextlib.suppress(httpx.TransportError):  # it has ended
            self.metrics = self._subject.metrics()
            up = self.metrics['lightwell_worker_up{worker="0"}']
            self.least_up = up if self.least_up is None else min(up, self.least_up)
