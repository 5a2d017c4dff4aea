"""Memory goes back to the kernel: freed memory, whichever thread took it, and pages of libraries. Each test runs in a
separate process, since it affects the whole process.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
FREED = """
from concurrent.futures import ThreadPoolExecutor
from lightwell.server.engine.memory.process_memory import give_back_memory, keep_little_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def read(body):
    return [bytes(1000 * [1]) * 1000 for _ in range(body)]

keep_little_memory()
large = bytes([1]) * (30 << 20)  # freed, it makes glibc keep 60 MiB at the end of each heap
del large
before = resident()
with ThreadPoolExecutor(1) as thread:
    read_body = thread.submit(read, 30).result()
    grown = resident() - before
    del read_body
    give_back_memory()
    print(grown, resident() - before)
"""
LIBRARIES = """
import re
import numpy as np
from lightwell.server.engine.memory.mapped_libraries import let_go_of_libraries

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


def printed(program: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


def test_memory_of_a_thread_is_given_back_also_after_a_large_body() -> None:
    grown, stays = printed(FREED)
    assert grown > 29_000_000
    assert stays < 3_000_000


def test_pages_of_libraries_are_let_go_and_what_needs_them_gives_what_it_gave() -> None:
    before, left = printed(LIBRARIES)
    assert left < before / 2
