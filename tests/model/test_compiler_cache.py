"""A disk without room costs the next start some time, and this one nothing; processes share what they compile."""

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


CALLEE = """
import numba

@numba.njit
def number():
    return {number}
"""
CALLER = """
from model.layers.compiler_cache import tell_versions_apart

tell_versions_apart()
tell_versions_apart()

import numba
from model.callee import number

@numba.njit(cache=True)
def answer():
    return number()

print(answer(), len(answer.stats.cache_hits))
"""


@pytest.mark.slow
def test_what_calls_a_changed_function_is_compiled_anew(tmp_path: Path) -> None:
    layers = tmp_path / "model" / "layers"
    layers.mkdir(parents=True)
    for package in (layers.parent, layers):
        (package / "__init__.py").touch()
    (layers / "compiler_cache.py").write_text((ROOT / "model" / "layers" / "compiler_cache.py").read_text())
    (tmp_path / "model" / "caller.py").write_text(CALLER)
    answers = []
    for number in (1, 1, 2):
        (tmp_path / "model" / "callee.py").write_text(CALLEE.format(number=number))
        command = [sys.executable, "-B", "-m", "model.caller"]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": ""}, capture_output=True, text=True, check=False
        )
        answers.append(done.stdout or done.stderr)
    assert answers == ["1 0\n", "1 1\n", "2 0\n"]


COMPILE_AT_ONCE = """
import os, sys, time, numba
from pathlib import Path
from numba.core import caching
from model.layers.compiler_cache import tolerate_full_disks

tolerate_full_disks()
save_index = caching.IndexDataCacheFile._save_index

def save_index_slowly(self, overloads):
    time.sleep(0.5)
    save_index(self, overloads)

caching.IndexDataCacheFile._save_index = save_index_slowly

@numba.njit(cache=True)
def double(x):
    return x + x

number, others = eval(sys.argv[1]), [Path(name) for name in sys.argv[3:]]
Path(sys.argv[2]).touch()
while not all(other.exists() for other in others):
    time.sleep(0.01)
print(double(number), sum(double.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_processes_that_compile_for_different_types_at_once_keep_both(tmp_path: Path) -> None:
    script = tmp_path / "compile.py"
    script.write_text(COMPILE_AT_ONCE)

    def start(number: str, own: str, other: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(script), number, str(tmp_path / own), str(tmp_path / other)]
        return subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)

    def both() -> list[str]:
        processes = [start("21", "integer", "real"), start("2.5", "real", "integer")]
        return [process.communicate()[0] for process in processes]

    assert both() == ["42 0\n", "5.0 0\n"]
    assert both() == ["42 1\n", "5.0 1\n"], "each found what it had compiled"


COMPILE_ONCE = """
import sys, numba
from numba.core import event
from model.layers.compiler_cache import compile_once

compile_once()
compile_once()

@numba.njit(cache=True)
def half(x):
    return x / 2

@numba.njit(cache=True)
def quarter(x):
    return half(half(x))

class Teller(event.Listener):
    def on_start(self, happens):
        print("compiles", happens.data["dispatcher"].py_func.__name__, flush=True)
        sys.stdin.readline()

    def on_end(self, happened):
        pass

event.register("numba:compile", Teller())
print("begins", flush=True)
print(quarter(42.0))
"""


@pytest.mark.slow
def test_of_processes_that_need_the_same_function_at_once_one_compiles_it(tmp_path: Path) -> None:
    script = tmp_path / "compile.py"
    script.write_text(COMPILE_ONCE)

    def start(until: str) -> "subprocess.Popen[str]":
        command, pipe = [sys.executable, str(script)], subprocess.PIPE
        process = subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        while process.stdout.readline().strip() != until:
            assert process.poll() is None
        return process

    with start("compiles quarter") as first, start("begins") as second:  # the first is in the midst of it
        assert first.communicate("\n\n")[0] == "compiles half\n10.5\n"
        assert second.communicate("\n\n")[0] == "10.5\n", "it loaded what the first had compiled"
