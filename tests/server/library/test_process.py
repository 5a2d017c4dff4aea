"""`LLM` in its process: memory, files, threads and processes, before and after `close()`."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightwell.server.library.llm import LLM
from tests.server.library.calls import GREEDY


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, with its temporary files in a folder."""
    file = folder.with_suffix(".py")
    file.write_text(script)
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    command = [sys.executable, str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)


KILLED = """
import os, signal, threading
from lightwell.server.library.llm import LLM

def kill(frame, event, argument):
    if frame.f_code.co_name == "load_engine":
        os.kill(os.getpid(), signal.SIGKILL)

threading.setprofile(kill)
LLM("fables", threads=1)
"""


def test_a_process_that_is_killed_while_it_loads_leaves_no_file(tmp_path: Path) -> None:
    done = run(KILLED, tmp_path / "killed")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((tmp_path / "killed").iterdir()) == []


LOADED_AGAIN = """
import ctypes, os
from pathlib import Path
from lightwell.server.library.llm import LLM

NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info

def taken():
    info = library.mallinfo2()
    pss = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss_Anon")]
    return info.uordblks + info.hblkhd, int(pss[0].split()[1]) << 10, len(os.listdir("/proc/self/fd"))

def use(model):
    llm = LLM(model, threads=1, max_model_len=512)
    llm.generate("A fox", max_tokens=4, use_tqdm=False)
    loaded = taken()
    llm.close()
    return loaded, taken()

use("fables")
_, before = use("smollm2")
for _ in range(2):
    loaded, after = use("smollm2")
print(*before, *loaded, *after)
"""


def test_close_gives_back_memory_and_files(tmp_path: Path) -> None:
    done = run(LOADED_AGAIN, tmp_path / "loaded")
    assert not done.returncode, done.stderr
    values = [int(value) for value in done.stdout.split()]
    before, loaded, after = values[:3], values[3:6], values[6:]
    assert loaded[0] - after[0] > 60 << 20  # bytes; the weights of 135 million numbers have 4 bits or more
    assert after[0] - before[0] < 8 << 20
    # Of two models that were loaded meanwhile; free memory between allocations remains with the C library.
    assert after[1] - before[1] < 1.5 * (loaded[0] - after[0]), "memory of the process"
    assert after[2] <= before[2]


def test_a_running_event_loop_as_in_a_notebook_is_no_hindrance() -> None:
    async def cell() -> list[str]:
        with LLM("fables", threads=1) as llm:
            texts = [each.text for each in llm.generate(["A fox", "A wolf"], **GREEDY)]
            return [*texts, "".join(chunk.text for chunk in llm.stream("A fox", **GREEDY))]

    fox, wolf, streamed = asyncio.run(cell())
    assert fox == streamed
    assert wolf


@pytest.mark.parametrize("first", [1, 2])
def test_two_models_have_their_own_numbers_of_threads_and_the_same_bits(first: int) -> None:
    alone = {}
    for threads in (1, 2):
        with LLM("fables", threads=threads) as llm:
            alone[threads] = llm.trace("A fox", "logits")["logits"].tobytes()
    with LLM("fables", threads=first) as one, LLM("fables", threads=3 - first) as two:
        for llm in (one, two, one):
            assert llm.trace("A fox", "logits")["logits"].tobytes() == alone[1] == alone[2]


def test_close_ends_the_engine_while_a_forked_process_lives() -> None:
    with LLM("fables", threads=1) as llm:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
        os.close(read)
        assert llm.generate("A fox", **GREEDY)[0].text
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
