"""Worker processes that start before their job is known."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightwell.server.lifecycle import worker_process
from tests.server.running import PATIENCE
from tests.support.processes import ROOT, descendants


def write_modules(path: Path, names: tuple[str, ...]) -> None:
    path.write_text(" ".join(str(name in sys.modules) for name in names), encoding="utf-8")


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    """Leave no process and no variable of the workers' environment."""
    before = dict(os.environ)
    yield
    worker_process.end_unused()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def test_the_first_process_is_taken_once_and_has_imported_what_takes_long(tmp_path: Path) -> None:
    worker_process.start_early(None, tmp_path)
    for name in ("early", "late"):
        process = worker_process.take().run(write_modules, tmp_path / name, ("torch", "lightwell.server.engine.engine"))
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert (tmp_path / "early").read_text() == "True True"
    assert (tmp_path / "late").read_text() == "False False"


def test_a_process_that_ended_before_its_job_is_returned_for_its_exit_status() -> None:
    waiting = worker_process.WorkerProcess()
    waiting.process.kill()
    waiting.process.join(PATIENCE)
    assert waiting.run(os.getpid).exitcode == -9


def test_the_signal_for_the_api_process_does_not_end_a_worker() -> None:
    process = worker_process.take().run(signal.raise_signal, signal.SIGUSR1)
    process.join(PATIENCE)
    assert process.exitcode == 0


BROKEN = """
import sys
from lightwell.command import main
if __name__ == "__main__":
    sys.modules["lightwell.server.lifecycle.app"] = None  # as where a dependency is missing
    main()
"""


def test_a_start_that_fails_after_the_process_has_begun_ends(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(BROKEN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(script), "serve", "fables"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 1
    assert "lightwell.server.lifecycle.app" in done.stderr.splitlines()[-1]


UNUSED = """
import os, sys
from pathlib import Path
from lightwell.server.lifecycle import worker_process
if __name__ == "__main__":
    worker_process.start_early(None, Path())
    print(worker_process._early[0].process.pid, flush=True)
    sys.stdin.read()
    os._exit(0) if sys.argv[1] == "killed" else worker_process.end_unused()
"""


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_an_unused_process_ends_with_its_parent(end: str, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(UNUSED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(script), end]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        waiting = int(parent.stdout.readline())
        assert waiting in descendants(parent.pid)
        # To the end of its output: the process that waits holds the pipe, too.
        assert parent.communicate(timeout=PATIENCE)[0] == ""
    assert parent.returncode == 0
