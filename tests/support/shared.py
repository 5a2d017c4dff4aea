"""Folders and servers that all tests of a run share, whichever process of pytest-xdist runs them."""

import atexit
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
READY_WITHIN = 600.0
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
            if pid := json.loads(path.read_text()).get("pid"):
                kill(descendants(pid))
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


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the run's lock of that name; other processes of the run wait for it."""
    with _lock(_folder() / name):
        yield


def shared_server(*arguments: str) -> Server:
    """Return the server that all tests with these arguments of `lightwell serve` share; it ends with the run.

    Other tests use it at the same time: its counters and its load are not this test's. Raises AssertionError with the
    end of its log if the server did not start, in this test or an earlier one, or no longer runs.
    """
    file, log = (_folder() / f"{_name(arguments)}.{kind}" for kind in ("server", "log"))
    with _lock(file):
        if not file.exists():
            file.write_text(json.dumps(_start(arguments, log)))
    told = json.loads(file.read_text())
    reason = told.get("failure") or (None if Path(f"/proc/{told['pid']}").exists() else "the shared server ended")
    assert reason is None, f"{reason}; its log ends:\n{log.read_text(errors='replace')[-3000:]}"
    return Server(LOOPBACK, told["port"], told["pid"])


def _start(arguments: Sequence[str], log: Path) -> dict[str, Any]:
    """Return port and pid of a server that is ready, or why it is not."""
    environment = {**os.environ, "TMPDIR": str(_folder())}
    with log.open("w+b") as output:
        process = subprocess.Popen(serve_command(arguments), stdout=output, stderr=output, cwd=ROOT, env=environment)
        _started.append(process)
        try:
            port = printed_port(process, output, READY_WITHIN)
            failure = wait_until_ready(Server(LOOPBACK, port, process.pid), process, "/health/ready", READY_WITHIN)
        except Exception as error:
            failure = str(error)
        except BaseException:
            kill(descendants(process.pid))
            raise
    if failure:
        kill(descendants(process.pid))
        return {"failure": failure}
    process.returncode = 0  # it keeps running; otherwise Python warns of a running process
    return {"port": port, "pid": process.pid}


def _folder() -> Path:
    if VARIABLE not in os.environ:  # a program that is no test uses this module
        begin()
        atexit.register(finish)
    return Path(os.environ[VARIABLE])


def _name(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
