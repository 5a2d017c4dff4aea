"""Worker processes that start before their job is known."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.lifecycle import worker_process
from tests.server.running import PATIENCE
from tests.support.processes import ROOT, descendants


def write_modules(path: Path, names: tuple[str, ...]) -> None:
    path.write_text(" ".join(str(name in sys.modules) for name in names), encoding="utf-8")


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    yield
    worker_process.end_unused()


def test_the_first_process_is_taken_once_and_has_imported_what_takes_long(tmp_path: Path) -> None:
    worker_process.start_early(None, tmp_path)
    for name in ("early", "late"):
        process = worker_process.take().run(write_modules, tmp_path / name, ("torch", "server.engine.engine"))
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert (tmp_path / "early").read_text() == "True True"
    assert (tmp_path / "late").read_text() == "False False"


def test_a_process_that_ended_before_its_job_is_returned_for_its_exit_status() -> None:
    waiting = worker_process.WorkerProcess()
    waiting.process.kill()
    waiting.process.join(PATIENCE)
    assert waiting.run(os.getpid).exitcode == -9


UNUSED = """
import os, sys
from pathlib import Path
from server.lifecycle import worker_process
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), end]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        waiting = int(parent.stdout.readline())
        assert waiting in descendants(parent.pid)
        parent.stdin.close()
        # The end of its output: the process that waits holds the pipe, too.
        assert parent.stdout.read() == ""
    assert parent.returncode == 0
