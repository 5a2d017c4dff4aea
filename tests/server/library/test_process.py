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


LOADED_TWICE = """
import os, sys
from pathlib import Path
from lightwell.server.library.llm import LLM

def memory():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem", "Pss_File"))) / 1024

def files():
    return len(os.listdir("/proc/self/fd"))

def use(model):
    with LLM(model, threads=1, max_model_len=512) as llm:
        llm.generate("A fox", max_tokens=4, use_tqdm=False)
        return memory()

use("fables")
before, opened = memory(), files()
loaded = [use(sys.argv[1]) for _ in range(3)]
print(before, min(loaded), memory(), opened, files())
"""


def test_memory_and_files_are_those_from_before_after_close(tmp_path: Path) -> None:
    done = run(LOADED_TWICE.replace("sys.argv[1]", repr("smollm2")), tmp_path / "loaded")
    assert not done.returncode, done.stderr
    before, loaded, after, opened, left = map(float, done.stdout.split())
    assert loaded > before + 100  # MiB: the model has 135 million weights of two bytes
    assert after < before + 0.2 * (loaded - before), f"{before} MiB before, {loaded} loaded, {after} after"
    assert left <= opened


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
