"""Bytecode of the tests and of their libraries, in a new clone."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = (["tests/server"], ["tests", "--ignore=tests/server"])
"""Arguments of two processes that import about as much as each other."""


def write_once() -> None:
    """Import all tests in two processes, unless their bytecode exists.

    The processes of pytest-xdist import the same files in the same order. Without bytecode, each compiles every file.
    """
    if any((ROOT / "tests" / "server").glob("__pycache__/test_*-pytest-*.pyc")):
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet"]
    running = [subprocess.Popen([*command, *part], stdout=subprocess.DEVNULL, cwd=ROOT) for part in PARTS]
    for process in running:
        process.wait()
