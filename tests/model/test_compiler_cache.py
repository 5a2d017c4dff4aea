"""A disk without room costs the next start some time, and this one nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.running import ROOT

COMPILE = """
import errno, os, numba
from numba.core import caching
from model.layers.compiler_cache import tolerate_full_disks

tolerate_full_disks()
tolerate_full_disks()

def no_room(*unused, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

if {is_full}:
    caching.IndexDataCacheFile._open_for_write = no_room

@numba.njit(cache=True)
def double(x):
    return x + x

print(double(21))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
def test_what_cannot_be_kept_is_used_all_the_same(tmp_path: Path, is_full: bool) -> None:
    script = tmp_path / "compile.py"
    script.write_text(COMPILE.format(is_full=is_full))
    done = subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert bool(list((tmp_path / "__pycache__").glob("*.nbi"))) is not is_full
    assert ("is not kept for the next start" in done.stderr) is is_full
