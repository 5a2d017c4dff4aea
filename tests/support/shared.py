"""Folders and servers that all tests of a run share, whichever process of pytest-xdist runs them."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import (
    LOOPBACK,
    ROOT,
    Server,
    descendants,
    kill,
    printed_port,
    serve_command,
    wait_until_ready,
)

VARIABLE = "TEST_RUN_FOLDER"
"""Environment variable with the run's folder, which the processes of pytest-xdist inherit."""
READY_WITHIN = 300.0
"""Seconds until a shared server must be ready."""
_started: list[subprocess.Popen[bytes]] = []
"""The shared servers of this process: an object that is deleted while its server runs would warn."""


def begin() -> None:
    """Make the run's folder, in the first process of the run only."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="lightwell-tests-")


def finish() -> None:
    """End the shared servers and remove the run's folder, in the first process of the run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for path in _folder().glob("*.server"):
            kill(descendants(json.loads(path.read_text())["pid"]))
        shutil.rmtree(_folder(), ignore_errors=True)
        for process in _started:
            process.wait()
    for process in _started:
        process.returncode = process.returncode or 0  # it may run on: an object of a process that runs would warn


def once(key: object, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills, in the first test of the run that needs it.

    `key` identifies the contents by its `repr`. Tests must not change the folder.
    """
    folder = _folder() / _name(key)
    with _lock(folder):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder


def shared_server(*arguments: str) -> Server:
    """Return the server that all tests with these arguments of `lightwell serve` share; it ends with the run.

    Other tests use it at the same time: its counters and its load are not this test's.
    """
    file = _folder() / f"{_name(arguments)}.server"
    with _lock(file):
        if not file.exists():
            log = file.with_suffix(".log")
            environment = {**os.environ, "TMPDIR": str(_folder())}
            with log.open("w+b") as output:
                process = subprocess.Popen(
                    serve_command(arguments), stdout=output, stderr=output, cwd=ROOT, env=environment
                )
                port = printed_port(process, output, READY_WITHIN)
            _started.append(process)
            server = Server(LOOPBACK, port, process.pid)
            if reason := wait_until_ready(server, process, "/health/ready", READY_WITHIN):
                kill(descendants(process.pid))
                raise AssertionError(f"{reason}; its log ends:\n{log.read_text()[-3000:]}")
            process.returncode = 0  # it goes on running; otherwise Python warns of a running process
            file.write_text(json.dumps({"port": port, "pid": process.pid}))
    return Server(LOOPBACK, **json.loads(file.read_text()))


def _folder() -> Path:
    return Path(os.environ[VARIABLE])


def _name(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
