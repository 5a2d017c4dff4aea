"""Types, as `make types` checks them: one of the tests, so that it runs in parallel with the others instead of
before them.
"""

import subprocess
import sys
from pathlib import Path

import pytest


def test_every_type_holds() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
