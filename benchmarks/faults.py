"""The fault table: breaks a real server in the ways that operators fear, under load, and says what became of everyone.

    python -m benchmarks.faults [--only WORD ...] [--clients 8]

Each fault gets a server of its own, on a copy of the default model. While clients ask, whose answers without a fault
are known, the fault comes; the table says what they saw, how long the server was not ready and how many requests were
lost: clients that were told nothing, and requests that the server's own counters do not see ended. Exit status 1 when
any was, when an answer differs from the one without a fault, or when a fault did not end as it should.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import httpx

from benchmarks.fault_load import CULPRIT, DECODE, EVERYTHING, LOOK, PREFILL, Load, Question, books
from benchmarks.processes import ROOT, descendants, free_port, worker_pid
from model.folder import PACKAGED

_SETTLE = 1.0
"""Seconds of load before a fault and after the server is ready again."""
_PATIENCE = 120.0


T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], what: str) -> T:
    """The first true value. Raises AssertionError when there is none in time."""
    end = time.monotonic() + _PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {_PATIENCE:.0f} s: {what}"
        time.sleep(0.02)
    return value


@dataclass
class Subject:
    """A server that is to be broken."""

    process: subprocess.Popen[bytes]
    port: int
    model: Path
    tmp: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def worker(self) -> int:
        """The worker's process id, once there is one."""
        return wait_for(lambda: worker_pid(self.process.pid), "a worker runs")

    def kill_worker(self) -> None:
        os.kill(self.worker(), signal.SIGKILL)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    act: Callable[[Subject], None]
    """Returns when the fault is over, if it ends by itself."""
    questions: tuple[Question, ...] = EVERYTHING
    arguments: tuple[str, ...] = ()
    culprit: Question | None = None
    """Asked once, beside the load."""
    room: int | None = None
    """Bytes that the worker may take beyond what it has taken when it is ready; None is no limit."""
    exit_status: int | None = None
    """With which the server is to end; None: it is to be ready again."""
    replaces: bool = True
    """Another worker must have been started."""


def kill_again_and_again(subject: Subject) -> None:
    """Each worker as soon as it is ready, until the server gives up."""
    while subject.process.poll() is None:
        if subject.is_ready():
            with contextlib.suppress(ProcessLookupError, AssertionError):
                subject.kill_worker()
        time.sleep(0.05)


def stop_for_a_while(subject: Subject) -> None:
    """The worker stands still until it is called hung, and then goes on."""
    pid = subject.worker()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not subject.is_ready(), "the silence is noticed")
    os.kill(pid, signal.SIGCONT)


def stop_for_good(subject: Subject) -> None:
    os.kill(subject.worker(), signal.SIGSTOP)
    wait_for(lambda: not subject.is_ready(), "the silence is noticed")


def remove_socket(subject: Subject) -> None:
    """As a cleaner of /tmp does; then the worker ends, and the next one needs a socket."""
    for folder in subject.tmp.glob("lightwell-*"):
        shutil.rmtree(folder)
    subject.kill_worker()


def overwrite_weights(subject: Subject) -> None:
    """In place, as a copy over them does: what runs must not notice, what starts must refuse."""
    weights = subject.model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-(1 << 20) :] = bytes(1 << 20)
    with weights.open("r+b") as file:
        file.write(content)
    time.sleep(_SETTLE)
    subject.kill_worker()


def truncate_weights(subject: Subject) -> None:
    os.truncate(subject.model / "model.safetensors", 4096)
    time.sleep(_SETTLE)
    subject.kill_worker()


def remove_model(subject: Subject) -> None:
    shutil.rmtree(subject.model)
    time.sleep(_SETTLE)
    subject.kill_worker()


def wait(subject: Subject) -> None:
    """The culprit alone does it."""
    time.sleep(2 * _SETTLE)


HASTY = ("--worker-timeout", "3")
KILL = Subject.kill_worker
FAULTS = (
    Fault("worker killed, idle", KILL, ()),
    Fault("worker killed, all kinds of requests", KILL),
    Fault("worker killed while it reads prompts", KILL, PREFILL),
    Fault("worker killed while it writes", KILL, DECODE),
    Fault("worker killed while it captures", KILL, LOOK),
    Fault("worker killed again and again", kill_again_and_again, exit_status=1),
    Fault("worker stopped, then continued", stop_for_a_while, arguments=HASTY, replaces=False),
    Fault("worker stopped for good", stop_for_good, arguments=HASTY),
    Fault("a request makes the step raise", wait, culprit=CULPRIT["raises"], replaces=False),
    Fault("a request finds no memory in the step", wait, culprit=CULPRIT["allocates"], replaces=False),
    Fault("a look larger than --worker-memory", wait, culprit=CULPRIT["looks"], room=64 << 20, replaces=False),
    Fault("the network fails for everyone", wait, culprit=CULPRIT["poisons"]),
    Fault("socket folder removed, worker killed", remove_socket),
    Fault("weights overwritten in place, worker killed", overwrite_weights, exit_status=1),
    Fault("weights truncated, worker killed", truncate_weights, exit_status=1),
    Fault("model folder removed, worker killed", remove_model, exit_status=1),
    Fault("API process killed", lambda subject: subject.process.kill(), exit_status=-signal.SIGKILL),
)


@dataclass(frozen=True)
class Row:
    """What one fault did."""

    fault: str
    seen: str
    ready: str
    lost: int
    problems: tuple[str, ...]


def run(fault: Fault, clients: int) -> Row:
    """Break one server."""
    with TemporaryDirectory(prefix="faults-") as folder, start(fault, Path(folder)) as subject:
        load = Load(subject.url, clients, fault.questions)
        load.learn()
        with Watch(subject) as watch:
            load.start()
            time.sleep(_SETTLE)
            began = time.monotonic()
            culprit = None if fault.culprit is None else load.ask_apart(fault.culprit)
            fault.act(subject)
            ready, problems = settle(fault, subject, watch, began)
            time.sleep(_SETTLE)
            load.stop()
        lost = load.num_without_outcome
        if fault.exit_status is None:
            counted = books(subject.url)
            lost += counted.num_unaccounted
            if fault.replaces != (counted.num_restarts > 0):
                problems.append(f"{counted.num_restarts} workers were started again")
        seen = load.seen() + ("" if culprit is None else f"; the request itself: {culprit}")
        return Row(fault.name, seen or "nothing was asked", ready, lost, (*problems, *load.problems()))


def settle(fault: Fault, subject: Subject, watch: "Watch", began: float) -> tuple[str, list[str]]:
    """Wait for what is to come of a fault: how long it took, and what was not as it should."""
    if fault.exit_status is None:
        wait_for(lambda: subject.is_ready() and worker_pid(subject.process.pid), "the server is ready again")
        time.sleep(_SETTLE)
        seconds = watch.last_unready - began
        return (f"{seconds:.2f} s" if seconds > 0 else "always ready"), []
    status = subject.process.wait(_PATIENCE)
    ended = time.monotonic() - began
    problems = [] if status == fault.exit_status else [f"exit status {status}"]
    if status < 0:  # killed: whatever it had must be gone by itself, and the next server must be able to start
        wait_for(lambda: not list(subject.tmp.glob("lightwell-*")), "the socket's folder is gone")
        began = time.monotonic()
        with start(fault, subject.tmp.parent / "again", subject.port):
            return f"another server on the port: {time.monotonic() - began:.1f} s", problems
    return f"exit {status} after {ended:.1f} s: `{subject.last_line()[:100]}`", problems


class Watch:
    """Asks for readiness without pause, in a thread."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._is_over = False
        self.last_unready = 0.0
        """When the server was last seen not ready, on CLOCK_MONOTONIC."""

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
            time.sleep(0.01)


@contextlib.contextmanager
def start(fault: Fault, folder: Path, port: int | None = None) -> Iterator[Subject]:
    """A server that is ready, with a model and a folder of temporary files of its own; gone afterwards."""
    folder.mkdir(exist_ok=True)
    model, tmp = folder / "model", folder / "tmp"
    shutil.copytree(PACKAGED, model)
    tmp.mkdir()
    arguments = [str(model), "--kv-cache-memory", "32MiB", *fault.arguments]
    if fault.room is not None:
        arguments += ["--worker-memory", str(taken_bytes(arguments) + fault.room)]
    port = port or free_port()
    command = [sys.executable, "-m", "benchmarks.breakable_server", *arguments, "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp)}, stdout=sink, stderr=subprocess.STDOUT
        )
    subject = Subject(process, port, model, tmp, log)
    try:
        wait_for(lambda: process.poll() is not None or subject.is_ready(), "the server is ready")
        assert process.poll() is None, f"the server ended: {subject.last_line()}"
        yield subject
    finally:
        for pid in descendants(process.pid) if process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def taken_bytes(arguments: list[str]) -> int:
    """What a worker has taken when it is ready: a server that may take nothing says so."""
    command = [sys.executable, "-m", "benchmarks.breakable_server", *arguments, "--port", "0", "--worker-memory", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    found = re.search(r"(\d+) are taken", done.stderr)
    assert found, done.stderr
    return int(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description="Break a server in the ways operators fear; print what came of it.")
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="faults whose name holds one of these")
    parser.add_argument("--clients", type=int, default=8, help="clients that ask without pause")
    options = parser.parse_args()
    print("| fault | what clients saw | not ready for | requests lost |\n|---|---|---|---|", flush=True)
    problems = []
    for fault in FAULTS:
        if any(word in fault.name for word in options.only):
            row = run(fault, options.clients)
            print(f"| {row.fault} | {row.seen} | {row.ready} | {row.lost} |", flush=True)
            problems += [f"{row.fault}: {problem}" for problem in row.problems]
            problems += [f"{row.fault}: {row.lost} requests were lost"] * bool(row.lost)
    print("\n".join(["", *problems]) if problems else "", end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
