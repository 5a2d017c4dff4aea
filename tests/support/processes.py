"""Starts a server in a process of its own, waits until it is ready, and ends it by its process id."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"


class ServerFailed(RuntimeError):
    """The server ended, or was not ready in time; the message holds the end of its log."""


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def resident_bytes(self) -> dict[int, int]:
        """Return the proportional memory of the server and each descendant, by process id: shared pages are counted
        once.
        """
        return {pid: proportional_bytes(pid) for pid in descendants(self.pid)}


@contextmanager
def serve(
    arguments: Sequence[str],
    ready_within: float = 600.0,
    port: int = 0,
    log_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `lightwell serve ARGUMENTS` on the loopback interface, on a free port unless one is given.

    Its output goes to `log_file`, if one is given. `environment` is added to ours.

    Raises:
        ServerFailed: it ended or was not ready within `ready_within` seconds.
    """
    command = serve_command(arguments, port)
    with running(command, port, "/health/ready", ready_within, environment=environment, log_file=log_file) as server:
        yield server


def serve_command(arguments: Sequence[str], port: int = 0) -> list[str]:
    """Return the command of `lightwell serve ARGUMENTS` on a port of the loopback interface, by default a free one."""
    return [sys.executable, "-m", "lightwell", "serve", *arguments, "--host", LOOPBACK, "--port", str(port)]


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    ready_path: str,
    ready_within: float,
    *,
    environment: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    folder: Path = ROOT,
) -> Iterator[Server]:
    """Run any server that `command`, in `folder`, starts on `port` of the loopback interface and that answers 200 at
    `ready_path` once it is ready; it is ended with all its children afterwards. `environment` is added to ours. With
    port 0 the port is the one that Lightwell prints.

    Raises:
        ServerFailed: it ended or was not ready within `ready_within` seconds.
    """
    with TemporaryFile() if log_file is None else log_file.open("w+b") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, **(environment or {})}
        )
        try:
            server = Server(LOOPBACK, port or printed_port(process, log, ready_within), process.pid)
            if reason := wait_until_ready(server, process, ready_path, ready_within):
                log.seek(0)
                raise ServerFailed(f"{reason}; its log ends:\n{log.read()[-3000:].decode(errors='replace')}")
            yield server
        finally:
            end(process)


def printed_port(process: subprocess.Popen[bytes], log: IO[bytes], seconds: float) -> int:
    """Return the port of the address that a starting Lightwell server prints to `log`, or 0 if there is none in time.

    A port that is chosen before the server starts may be taken by another server in between.
    """
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if found := re.search(rb"Lightwell is loading .*? http://[^/\s\"]+:(\d+)", os.pread(log.fileno(), 1 << 20, 0)):
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    return 0


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], path: str, seconds: float) -> str | None:
    """Return why `path` did not answer 200, or None if it did."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if process.poll() is not None:
            return f"the server ended with status {process.returncode}"
        try:
            with urllib.request.urlopen(f"{server.url}{path}", timeout=2):
                return None
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    return f"the server was not ready after {seconds:.0f} s"


def end(process: subprocess.Popen[bytes]) -> None:
    children = [pid for pid in descendants(process.pid) if pid != process.pid]
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill(children)  # children that outlived their parent


def kill(pids: Sequence[int]) -> None:
    """Kill the processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def num_open_files(pid: int) -> int:
    """Return the number of file descriptors of a process; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def descendants(pid: int) -> list[int]:
    """Return `pid` and every process under it, from /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid] if Path(f"/proc/{pid}").exists() else []
    for parent in found:
        found += children.get(parent, [])
    return found


def worker_pid(pid: int) -> int | None:
    """Return the process that runs the engine, of those under the server's first one, or None if there is none."""
    return next((child for child in descendants(pid) if is_worker(child)), None)


def is_worker(pid: int) -> bool:
    """Return whether the process was started by multiprocessing: its helper, the resource tracker, is not."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended while we looked
        return False


def proportional_bytes(pid: int) -> int:
    return _memory(pid, "Pss")


def allocated_bytes(pid: int) -> int:
    """Return the bytes that a process allocated itself, its share of shared memory included. Files it maps are left
    out: their share changes by tens of megabytes when other processes that use the same libraries come or go.
    """
    return _memory(pid, "Anonymous") + _memory(pid, "Pss_Shmem")


def _memory(pid: int, name: str) -> int:
    """Return one line of the kernel's account, in bytes; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
