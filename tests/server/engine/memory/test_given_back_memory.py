"""Freed memory goes back to the kernel, whichever thread took it. It runs in a separate process, since it affects the
whole process.
"""

import subprocess
import sys

import pytest

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from server.engine.memory.memory_limit import give_back_memory, keep_little_memory

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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_thread_is_given_back_also_after_a_large_body() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    grown, stays = map(int, done.stdout.split())
    assert grown > 29_000_000
    assert stays < 3_000_000
