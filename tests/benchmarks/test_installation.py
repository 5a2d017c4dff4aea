"""The installation as users run it: from a fresh clone, from wheels without a compiler, by uv's own commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import installation
from deploy import install

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("row", ["serve", "wheel-uv", "wheel-pip"])
def test_an_installation_answers_and_is_small(row: str, tmp_path: Path) -> None:
    measure, _ = installation.ROWS[row]
    found = measure(tmp_path)
    assert found.distributions <= 64
    assert found.gigabytes <= (1.2 if row == "serve" else 1.3)  # pip compiles the modules of the packages


def test_uv_sync_installs_the_default_model_in_a_clone(tmp_path: Path) -> None:
    """`uv run` installs the same."""
    uv = install.find_uv(Path(sys.executable))
    assert uv is not None
    folder, environment = installation.clone(tmp_path), install.uv_environment(install.pip_settings())
    command = [uv, "sync", "--dry-run"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert " + lightwell-smollm2 " in done.stderr
    assert not subprocess.run(["git", "status", "--short"], cwd=folder, capture_output=True, check=True).stdout
