"""Starts a server process for a test, waits for conditions with a deadline, and leaves nothing running afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.processes import ROOT

T = TypeVar("T")
PATIENCE = 300.0
"""Seconds after which a condition is taken to never come; only a failure waits that long."""
LOAD_PATIENCE = 600.0
"""Seconds until a server must be ready."""


def wait_for(condition: Callable[[], T], what: str, patience: float = PATIENCE, pause: float = 0.01) -> T:
    """Return the first true value of `condition`, checked again after each pause (seconds)."""
    end = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {patience} s: {what}")
        time.sleep(pause)


def is_running(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def group_members(group: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                members.append(int(entry.name))
    return members


class Client:
    """Requests to a server at an address. The caller closes `http`."""

    def __init__(self, url: str = "") -> None:
        self._url = url
        self.http = httpx.Client(timeout=PATIENCE)

    @property
    def url(self) -> str:
        return self._url

    def get(self, path: str) -> httpx.Response:
        return self.http.get(self.url + path)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(self.url + path, json=body)

    def status(self, path: str) -> int:
        """Return the status of a GET, or 0 if no server answers."""
        try:
            return self.get(path).status_code
        except httpx.TransportError:
            return 0


class RunningServer(Client):
    """A server process in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, tmp: Path) -> None:
        super().__init__()
        self.process = process
        self.tmp = tmp
        """The folder that the server uses as the machine's folder of temporary files."""
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def url(self) -> str:
        def find() -> str:
            assert self.process.poll() is None, f"the server ended: {self.output}"
            found = re.search(r"Lightwell is loading .* (http://[^\s\"]+)", self.output)
            return found[1] if found else ""

        return wait_for(find, "the server prints its address", LOAD_PATIENCE)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.get("/state").json()
        return state

    def worker_pid(self) -> int:
        pid: int = wait_for(lambda: self.state()["pids"][0], "a worker is connected")
        return pid

    def wait_ready(self) -> None:
        # A pause of 0.01 s would add a tenth to the CPU time of the start.
        wait_for(lambda: self.status("/health/ready") == 200, "the server is ready", LOAD_PATIENCE, pause=0.05)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        return self.process.wait(PATIENCE)

    def wait_all_gone(self) -> None:
        """Wait until all processes are gone, workers and helpers too."""
        wait_for(lambda: not group_members(self.process.pid), f"all of {group_members(self.process.pid)} leave")


@contextmanager
def running_server(
    *arguments: str,
    module: str = "tests.server.fake_server",
    script: Path | None = None,
    cwd: Path = ROOT,
    **env: str,
) -> Iterator[RunningServer]:
    """Run a server on a free loopback port; everything it started is gone afterwards.

    The server is `module`, or `script` if there is one, run in the folder `cwd`.
    """
    command = ["-m", module] if script is None else [str(script)]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, *command, *arguments, "--port", "0"],
                cwd=cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TMPDIR": folder, **env},
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = RunningServer(process, output, Path(folder))
        try:
            yield server
        except BaseException:
            print(server.output)
            raise
        finally:
            server.http.close()
            for pid in group_members(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()


def stream_lines(response: httpx.Response) -> Iterator[Any]:
    """Yield the `data:` and `event:` payloads of a stream, parsed if they are JSON."""
    for line in response.iter_lines():
        name, _, text = line.partition(": ")
        if name == "event":
            yield text
        elif name == "data":
            yield json.loads(text) if text.startswith("{") else text
