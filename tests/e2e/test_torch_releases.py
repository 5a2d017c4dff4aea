"""The network and servers with the oldest and the newest torch that pyproject.toml allows; all other packages are
from this environment.
"""

import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.e2e.conftest import ALL

pytestmark = [
    pytest.mark.tool,
    pytest.mark.skipif(not ALL, reason="other releases of torch are tried by `make test-nightly`"),
]

ROOT = Path(__file__).resolve().parents[2]
TRIED = ("-m", "not nightly", "tests/model", "tests/e2e/test_numerics_over_http.py")


def with_torch(release: str, *arguments: str) -> str:
    """Return Python's output with one of the torch releases that tests/tools/install.sh puts under .tools."""
    python = ROOT / ".tools" / f"torch-{release}" / "bin" / "python"
    # Only from the environment: without tools, and not as one of this run's processes.
    kept = {name: value for name, value in os.environ.items() if name != "TEST_TOOLS" and "XDIST" not in name}
    done = subprocess.run([python, *arguments], cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def installed(release: str) -> tuple[int, ...]:
    found = with_torch(release, "-c", "import torch; print(torch.__version__)")
    return tuple(map(int, re.findall(r"\d+", found.partition("+")[0])))


def test_the_releases_are_the_ends_of_what_is_allowed() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (bound,) = (re.match(r"torch>=([\d.]+)", each) for each in dependencies if each.startswith("torch"))
    assert bound
    assert installed("oldest")[:2] == tuple(map(int, bound[1].split(".")))
    ours = tuple(map(int, version("torch").partition("+")[0].split(".")))
    assert installed("newest") >= ours


@pytest.mark.parametrize("release", ["oldest", "newest"])
def test_every_test_of_the_network_and_of_its_numbers_over_http_passes(release: str) -> None:
    printed = with_torch(release, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TRIED)
    assert re.search(r"\d+ passed", printed)
