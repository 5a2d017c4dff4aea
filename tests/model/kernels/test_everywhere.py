"""Every kernel, as recorded by `tape.py` from the tests next to this file, repeated without Python: by libraries of
another compiler, on other CPUs (qemu). All of it is compared bit for bit.
"""

import os
import pickle
import re
import struct
import sys
from pathlib import Path

import pytest

from lightwell.model.kernels import build, library
from tests.model.kernels.tape import Call
from tests.model.kernels.tools import HERE, ZIG, needs_tools, needs_x86, run

pytestmark = needs_tools

LOWEST = {arch: next(iter(levels)) for arch, levels in build.LEVELS.items()}
ON_AARCH64 = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("everywhere")


@pytest.fixture(scope="module")
def calls(room: Path) -> list[Call]:
    """Calls of every kernel at every level of this machine."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.model.kernels.tape", HERE)
    run(*command, TAPE=str(room / "tape"))
    found: list[Call] = pickle.loads((room / "tape").read_bytes())
    return [call for call in found if call.level in library.levels()]  # tiles were emulated where the CPU has none


@pytest.fixture(scope="module")
def foreign(room: Path) -> dict[str, tuple[Path, Path]]:
    """For each architecture, the library as a wheel has it and the program that repeats calls, both built by zig."""
    made = {}
    for arch in build.LEVELS:
        target = f"manylinux_2_17_{arch}"
        kernels, replay = room / f"{arch}.so", room / f"replay-{arch}"
        run(ZIG, "model/kernels/build.py", "--target", target, "--output", kernels)
        zig = (ZIG, "-m", "ziglang", "cc", "-target", build.TARGETS[target])
        run(*zig, "-O1", "-Wall", "-Wextra", "-Werror", HERE / "replay.c", "-o", replay, "-ldl")
        made[arch] = replay, kernels
    return made


def repeat(calls: list[Call], level: str | None, *command: str | Path) -> list[str]:
    """Return the differences from the recording when a program repeats the calls, at `level` or the recorded levels."""
    assert calls
    tape = struct.pack("<q", len(calls)) + b"".join(call.write(level or call.level) for call in calls)
    left, start, differing = run(*command, given=tape), 0, []
    assert len(left) == sum(call.size for call in calls)
    for call in calls:
        differing += call.differing(left[start : start + call.size])
        start += call.size
    return differing


def test_every_kernel_is_recorded_and_does_something(calls: list[Call]) -> None:
    """Check that each call changed memory: a call without a change proves nothing."""
    loaded = Path(os.environ.get(library.LIBRARY_VARIABLE, build.LIBRARY)).read_bytes()
    exported = re.findall(rb"\0(\w+)_%b(?=\0)" % LOWEST[build.architecture()].encode(), loaded)
    changing = {call.name for call in calls if any(each.before != each.after for each in call.memories)}
    assert len(exported) > 20
    assert {name.decode() for name in exported} - changing == set()


@needs_x86
def test_zig_makes_the_same_bits_at_every_level(calls: list[Call], foreign: dict[str, tuple[Path, Path]]) -> None:
    assert repeat(calls, None, *foreign["x86_64"], "2") == []


@needs_x86
def test_a_cpu_with_avx2_alone_runs_its_level(calls: list[Call], foreign: dict[str, tuple[Path, Path]]) -> None:
    """Run AVX2's level on a CPU with only AVX2: an instruction of a later CPU would end the program."""
    emulator = "qemu-x86_64", "-cpu", "Haswell"
    assert run(*emulator, *foreign["x86_64"]) == b"1\n"
    # One thread, because its neighbouring memory is readable: qemu 7 also reads the lanes that a masked load omits.
    assert repeat([call for call in calls if call.level == "avx2"], None, *emulator, *foreign["x86_64"], "1") == []


@needs_x86
def test_a_cpu_without_avx2_has_no_level(foreign: dict[str, tuple[Path, Path]]) -> None:
    assert run("qemu-x86_64", "-cpu", "Nehalem", *foreign["x86_64"]) == b"0\n"


@pytest.mark.parametrize(("cpu", "level"), [("cortex-a72", "neon"), ("max", "neon"), ("max", "neon_bf16")])
def test_aarch64_makes_the_same_bits(
    cpu: str, level: str, calls: list[Call], foreign: dict[str, tuple[Path, Path]]
) -> None:
    """Compare float32, int8 and widened bfloat16: at the lowest level no instruction takes two bfloat16 at a time."""
    there = list(build.LEVELS["aarch64"])
    assert run(*ON_AARCH64, cpu, *foreign["aarch64"]) == b"1\n" if cpu != "max" else b"%d\n" % len(there)
    lowest = [call for call in calls if call.level == LOWEST[build.architecture()]]
    for threads in ("1", "3"):
        assert repeat(lowest, level, *ON_AARCH64, cpu, *foreign["aarch64"], threads) == []
