"""Libraries' pages are released, and everything runs on. It runs in a separate process, since it affects the whole
process.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import re
import numpy as np
from server.engine.memory.mapped_libraries import let_go_of_libraries

def resident():
    # kB of numpy's own library
    name, total = "", 0
    for line in open("/proc/self/smaps"):
        if re.match("[0-9a-f]+-", line):
            name = line
        elif line.startswith("Rss:") and "_multiarray_umath" in name:
            total += int(line.split()[1])
    return total

x = np.random.default_rng(0).standard_normal((64, 64))
before, answer = resident(), np.linalg.svd(x, compute_uv=False)
let_go_of_libraries()
left = resident()
assert np.array_equal(np.linalg.svd(x, compute_uv=False), answer)
print(before, left)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_libraries_are_let_go_and_what_needs_them_gives_what_it_gave() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    before, left = map(int, done.stdout.split())
    assert left < before / 2
