"""Other programs that the nightly tests of the kernels run."""

import os
import subprocess
from pathlib import Path

import pytest

from lightwell.model.kernels import build

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
ZIG = ROOT / ".tools" / "zig" / "bin" / "python"
LIMIT = 3600
"""Timeout of a program in seconds: the tests of all kernels with sanitizers take a quarter of an hour of CPU time."""

needs_tools = [
    pytest.mark.tool,
    pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="kernels are tried everywhere by `make test-nightly`"),
]
needs_x86 = pytest.mark.skipif(build.architecture() != "x86_64", reason="levels of x86-64 are repeated on x86-64")


def run(*command: str | Path, given: bytes = b"", **environment: str) -> bytes:
    """Return the output of a command; it must succeed."""
    wanted = {name: value for name, value in os.environ.items() if name != "TEST_TOOLS"} | environment
    done = subprocess.run(command, input=given, env=wanted, cwd=ROOT, capture_output=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, ((b"" if given else done.stdout[-5000:]) + done.stderr[-5000:]).decode(
        errors="replace"
    )
    return done.stdout
